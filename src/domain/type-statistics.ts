/**
 * How long work of a type takes and how fast its queue moves, from its last tasks that succeeded. A function of the
 * fold and of who waits just now; nothing is written for it (docs/adr/0015).
 */
import type { Instant } from './events.ts'

/** So many of the last tasks that succeeded are looked at. */
export const SAMPLE_MAX = 256
/** With fewer nothing is said. */
export const SAMPLE_MIN = 8

/** A task that succeeded, by its last attempt. */
export interface SucceededAttempt {
  /** When it could be claimed for the first time. */
  readyAt: Instant
  startedAt: Instant
  finishedAt: Instant
  attempt: number
}

/** What is read of a type. */
export interface TypeSample {
  takenAt: Instant
  /** At most `SAMPLE_MAX`, in any order. */
  succeeded: readonly SucceededAttempt[]
  /** Claimable tasks, counted up to `AHEAD_MAX + 1`. */
  waiting: number
  /** Since when one of them has been waiting at least. */
  waitingSince: Instant | null
}

export interface TypeStatistics {
  /** What attempts that succeeded took, ascending, in milliseconds. */
  durations: Float64Array
  meanMs: number
  /** Variance of the durations by the square of their mean: 0 where all are equal, 1 where it is left to chance. */
  dispersion: number
  /** The same thinned out to at most `ATOMS_MAX`, each as likely as another. */
  atoms: Float64Array
  /** How many tasks are started in a millisecond while there is a queue; never 0. */
  startsPerMs: number
  /** Chance that an attempt is not the last one, 0 to 1. */
  again: number
  /** On how many ends of attempts that rests. */
  rateSample: number
  waiting: number
}

/** What the guess from the durations weighs, in ends of attempts that were seen while there was a queue. */
const GUESS_WEIGHT = 4
/** A task that people retried again and again says little about others. */
const ATTEMPTS_MAX = 10
const ATOMS_MAX = 32
/** A millisecond is the smallest difference that instants know. */
const LEAST_MS = 1

/** @returns null where too little is known */
export function typeStatistics(sample: TypeSample): TypeStatistics | null {
  const { succeeded, waiting } = sample
  if (succeeded.length < SAMPLE_MIN) return null
  const durations = ascending(
    succeeded.map(({ startedAt, finishedAt }) => Math.max(0, finishedAt - startedAt)),
  )
  const meanMs = Math.max(LEAST_MS, mean(durations))
  const dispersion = mean(durations.map(took => (took - meanMs) ** 2)) / meanMs ** 2
  const { ends, ms } = whileQueued(sample)
  const guess = mostAtOnce(succeeded) / meanMs
  // An attempt that failed was started as well, and took a worker from those who wait.
  const startsPerEnd = mean(succeeded.map(({ attempt }) => Math.min(attempt, ATTEMPTS_MAX)))
  return {
    durations,
    atoms: thinned(durations),
    meanMs,
    dispersion,
    again: 1 - 1 / startsPerEnd,
    startsPerMs: (startsPerEnd * (ends + GUESS_WEIGHT)) / (ms + GUESS_WEIGHT / guess),
    rateSample: ends + GUESS_WEIGHT,
    waiting,
  }
}

function thinned(durations: Float64Array): Float64Array {
  if (durations.length <= ATOMS_MAX) return durations
  const step = durations.length / ATOMS_MAX
  return Float64Array.from({ length: ATOMS_MAX }, (_, index) => durations[Math.floor((index + 0.5) * step)]!)
}

function mean(values: ArrayLike<number>): number {
  let sum = 0
  for (let index = 0; index < values.length; index++) sum += values[index]!
  return sum / Math.max(1, values.length)
}

/**
 * For how long there was a queue since the oldest end of the sample, and how many tasks ended meanwhile: what workers
 * do at their fastest. While nobody waits they end what comes, which says nothing of that.
 */
function whileQueued({ takenAt, succeeded, waitingSince }: TypeSample): { ends: number; ms: number } {
  const ends = ascending(succeeded.map(({ finishedAt }) => finishedAt))
  const from = ends[0] ?? takenAt
  const waits = succeeded
    // Since when a task of a later attempt has waited is not in the sample.
    .filter(({ attempt }) => attempt === 1)
    .map(({ readyAt, startedAt }) => [readyAt, startedAt] as const)
  if (waitingSince !== null) waits.push([waitingSince, takenAt])
  let ms = 0
  let count = 0
  let at = from
  let end = 1
  for (const [since, until] of waits.sort(([a], [b]) => a - b)) {
    const begins = Math.max(at, since)
    if (until <= begins) continue
    ms += until - begins
    while (end < ends.length && ends[end]! <= begins) end++
    for (; end < ends.length && ends[end]! <= until; end++) count++
    at = until
  }
  return { ends: count, ms }
}

/** How many of these attempts ran at the same time at most. */
function mostAtOnce(succeeded: readonly SucceededAttempt[]): number {
  const starts = ascending(succeeded.map(({ startedAt }) => startedAt))
  const ends = ascending(
    succeeded.map(({ startedAt, finishedAt }) => Math.max(finishedAt, startedAt + LEAST_MS)),
  )
  let most = 1
  let ended = 0
  starts.forEach((startedAt, index) => {
    // Who ends makes room before another starts.
    while (ends[ended]! <= startedAt) ended++
    most = Math.max(most, index + 1 - ended)
  })
  return most
}

const ascending = (values: readonly number[]): Float64Array => Float64Array.from(values).sort()
