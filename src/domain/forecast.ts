/** What will happen to an open task if nothing else does: the next deadline, and what it will do. */
import { costOfTimeout } from './attempt-cost.ts'
import { type Deadline, type DeadlineTimer, isDelayed, nextDeadline } from './deadlines.ts'
import type { Instant } from './events.ts'
import { type LifecycleDefinition, type Status, type TimeoutTimer, transition } from './lifecycle.ts'
import { LIMITS } from './limits.ts'
import { retryDelayMs } from './retry-policy.ts'
import type { Signals } from './signals.ts'
import { isOpen, type OpenTask, type Task, unreachable } from './task.ts'
import { attemptText, spell } from './wording.ts'

export interface Effect {
  /** The status the task will be in. */
  to: Status
  /** What happens, in words. */
  effect: string
}

export type Forecast = Deadline & (Effect | { to: null; effect: null })

/**
 * The deadline that fires next, the lease among them, and what it will do; null for a finished task.
 *
 * @param definition the one the task was submitted with; null where it is not known, nor then the effect
 */
export function forecast(
  task: Task,
  signals: Signals,
  definition: LifecycleDefinition | null,
  now: Instant,
): Forecast | null {
  if (!isOpen(task)) return null
  const next = earliest(task, signals, now)
  if (next === null) return null
  return { ...next, ...(definition ? effectOf(task, next.timer, signals, definition) : NOT_KNOWN) }
}

const NOT_KNOWN = { to: null, effect: null } as const

/** The stream's next deadline, or the lease's end where that comes first. */
function earliest(task: OpenTask, { lease }: Signals, now: Instant): Deadline | null {
  const next = nextDeadline(task, isDelayed(task) && task.runAt <= now ? 'not_before' : undefined)
  if (task.status !== 'PROCESSING' || next === null) return next
  // Where nothing is known of its lease, the first one's end tells something only while it lies ahead.
  const leaseEndsAt = lease ? lease.heldUntil : task.leaseDeadlineAt > now ? task.leaseDeadlineAt : null
  return leaseEndsAt !== null && leaseEndsAt < next.at ? { timer: 'lease', at: leaseEndsAt } : next
}

/** What a timer does to an open task when it fires before anything else happens. */
export function effectOf(
  task: OpenTask,
  timer: DeadlineTimer,
  signals: Signals,
  definition: LifecycleDefinition,
): Effect {
  if (timer === 'not_before') return { to: task.status, effect: 'it may be claimed from then on' }
  if (timer === 'retry') {
    const requeued = transition(definition, task.status, 'RETRY')
    const next = attemptText(task, task.attempt + 1)
    return requeued
      ? { to: requeued.to, effect: `it goes back to waiting for a worker, to begin ${next}` }
      : unanswered(task)
  }
  const { charged, attemptsLeft, backoff } = costOfTimeout(
    task,
    timer,
    signals.lease?.lastHeartbeatAt ?? null,
  )
  const target = transition(definition, task.status, `TIMEOUT:${timer}`, { retryable: true, attemptsLeft })
  if (!target) return unanswered(task)
  const what = cause(task, timer)
  if (target.event !== 'TaskAttemptTimedOut') {
    const other = attemptsLeft || task.status !== 'PROCESSING' || timer === 'total'
    return { to: target.to, effect: `${what}; the task fails${other ? '' : ', for no attempt is left'}` }
  }
  // Without jitter, which only makes it shorter.
  const longestMs = retryDelayMs(task.retry, backoff, 0)
  const when = longestMs === 0 ? 'at once' : `after at most ${spell(longestMs)}`
  const free = charged
    ? ''
    : `, not charged (silent lease ${task.silentLeasesInRun + 1} of ${LIMITS.silentLeasesPerRun})`
  return { to: target.to, effect: `${what}; the task is tried again ${when}${free}` }
}

/** A definition that an older version accepted may leave a timer out. */
const unanswered = (task: OpenTask): Effect => ({
  to: task.status,
  effect: 'nothing: its lifecycle does not answer this timer',
})

function cause(task: OpenTask, timer: TimeoutTimer): string {
  const attempt = attemptText(task, task.attempt)
  switch (timer) {
    case 'queue':
      return 'no worker has started it in time'
    case 'total':
      return 'the task as a whole has taken too long'
    case 'execution':
      return `${attempt} times out`
    case 'step':
      return `${attempt} times out${task.status === 'PROCESSING' && task.step !== null ? ` in step ${task.step}` : ''}`
    case 'lease':
      return `${attempt} is lost unless its worker is heard before`
    default:
      return unreachable(timer)
  }
}
