/** Open tasks whose work state is missing, a page at a time. */
import type { Pool } from 'pg'
import type { OpenTask } from '../../domain/task.ts'
import { timestamp } from '../../projections/database.ts'
import { deadlineRows } from '../../projections/deadlines.ts'
import type { LostWork } from '../work-state.ts'

// `OFFSET 0` has each task of the page looked up by itself; a whole table would be read to compare it with a page.
const NO_DEADLINE = 'NOT EXISTS (SELECT FROM rollcall.deadlines d WHERE d.task_id = p.task_id OFFSET 0)'

/** Beside the deadline; a task that waits for its backoff has no other work state. */
const LOST: Record<OpenTask['status'], string> = {
  // A delayed task stands nowhere but in the deadlines until its time comes.
  PENDING: `(NOT EXISTS (SELECT FROM rollcall.ready r WHERE r.task_id = p.task_id OFFSET 0)
    AND NOT EXISTS (SELECT FROM rollcall.offers o WHERE o.task_id = p.task_id OFFSET 0)
    AND NOT EXISTS (SELECT FROM rollcall.deadlines d WHERE d.task_id = p.task_id AND d.timer = 'not_before' OFFSET 0))`,
  PROCESSING: 'NOT EXISTS (SELECT FROM rollcall.leases l WHERE l.task_id = p.task_id OFFSET 0)',
  RETRYING: 'false',
}

export async function lostWork(
  pool: Pool,
  status: OpenTask['status'],
  after: LostWork['next'],
  limit: number,
): Promise<LostWork> {
  const page = await pool.query<{ task_id: string; created_at: Date; missing: boolean }>({
    name: `lost-work-${status}`,
    text: `WITH p AS (SELECT task_id, created_at FROM rollcall.tasks
                       WHERE status = $1 AND (created_at, task_id) > ($2::timestamptz, $3::uuid)
                       ORDER BY created_at, task_id LIMIT $4)
           SELECT p.task_id, p.created_at, ${NO_DEADLINE} OR ${LOST[status]} AS missing
             FROM p ORDER BY p.created_at, p.task_id`,
    values: [
      status,
      after ? timestamp(after.createdAt) : '-infinity',
      after?.taskId ?? '00000000-0000-0000-0000-000000000000',
      limit,
    ],
  })
  const last = page.rows.at(-1)
  return {
    taskIds: page.rows.filter(row => row.missing).map(row => row.task_id),
    next:
      last && page.rows.length === limit
        ? { createdAt: last.created_at.getTime(), taskId: last.task_id }
        : null,
  }
}

export async function armDeadlines(pool: Pool, tasks: readonly OpenTask[]): Promise<void> {
  if (tasks.length === 0) return
  const revisions = new Map(tasks.map(task => [task.taskId, task.revision]))
  const lost = deadlineRows(tasks).map(row => ({ ...row, revision: revisions.get(row.task_id) }))
  await pool.query({
    name: 'arm-again',
    text: 'SELECT rollcall.arm_again($1)',
    values: [JSON.stringify(lost)],
  })
}
