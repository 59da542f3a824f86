/** One sentence that tells a person why a task is where it is. */
import { isDelayed } from './deadlines.ts'
import type { Instant } from './events.ts'
import { type Task, unreachable } from './task.ts'

const time = (at: Instant): string => new Date(at).toISOString()

export function why(task: Task, now: Instant): string {
  switch (task.status) {
    case 'PENDING':
      if (isDelayed(task) && task.runAt > now) return `waits for its time, ${time(task.runAt)}`
      if (task.enteredBy === 'release')
        return `handed back by its worker; waiting for a worker of type ${task.type}`
      if (task.enteredBy === 'requeue')
        return `waiting for a worker of type ${task.type} to begin attempt ${task.attempt}`
      return `waiting for a worker of type ${task.type}`
    case 'PROCESSING': {
      const step = task.step === null ? '' : `, step ${task.step}`
      return `worker ${task.worker} runs attempt ${task.attempt}${step}, since ${time(task.startedAt)}`
    }
    case 'RETRYING':
      return `attempt ${task.attempt} ended: ${task.lastError?.message ?? 'no reason given'}; the next one may begin at ${time(task.retryAt)}`
    case 'SUCCESS':
      return `succeeded in attempt ${task.attempt}`
    case 'FAILED':
      return `failed: ${task.error.message}`
    case 'CANCELLED':
      return `cancelled by ${task.cancelledBy.kind} ${task.cancelledBy.id}${task.reason ? `: ${task.reason}` : ''}`
    default:
      return unreachable(task)
  }
}

/** What went wrong, as users are shown it on every read; a cancelled task shows its reason. */
export function shownError(task: Task): { code: string | null; message: string | null } {
  if (task.status === 'CANCELLED') return { code: 'cancelled', message: task.reason }
  const error = task.status === 'SUCCESS' ? null : task.lastError
  return { code: error?.code ?? null, message: error?.message ?? null }
}
