/**
 * What of the work state follows a task's moves: rows of `ready`, `leases` and `cancel_notices`. It is not the fold:
 * other parts write it too, and what is lost here delays a task and never loses or doubles an outcome.
 */
import { isDelayed } from '../domain/deadlines.ts'
import type { PendingTask, ProcessingTask, Task } from '../domain/task.ts'
import { timestamp } from './database.ts'

/** Tasks that may be offered now, whether they wait for the first time or again. */
export const offerable = (task: Task): task is PendingTask => task.status === 'PENDING' && !isDelayed(task)

/** A row of `rollcall.ready`; the columns' names are the table's. */
export const readyRow = (task: PendingTask) => ({
  task_id: task.taskId,
  type: task.type,
  priority: task.priority,
  pending_since: timestamp(Math.max(task.pendingSince, task.runAt)),
  attempt: task.attempt,
  tenant: task.tenant,
})

/** What of a running task goes into `rollcall.leases`; the database says until when it is held. */
export const leaseRow = (task: ProcessingTask) => ({
  task_id: task.taskId,
  attempt: task.attempt,
  token_hash: task.leaseTokenHash,
  claim_id: task.startCommandId,
  worker: task.worker,
  lease_ms: task.timeouts.leaseMs,
})

/** Of a task that was cancelled while it ran: who is to be told. */
export function noticeRows(tasks: readonly Task[]) {
  return tasks.flatMap(task => {
    const last = task.endedAttempts.at(-1)
    if (task.status !== 'CANCELLED' || last?.ended !== 'cancelled') return []
    const { attempt, worker } = last
    return [{ task_id: task.taskId, attempt, worker, cancelled_at: timestamp(task.finishedAt) }]
  })
}
