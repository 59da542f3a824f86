/**
 * The work state that follows a task's moves: `ready`, `offers` and `leases`. It is not the fold: other parts
 * write it too, and what is lost here delays a task and never loses or doubles an outcome.
 */
import { isDelayed } from '../domain/deadlines.ts'
import type { PendingTask, ProcessingTask, Task } from '../domain/task.ts'
import { type Queryable, timestamp } from './database.ts'

/** Tasks that may be offered now, whether they wait for the first time or again. */
export const offerable = (task: Task): task is PendingTask => task.status === 'PENDING' && !isDelayed(task)

const MAKE_READY = {
  name: 'ready-add',
  // A task that is out on an offer of this very attempt is not offered twice.
  text: `
    INSERT INTO rollcall.ready AS r (task_id, type, priority, pending_since, attempt)
    SELECT n.task_id, n.type, n.priority, n.pending_since, n.attempt
      FROM json_populate_recordset(NULL::rollcall.ready, $1::json) n
     WHERE NOT EXISTS (SELECT 1 FROM rollcall.offers o WHERE o.task_id = n.task_id AND o.attempt = n.attempt)
    ON CONFLICT (task_id) DO UPDATE SET pending_since = excluded.pending_since, attempt = excluded.attempt
    WHERE r.attempt < excluded.attempt`,
}

/** Makes waiting tasks claimable. */
export async function makeReady(db: Queryable, tasks: readonly PendingTask[]): Promise<void> {
  if (tasks.length === 0) return
  const rows = tasks.map(task => ({
    task_id: task.taskId,
    type: task.type,
    priority: task.priority,
    pending_since: timestamp(Math.max(task.pendingSince, task.runAt)),
    attempt: task.attempt,
  }))
  await db.query({ ...MAKE_READY, values: [JSON.stringify(rows)] })
}

const GRANT_LEASE = {
  name: 'leases-grant',
  // A full lease from now, not from the START: a projector that was behind, or is rebuilt, must not take
  // leases from workers that could not be heard.
  text: `
    INSERT INTO rollcall.leases AS l (task_id, attempt, token_hash, claim_id, worker, lease_ms, held_until)
    SELECT n.task_id, n.attempt, n.token_hash, n.claim_id, n.worker, n.lease_ms,
           clock_timestamp() + n.lease_ms * interval '1 millisecond'
      FROM json_populate_recordset(NULL::rollcall.leases, $1::json) n
    ON CONFLICT (task_id) DO UPDATE SET
      attempt = excluded.attempt, token_hash = excluded.token_hash, claim_id = excluded.claim_id,
      worker = excluded.worker, lease_ms = excluded.lease_ms, held_until = excluded.held_until,
      lost = false, last_heartbeat_at = NULL, progress = NULL
    WHERE l.attempt < excluded.attempt`,
}

/** Grants running tasks a full lease where they have none for this attempt. */
export async function grantLeases(db: Queryable, tasks: readonly ProcessingTask[]): Promise<void> {
  if (tasks.length === 0) return
  const rows = tasks.map(task => ({
    task_id: task.taskId,
    attempt: task.attempt,
    token_hash: task.leaseTokenHash,
    claim_id: task.startCommandId,
    worker: task.worker,
    lease_ms: task.timeouts.leaseMs,
  }))
  await db.query({ ...GRANT_LEASE, values: [JSON.stringify(rows)] })
}

/** Takes tasks out of what they no longer belong to. */
export async function dropWork(
  db: Queryable,
  table: 'ready' | 'offers' | 'leases',
  taskIds: readonly string[],
): Promise<void> {
  if (taskIds.length === 0) return
  await db.query({
    name: `${table}-drop`,
    text: `DELETE FROM rollcall.${table} WHERE task_id = ANY ($1::uuid[])`,
    values: [taskIds],
  })
}

/** Follows moved tasks: what waits is ready, what runs has a lease, the rest is out of both. */
export async function followWork(db: Queryable, moved: readonly Task[]): Promise<void> {
  // A task seen for the first time stands nowhere yet.
  const known = moved.filter(task => task.revision > 0)
  const ids = (tasks: readonly Task[]): string[] => tasks.map(task => task.taskId)
  // An offer of an attempt that is over is overwritten by the next one, or ends by itself.
  const notWaiting = ids(known.filter(task => task.status !== 'PENDING'))
  await Promise.all([
    dropWork(db, 'ready', notWaiting),
    dropWork(db, 'offers', notWaiting),
    dropWork(db, 'leases', ids(known.filter(task => task.status !== 'PROCESSING'))),
    makeReady(db, moved.filter(offerable)),
    grantLeases(
      db,
      moved.filter(task => task.status === 'PROCESSING'),
    ),
  ])
}
