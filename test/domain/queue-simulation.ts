/**
 * A queue with workers in virtual time, first come first served. What its tasks are told on the way is what the service
 * would tell them: the statistics of the tasks that succeeded last, read again once in a while, and the real estimate.
 */
import { type Estimate, estimate } from '../../src/domain/estimate.ts'
import { AHEAD_MAX, NO_SIGNALS, positionBehind, type Signals } from '../../src/domain/signals.ts'
import type { PendingTask, ProcessingTask, Task } from '../../src/domain/task.ts'
import {
  SAMPLE_MAX,
  type SucceededAttempt,
  type TypeStatistics,
  typeStatistics,
} from '../../src/domain/type-statistics.ts'
import { randomFrom } from '../simulation/world.ts'
import { given, RETRY, started, submitted, T0 } from './specification.ts'

export interface Load {
  seed: number
  workers: number
  /** How many tasks end in all. */
  tasks: number
  /** How many tasks wait, about; they come a little faster or slower, so that it stays so. */
  queued: number
  /** What an attempt takes, in milliseconds. */
  duration: (random: () => number) => number
  /** Chance that an attempt fails and the task comes back behind the others. */
  failing?: number
}

/** What a task was told, and what came of it. */
export interface Told extends Estimate {
  rank: number
  /** Seconds from then until it was final. */
  took: number
}

/** @param median in milliseconds */
export const logNormal =
  (median: number, sigma: number) =>
  (random: () => number): number =>
    median * Math.exp(sigma * normal(random))

const normal = (random: () => number): number =>
  Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())

const LIMITS = {
  timeouts: { queueMs: 1e12, executionMs: 1e12, leaseMs: 1e12, totalMs: 1e12 },
  retry: { ...RETRY, initialDelayMs: 0 },
}
const WAITING = given(submitted(0, LIMITS)).task as PendingTask
const RUNNING = given(submitted(0, LIMITS), started(0)).task as ProcessingTask
/** Statistics are good for so many submits. */
const FRESH = 10

interface Queued {
  readyAt: number
  attempt: number
  waited: (Omit<Told, 'took'> & { at: number }) | null
}

interface Running {
  task: Queued
  startedAt: number
  endsAt: number
  /** When it is asked how long it will take; after its end where that is sooner. */
  looksAt: number
}

/** @returns what tasks were told when they began to wait, and at a random moment while they ran */
export function simulateQueue(load: Load): { waiting: Told[]; running: Told[] } {
  const random = randomFrom(load.seed)
  const meanMs = mean(Array.from({ length: 2_000 }, () => load.duration(random)))
  const queue: Queued[] = []
  const running: Running[] = []
  const succeeded: SucceededAttempt[] = []
  const told = { waiting: [] as Told[], running: [] as Told[] }
  // The first ends are those of short tasks, and nothing has been tried again.
  const warmUp = 300 + (load.failing ? 4 * load.queued : 0)
  let now = T0
  let ends = 0
  let statistics: TypeStatistics | null = null
  let fresh = 0
  const read = (): TypeStatistics | null => {
    if (fresh-- > 0) return statistics
    fresh = FRESH
    statistics = typeStatistics({
      takenAt: now,
      succeeded: succeeded.slice(-SAMPLE_MAX),
      waiting: Math.min(queue.length, AHEAD_MAX + 1),
      waitingSince: queue[0]?.readyAt ?? null,
    })
    return statistics
  }
  const ask = (task: Task, signals: Signals) => (ends < warmUp ? null : estimate(task, signals, read(), now))
  const start = (): void => {
    while (running.length < load.workers && queue.length > 0) {
      const endsAt = now + load.duration(random)
      // At a moment that knows nothing of the end.
      running.push({ task: queue.shift()!, startedAt: now, endsAt, looksAt: now + 2 * random() * meanMs })
    }
  }
  const submit = (): void => {
    const position = positionBehind(queue.length)
    const says = ask(WAITING, { ...NO_SIGNALS, position })
    queue.push({ readyAt: now, attempt: 1, waited: says && { ...says, rank: position.rank, at: now } })
    start()
  }
  const end = ({ task, startedAt }: Running): void => {
    if (random() < (load.failing ?? 0)) {
      queue.push({ ...task, attempt: task.attempt + 1 })
      return
    }
    ends++
    succeeded.push({ readyAt: task.readyAt, startedAt, finishedAt: now, attempt: task.attempt })
    if (task.waited) told.waiting.push({ ...task.waited, took: (now - task.waited.at) / 1_000 })
  }
  const look = (one: Running): void => {
    one.looksAt = Number.POSITIVE_INFINITY
    const says = ask({ ...RUNNING, startedAt: one.startedAt, totalDeadlineAt: 1e15 }, NO_SIGNALS)
    if (says) told.running.push({ ...says, rank: 0, took: (one.endsAt - now) / 1_000 })
  }
  const nextArrival = (): number => {
    const share = queue.length < load.queued ? 1.25 : 0.8
    const rate = (share * load.workers * (1 - (load.failing ?? 0))) / meanMs
    return now - Math.log(1 - random()) / rate
  }
  let arrivesAt = now
  while (ends < load.tasks) {
    const first = running.reduce((a, b) => (at(a) <= at(b) ? a : b), running[0]!)
    now = Math.min(arrivesAt, first ? at(first) : arrivesAt)
    if (now === arrivesAt) {
      submit()
      arrivesAt = nextArrival()
    } else if (first.looksAt < first.endsAt) look(first)
    else {
      running.splice(running.indexOf(first), 1)
      end(first)
      start()
    }
  }
  return told
}

const at = ({ looksAt, endsAt }: { looksAt: number; endsAt: number }): number => Math.min(looksAt, endsAt)

const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length

/** For what share of these tasks each number held. */
export function held(told: readonly Told[]): { count: number; p50: number; p90: number } {
  const share = (quantile: 'p50' | 'p90'): number =>
    told.filter(one => one.took <= one[quantile]).length / told.length
  return { count: told.length, p50: share('p50'), p90: share('p90') }
}
