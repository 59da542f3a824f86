/**
 * The work state that follows a task's moves: `ready`, `offers` and `leases`. It is not the fold: other parts
 * write it too, and what is lost here delays a task and never loses or doubles an outcome.
 */
import { isDelayed } from '../domain/deadlines.ts'
import type { PendingTask, ProcessingTask, Task } from '../domain/task.ts'
import { type Queryable, timestamp } from './database.ts'

/** Tasks that may be offered now, whether they wait for the first time or again. */
export const offerable = (task: Task): task is PendingTask => task.status === 'PENDING' && !isDelayed(task)

/** A row of `rollcall.ready`; the columns' names are the table's. */
export const readyRow = (task: PendingTask) => ({
  task_id: task.taskId,
  type: task.type,
  priority: task.priority,
  pending_since: timestamp(Math.max(task.pendingSince, task.runAt)),
  attempt: task.attempt,
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

/** Makes waiting tasks claimable. */
export async function makeReady(db: Queryable, tasks: readonly PendingTask[]): Promise<void> {
  if (tasks.length === 0) return
  await db.query({
    name: 'make-ready',
    text: 'SELECT rollcall.make_ready($1)',
    values: [JSON.stringify(tasks.map(readyRow))],
  })
}

/** Grants running tasks a full lease where they have none for this attempt. */
export async function grantLeases(db: Queryable, tasks: readonly ProcessingTask[]): Promise<void> {
  if (tasks.length === 0) return
  await db.query({
    name: 'grant-leases',
    text: 'SELECT rollcall.grant_leases($1)',
    values: [JSON.stringify(tasks.map(leaseRow))],
  })
}
