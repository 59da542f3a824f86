/**
 * Every bound of the domain in one place. The edges (HTTP, Kafka, stored events, configuration) take their
 * schemas from here, so that a limit is stated once.
 */

const DAY_MS = 24 * 60 * 60 * 1000

export const LIMITS = {
  /** Payload, result and error, each, as serialized JSON. */
  contentBytes: 256 * 1024,
  /** What an attempt may hand to the next one, as serialized JSON. */
  contextBytes: 16 * 1024,
  /** JSON.stringify of V8 dies near 5,000 levels (PITFALLS H6); nobody needs more than this. */
  jsonDepth: 64,
  timeoutMs: { min: 1, max: 366 * DAY_MS },
  maxAttempts: 2_000,
  priority: { min: -1_000, max: 1_000 },
  labels: 32,
  labelBytes: 256,
  noteBytes: 16 * 1024,
  errorCodeLength: 64,
  reasonBytes: 4 * 1024,
  workerLength: 128,
  urlLength: 2_048,
  notesPerTask: 1_000,
  stepsPerAttempt: 1_000,
  releasesPerRun: 10,
  /** Leases that may end without one heartbeat before they cost an attempt. */
  silentLeasesPerRun: 3,
  runsPerTask: 100,
  lateResultsPerTask: 5,
  /** Ended attempts and command ids a task remembers, to recognise what is sent again. */
  rememberedAttempts: 5,
  rememberedCommands: 16,
} as const

export const DEFAULT_TIMEOUTS = {
  queueMs: DAY_MS,
  executionMs: 30 * 60 * 1000,
  leaseMs: 60 * 1000,
  totalMs: 7 * DAY_MS,
} as const

/** Task types, steps, lifecycles, labels: lower case, as DESIGN 10. */
export const NAME_PATTERN = /^[a-z0-9][a-z0-9._-]{0,63}$/

/** Step names are shown to people and written in capitals by custom (DOWNLOADING). */
export const STEP_PATTERN = /^[A-Z][A-Z0-9_]{0,63}$/
