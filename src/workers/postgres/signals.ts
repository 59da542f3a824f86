/** What is known of a task beside its stream, and who was told that it is cancelled. */
import type { Pool } from 'pg'
import {
  AHEAD_MAX,
  type CancelNotice,
  NO_SIGNALS,
  positionBehind,
  type Signals,
} from '../../domain/signals.ts'
import type { Task } from '../../domain/task.ts'
import { leaseSignals } from './lease-signals.ts'

export async function signals(pool: Pool, task: Task): Promise<Signals> {
  switch (task.status) {
    case 'PROCESSING':
      return { ...NO_SIGNALS, lease: (await leaseSignals(pool, [task])).get(task.taskId) ?? null }
    case 'PENDING':
      return { ...NO_SIGNALS, ...(await waitingOf(pool, task)) }
    case 'CANCELLED':
      return { ...NO_SIGNALS, cancelNotice: await noticeOf(pool, task) }
    default:
      return NO_SIGNALS
  }
}

/** Its offer and its place in one round trip. */
async function waitingOf(pool: Pool, task: Task): Promise<Pick<Signals, 'offer' | 'position'>> {
  const found = await pool.query<{ held_until: Date | null; times_offered: number; ahead: number | null }>({
    name: 'signals-offer',
    text: 'SELECT * FROM rollcall.offer_signals($1, $2, $3)',
    values: [task.taskId, task.attempt, AHEAD_MAX + 1],
  })
  const row = found.rows[0]
  if (!row) return { offer: null, position: null }
  return {
    offer: { heldUntil: row.held_until?.getTime() ?? null, timesOffered: row.times_offered },
    position: row.ahead === null ? null : positionBehind(row.ahead),
  }
}

async function noticeOf(pool: Pool, task: Task): Promise<CancelNotice | null> {
  const found = await pool.query<{ attempt: number; worker: string; told_at: Date | null }>({
    name: 'signals-cancel-notice',
    text: 'SELECT attempt, worker, told_at FROM rollcall.cancel_notices WHERE task_id = $1',
    values: [task.taskId],
  })
  const row = found.rows[0]
  return row ? { attempt: row.attempt, worker: row.worker, toldAt: row.told_at?.getTime() ?? null } : null
}

/** The projector may be behind: then the notice is made here, and found there. */
export async function markTold(
  pool: Pool,
  told: readonly { taskId: string; attempt: number; worker: string }[],
): Promise<void> {
  if (told.length === 0) return
  const rows = told.map(({ taskId, attempt, worker }) => ({ task_id: taskId, attempt, worker }))
  await pool.query({
    name: 'cancel-notices-told',
    text: `INSERT INTO rollcall.cancel_notices AS c (task_id, attempt, worker, told_at)
           SELECT DISTINCT ON (n.task_id) n.task_id, n.attempt, n.worker, clock_timestamp()
             FROM json_populate_recordset(NULL::rollcall.cancel_notices, $1::json) n ORDER BY n.task_id
           ON CONFLICT (task_id) DO UPDATE SET told_at = excluded.told_at WHERE c.told_at IS NULL`,
    values: [JSON.stringify(rows)],
  })
}

/** Seven days, as `rollcall.follow_tasks` says. */
export async function pruneCancelNotices(pool: Pool, limit: number): Promise<void> {
  await pool.query({
    name: 'cancel-notices-prune',
    text: `DELETE FROM rollcall.cancel_notices
            WHERE task_id = ANY (ARRAY (
                  SELECT task_id FROM rollcall.cancel_notices
                   WHERE cancelled_at <= statement_timestamp() - interval '7 days'
                   ORDER BY cancelled_at LIMIT $1 FOR UPDATE SKIP LOCKED))`,
    values: [limit],
  })
}
