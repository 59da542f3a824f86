/** `leases`: the signals of running tasks, one row each. */
import type { Pool } from 'pg'
import type { Instant } from '../../domain/events.ts'
import type { ProcessingTask } from '../../domain/task.ts'
import { leaseRow } from '../../projections/work-state.ts'
import { type Heartbeat, type LostLease, leaseKey } from '../work-state.ts'

const BEAT = {
  name: 'leases-beat',
  text: `
    UPDATE rollcall.leases l
       SET held_until = clock_timestamp() + l.lease_ms * interval '1 millisecond',
           last_heartbeat_at = clock_timestamp(), progress = COALESCE(b.progress, l.progress)
      FROM json_to_recordset($1::json) AS b (task_id uuid, attempt integer, token_hash text, progress real)
     WHERE l.task_id = ANY ($2::uuid[])
       AND l.task_id = b.task_id AND l.attempt = b.attempt AND l.token_hash = b.token_hash AND NOT l.lost
     RETURNING l.task_id, l.attempt, l.token_hash, l.held_until`,
}

interface BeatRow {
  task_id: string
  attempt: number
  token_hash: string
  held_until: Date
}

export async function beat(pool: Pool, beats: readonly Heartbeat[]): Promise<Map<string, Instant>> {
  if (beats.length === 0) return new Map()
  const rows = beats.map(one => ({
    task_id: one.taskId,
    attempt: one.attempt,
    token_hash: one.leaseTokenHash,
    // A real keeps less than a double, and refuses what is too small for it.
    progress: one.progress === null ? null : Math.fround(one.progress),
  }))
  const beaten = await pool.query<BeatRow>({
    ...BEAT,
    values: [JSON.stringify(rows), rows.map(row => row.task_id)],
  })
  return new Map(
    beaten.rows.map(({ task_id: taskId, attempt, token_hash: leaseTokenHash, held_until }) => [
      leaseKey({ taskId, attempt, leaseTokenHash }),
      held_until.getTime(),
    ]),
  )
}

export async function grantLeases(pool: Pool, tasks: readonly ProcessingTask[]): Promise<void> {
  if (tasks.length === 0) return
  await pool.query({
    name: 'grant-leases',
    text: 'SELECT rollcall.grant_leases($1)',
    values: [JSON.stringify(tasks.map(leaseRow))],
  })
}

export async function withdrawLeases(
  pool: Pool,
  leases: readonly { taskId: string; attempt: number }[],
): Promise<void> {
  if (leases.length === 0) return
  await pool.query({
    name: 'leases-withdraw',
    text: `DELETE FROM rollcall.leases l
            USING json_to_recordset($1::json) AS b (task_id uuid, attempt integer)
            WHERE l.task_id = ANY ($2::uuid[]) AND l.task_id = b.task_id AND l.attempt = b.attempt`,
    values: [
      JSON.stringify(leases.map(({ taskId, attempt }) => ({ task_id: taskId, attempt }))),
      leases.map(({ taskId }) => taskId),
    ],
  })
}

interface LostRow {
  task_id: string
  attempt: number
  held_until: Date
  last_heartbeat_at: Date | null
}

export async function takeLostLeases(pool: Pool, limit: number, gapMs: number): Promise<LostLease[]> {
  const lost = await pool.query<LostRow>({
    name: 'leases-take',
    // Those that are taken are found by their ids: the second condition, alike to the first, is no bound of the
    // index by ends, which all that has ended would be read by.
    text: `UPDATE rollcall.leases SET lost = true
            WHERE task_id = ANY (ARRAY (
                  SELECT task_id FROM rollcall.leases WHERE held_until <= statement_timestamp()
                   ORDER BY held_until LIMIT $1 FOR UPDATE SKIP LOCKED))
              AND held_until + interval '0' <= statement_timestamp()
              AND EXISTS (SELECT FROM rollcall.timer_ticks
                           WHERE ticked_at > statement_timestamp() - $2 * interval '1 millisecond')
           RETURNING task_id, attempt, held_until, last_heartbeat_at`,
    values: [limit, gapMs],
  })
  return lost.rows.map(row => ({
    taskId: row.task_id,
    attempt: row.attempt,
    heldUntil: row.held_until.getTime(),
    lastHeartbeatAt: row.last_heartbeat_at?.getTime() ?? null,
  }))
}

export async function dropLostLeases(pool: Pool, taskIds: readonly string[]): Promise<void> {
  if (taskIds.length === 0) return
  await pool.query({
    name: 'leases-drop',
    text: 'DELETE FROM rollcall.leases WHERE task_id = ANY ($1::uuid[]) AND lost',
    values: [taskIds],
  })
}
