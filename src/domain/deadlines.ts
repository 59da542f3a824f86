/** Which timers are armed for a task and what fires next: the dates are in the stored events, never recomputed. */
import type { Instant } from './events.ts'
import type { Timer } from './lifecycle.ts'
import { isOpen, type OpenTask, type Task, unreachable } from './task.ts'

/** `not_before` makes a delayed task ready; it moves no status and stores no event. */
export type DeadlineTimer = Timer | 'not_before'

export interface Deadline {
  timer: DeadlineTimer
  at: Instant
}

/** Whether a task waits for its `runAt`, judged from its stream alone. */
export const isDelayed = (task: Task): boolean => task.status === 'PENDING' && task.runAt > task.pendingSince

/**
 * The armed timers of an open task but for its lease, which is a signal outside the log; none for a
 * finished one.
 */
export function deadlinesOf(task: Task): Deadline[] {
  if (!isOpen(task)) return []
  return [...statusDeadlines(task), { timer: 'total', at: task.totalDeadlineAt }]
}

/**
 * The deadline that fires next.
 *
 * @param after `not_before` leaves out that timer, once it has fired
 */
export function nextDeadline(task: Task, after?: 'not_before'): Deadline | null {
  const armed = deadlinesOf(task).filter(deadline => deadline.timer !== after)
  return armed.reduce<Deadline | null>((first, next) => (first && first.at <= next.at ? first : next), null)
}

function statusDeadlines(task: OpenTask): Deadline[] {
  switch (task.status) {
    case 'PENDING':
      return [
        ...(isDelayed(task) ? [{ timer: 'not_before', at: task.runAt } as const] : []),
        { timer: 'queue', at: task.queueDeadlineAt },
      ]
    case 'PROCESSING':
      return [
        ...(task.stepDeadlineAt === null ? [] : [{ timer: 'step', at: task.stepDeadlineAt } as const]),
        { timer: 'execution', at: task.executionDeadlineAt },
      ]
    case 'RETRYING':
      return [{ timer: 'retry', at: task.retryAt }]
    default:
      return unreachable(task)
  }
}
