/**
 * How long it will be until a task is final: the median, and what nine of ten stay below. From its place and the pace of
 * the queue, from what such tasks have taken and how often they were tried again, and from what its worker says of its
 * progress. What is ahead is a list of times, each as likely as another (docs/adr/0015).
 */
import { isDelayed } from './deadlines.ts'
import type { Instant } from './events.ts'
import { retryDelayMs } from './retry-policy.ts'
import { AHEAD_MAX, type LeaseSignals, type Signals } from './signals.ts'
import { isOpen, type OpenTask, type ProcessingTask, type Task, unreachable } from './task.ts'
import { SAMPLE_MIN, type TypeStatistics } from './type-statistics.ts'

/** In seconds, from the moment at which it was asked. */
export interface Estimate {
  p50: number
  p90: number
}

/** Times ahead in milliseconds, each as likely as another. */
type Ahead = Float64Array

/** What is left is known no better than this. */
const STEP_MS = 100
/** Less tells nothing. */
const PROGRESS_LEAST = 0.01
/** The upper half of 16 places of the normal distribution, each as likely as another, in standard deviations. */
const DEVIATIONS = [0.08, 0.25, 0.42, 0.6, 0.81, 1.05, 1.37, 1.94]

/** @returns null for a final task, and where too little is known */
export function estimate(
  task: Task,
  signals: Signals,
  statistics: TypeStatistics | null,
  now: Instant,
): Estimate | null {
  if (!isOpen(task) || statistics === null) return null
  const ahead = aheadOf(task, signals, statistics, now)
  if (ahead === null) return null
  const [p50, p90] = quantiles(ahead.sort(), triedAgain(task, statistics))
  // By then it is final whatever happens.
  const most = Math.max(0, task.totalDeadlineAt - now)
  const seconds = (ms: number): number => (Math.ceil(Math.min(most, ms) / STEP_MS) * STEP_MS) / 1_000
  return { p50: seconds(p50), p90: seconds(p90) }
}

function aheadOf(
  task: OpenTask,
  { lease, position }: Signals,
  statistics: TypeStatistics,
  now: Instant,
): Ahead | null {
  switch (task.status) {
    case 'PROCESSING':
      // An attempt whose worker fell silent will not end by itself.
      return lease?.lost ? null : untilEnd(task, lease, statistics, now)
    case 'PENDING':
      if (isDelayed(task) && task.runAt > now) return afterDelay(task.runAt - now, statistics)
      return position?.exact ? thenOwn(waitAt(position.rank, statistics), statistics) : null
    case 'RETRYING':
      return afterDelay(Math.max(0, task.retryAt - now), statistics)
    default:
      return unreachable(task)
  }
}

/** It comes back behind those that wait; that they are as many then as they are now is the best that is known. */
function afterDelay(delayMs: number, statistics: TypeStatistics): Ahead | null {
  const { waiting } = statistics
  if (waiting > AHEAD_MAX) return null
  const wait = waiting === 0 ? Float64Array.of(0) : waitAt(waiting + 1, statistics)
  return thenOwn(wait, statistics).map(ms => delayMs + ms)
}

/** Until the `rank`-th start from now. Every one of the times grows with the rank. */
function waitAt(rank: number, statistics: TypeStatistics): Ahead {
  const { startsPerMs, rateSample } = statistics
  // The pace comes from a sample as well: the further off a task is, the more the sample's own spread counts.
  const variance =
    startsVariance(rank, statistics) + (rank / rateSample) ** 2 * startsVariance(rateSample, statistics)
  const median = (rank - 0.5) / startsPerMs
  const deviation = Math.sqrt(variance) / startsPerMs
  const times = new Float64Array(2 * DEVIATIONS.length)
  DEVIATIONS.forEach((far, index) => {
    const spread = far * deviation
    times[2 * index] = median + spread
    times[2 * index + 1] = median ** 2 / (median + spread)
  })
  return times
}

/**
 * How much the number of starts varies in the time in which so many are expected. Workers that begin one task after
 * another are as regular as their durations are; many of them together look like chance in a short time.
 */
function startsVariance(starts: number, { dispersion, startsPerMs, meanMs }: TypeStatistics): number {
  if (dispersion >= 1) return dispersion * starts
  return Math.min(starts, dispersion * starts + (startsPerMs * meanMs) / 6)
}

/** The wait and then an attempt of its own. */
function thenOwn(wait: Ahead, { atoms }: TypeStatistics): Ahead {
  const times = new Float64Array(wait.length * atoms.length)
  let index = 0
  for (const ms of wait) for (const own of atoms) times[index++] = ms + own
  return times
}

/** What is left of a running attempt: by those that took longer than it has by now, and by its progress. */
function untilEnd(
  { startedAt }: ProcessingTask,
  lease: LeaseSignals | null,
  { durations }: TypeStatistics,
  now: Instant,
): Ahead {
  const elapsed = Math.max(0, now - startedAt)
  const left = leftOf(durations, elapsed)
  const progress = Math.min(1, lease?.progress ?? 0)
  if (progress < PROGRESS_LEAST) return left
  // It was said with the last heartbeat or before. The further it is, the more it counts and the surer it is.
  const saidAfter = Math.max(0, Math.min(now, lease?.lastHeartbeatAt ?? now) - startedAt)
  const whole = saidAfter / progress
  return left.map((ms, index) => {
    const share = (index + 0.5) / left.length
    const told = whole * (1 + ((1 - progress) * (share - 0.5)) / 0.4) - elapsed
    return (1 - progress) * ms + progress * Math.max(0, told)
  })
}

/** @param durations ascending */
function leftOf(durations: Float64Array, elapsed: number): Ahead {
  const longer = durations.findIndex(took => took > elapsed)
  if (longer !== -1 && durations.length - longer >= SAMPLE_MIN)
    return durations.slice(longer).map(took => took - elapsed)
  // Beyond what was seen it goes on as the longest ones did, by their proportions.
  const tail = durations.slice(-SAMPLE_MIN)
  const shortest = Math.max(1, tail[0] ?? 1)
  return tail.map(took => elapsed * Math.max(0, took / shortest - 1))
}

interface Again {
  chance: number
  /** How much later it then is. */
  ms: number
}

/** That this attempt fails and another one follows; one more is as far as it goes. */
function triedAgain(task: OpenTask, statistics: TypeStatistics): Again {
  const { again, waiting, startsPerMs, meanMs } = statistics
  if (task.attemptsCharged + 1 >= task.retry.maxAttempts) return { chance: 0, ms: 0 }
  const backoffMs = retryDelayMs(task.retry, task.attemptsCharged + 1, 0)
  return { chance: again, ms: backoffMs + waiting / startsPerMs + meanMs }
}

/** @param ascending what is ahead if this attempt is the last one */
function quantiles(ascending: Ahead, again: Again): [p50: number, p90: number] {
  if (again.chance === 0) return [quantile(ascending, 0.5), quantile(ascending, 0.9)]
  return [mixedQuantile(ascending, 0.5, again), mixedQuantile(ascending, 0.9, again)]
}

/** Between two times in proportion. */
function quantile(ascending: Ahead, share: number): number {
  const place = Math.max(0, Math.min(ascending.length - 1, share * ascending.length - 0.5))
  const below = ascending[Math.floor(place)] ?? 0
  const above = ascending[Math.ceil(place)] ?? 0
  return below + (above - below) * (place % 1)
}

/** Of the times as they are and, for some, so much later. */
function mixedQuantile(ascending: Ahead, share: number, { chance, ms }: Again): number {
  let seen = 0
  let soon = 0
  let late = 0
  while (late < ascending.length) {
    const isSoon = soon < ascending.length && ascending[soon]! <= ascending[late]! + ms
    const time = isSoon ? ascending[soon++]! : ascending[late++]! + ms
    seen += isSoon ? 1 - chance : chance
    if (seen > share * ascending.length) return time
  }
  return (ascending.at(-1) ?? 0) + ms
}
