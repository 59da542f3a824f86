/** One sentence that tells a person why a task is where it is. */
import { isDelayed } from './deadlines.ts'
import type { Instant } from './events.ts'
import { AHEAD_MAX, type Position, type Signals } from './signals.ts'
import {
  type CancelledTask,
  type FailedTask,
  type PendingTask,
  type ProcessingTask,
  type RetryingTask,
  type Task,
  unreachable,
} from './task.ts'
import { attemptText, countText, instantText, quoted, spell } from './wording.ts'

/**
 * Who holds the task and until when, what it waits for, or how it ended.
 *
 * @param now tells what is over from what is to come
 */
export function why(task: Task, signals: Signals, now: Instant): string {
  switch (task.status) {
    case 'PENDING':
      return `${cameBack(task)}${waiting(task, signals, now)}`
    case 'PROCESSING':
      return running(task, signals, now)
    case 'RETRYING':
      return backingOff(task, now)
    case 'SUCCESS':
      return `succeeded in attempt ${task.attempt}`
    case 'FAILED':
      return failed(task)
    case 'CANCELLED':
      return cancelled(task, signals)
    default:
      return unreachable(task)
  }
}

/** Why a task waits again, with the reason of the last end. */
function cameBack(task: PendingTask): string {
  const last = task.endedAttempts.at(-1)
  const reason = task.enteredReason === null ? '' : `: ${quoted(task.enteredReason)}`
  switch (task.enteredBy) {
    case 'submit':
      return ''
    case 'release':
      return `handed back by its worker${last ? ` ${last.worker}` : ''}${reason}; `
    case 'requeue': {
      const error = quoted(task.lastError?.message ?? 'no reason is known')
      // Within a run a requeue follows an attempt that was charged or fell silent; neither is carried into a new one.
      const newRun = task.attemptsCharged + task.silentLeasesInRun === 0
      if (newRun) return `retried in run ${task.run}${reason}, since run ${task.run - 1} failed: ${error}; `
      return `attempt ${last?.attempt ?? task.attempt} ended: ${error}; `
    }
    default:
      return unreachable(task.enteredBy)
  }
}

function waiting(task: PendingTask, { offer, position }: Signals, now: Instant): string {
  if (isDelayed(task) && task.runAt > now)
    return `waits for its time, ${instantText(task.runAt)}, and then for a worker of type ${task.type}`
  const next = task.enteredBy === 'submit' ? '' : ` to begin ${attemptText(task, task.attempt)}`
  const place = position === null ? '' : `; ${placeText(position)}`
  if (offer === null || offer.timesOffered === 0)
    return `waiting for a worker of type ${task.type}${next}${place}`
  const times = offer.timesOffered === 1 ? 'once' : `${offer.timesOffered} times`
  // An offer whose time is over is taken back within moments and says nothing of a worker any more.
  if (offer.heldUntil === null || offer.heldUntil <= now)
    return `waiting for a worker of type ${task.type}${next}; offered ${times}, not started${place}`
  return `handed towards a worker of type ${task.type} until ${instantText(offer.heldUntil)}${next}; offered ${times}, not started yet`
}

function placeText({ rank, exact }: Position): string {
  if (!exact) return `more than ${countText(AHEAD_MAX)} tasks are ahead`
  if (rank === 1) return 'it is next'
  return rank === 2 ? '1 task is ahead' : `${countText(rank - 1)} tasks are ahead`
}

function running(task: ProcessingTask, { lease }: Signals, now: Instant): string {
  const step = task.step === null ? '' : `, step ${task.step}`
  const since = `${attemptText(task, task.attempt)}${step}, since ${instantText(task.startedAt)}`
  const runs = `worker ${task.worker} runs ${since}`
  if (lease === null)
    return task.leaseDeadlineAt > now
      ? `${runs}; its first lease is held until ${instantText(task.leaseDeadlineAt)}, no heartbeat is known`
      : `${runs}; its first lease ended at ${instantText(task.leaseDeadlineAt)}, no later one is known`
  const until = instantText(lease.heldUntil)
  const heard =
    lease.lastHeartbeatAt === null
      ? 'no heartbeat yet'
      : `last heartbeat at ${instantText(lease.lastHeartbeatAt)}`
  if (!lease.lost && lease.heldUntil > now) return `${runs}; its lease is held until ${until}, ${heard}`
  const lost = lease.lost ? 'it is lost and being taken' : 'it is about to be taken'
  return `worker ${task.worker} was running ${since}; its lease ended at ${until}, ${heard.replace(' yet', '')}; ${lost}`
}

function backingOff(task: RetryingTask, now: Instant): string {
  const ended = `attempt ${task.attempt} ended: ${quoted(task.lastError?.message ?? 'no reason is known')}`
  const backoff = spell(Math.max(0, task.retryAt - task.retryingSince))
  const until = instantText(task.retryAt)
  const next = attemptText(task, task.attempt + 1)
  return task.retryAt > now
    ? `${ended}; backs off for ${backoff} until ${until}, then waits for a worker to begin ${next}`
    : `${ended}; its backoff of ${backoff} was over at ${until}, it is about to wait for a worker to begin ${next}`
}

function failed(task: FailedTask): string {
  const { maxAttempts } = task.retry
  const spent = task.attemptsCharged >= maxAttempts ? `; no attempt of ${maxAttempts} is left` : ''
  return `failed: ${quoted(task.error.message)}${spent}`
}

function cancelled(task: CancelledTask, { cancelNotice }: Signals): string {
  const { kind, id } = task.cancelledBy
  const by = `cancelled by ${kind} ${id}${task.reason === null ? '' : `: ${quoted(task.reason)}`}`
  if (cancelNotice === null) return by
  return cancelNotice.toldAt === null
    ? `${by}; its worker ${cancelNotice.worker} has not asked since`
    : `${by}; its worker ${cancelNotice.worker} was told at ${instantText(cancelNotice.toldAt)}`
}

/** What went wrong, as users are shown it on every read; a cancelled task shows its reason. */
export function shownError(task: Task): { code: string | null; message: string | null } {
  if (task.status === 'CANCELLED') return { code: 'cancelled', message: task.reason }
  const error = task.status === 'SUCCESS' ? null : task.lastError
  return { code: error?.code ?? null, message: error?.message ?? null }
}
