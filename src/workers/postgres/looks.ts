/** The looks of the timers: their own rhythm, and the deadlines they look at. */
import type { Pool } from 'pg'
import { nextDeadline } from '../../domain/deadlines.ts'
import type { PendingTask } from '../../domain/task.ts'
import { inTransaction, timestamp } from '../../projections/database.ts'
import { readyRow } from '../../projections/work-state.ts'
import type { DueDeadline, DueQuery } from '../work-state.ts'

export async function beginLook(
  pool: Pool,
  gapMs: number,
): Promise<{ gapMs: number; leases: number } | null> {
  const began = await pool.query({
    name: 'timers-begin-look',
    text: `WITH last AS (SELECT ticked_at FROM rollcall.timer_ticks FOR UPDATE)
           UPDATE rollcall.timer_ticks SET ticked_at = clock_timestamp() FROM last
            WHERE clock_timestamp() - last.ticked_at < $1 * interval '1 millisecond'`,
    values: [gapMs],
  })
  return began.rowCount ? null : endGap(pool, gapMs)
}

/** Every lease that was not taken yet is given anew, before any is looked at. */
function endGap(pool: Pool, leastMs: number): Promise<{ gapMs: number; leases: number } | null> {
  return inTransaction(pool, async client => {
    // A missing row means that the work state was lost: a gap of unknown length.
    await client.query(
      "INSERT INTO rollcall.timer_ticks (ticked_at) VALUES (timestamptz 'epoch') ON CONFLICT DO NOTHING",
    )
    const last = await client.query<{ gap_ms: string }>(
      `SELECT (extract(epoch FROM clock_timestamp() - ticked_at) * 1000)::bigint AS gap_ms
         FROM rollcall.timer_ticks FOR UPDATE`,
    )
    const gapMs = Number(last.rows[0]?.gap_ms ?? 0)
    // Another process may have seen the gap first.
    if (gapMs < leastMs) return null
    const granted = await client.query(
      `UPDATE rollcall.leases SET held_until = clock_timestamp() + lease_ms * interval '1 millisecond'
        WHERE NOT lost AND held_until < clock_timestamp() + lease_ms * interval '1 millisecond'`,
    )
    await client.query(
      `UPDATE rollcall.timer_ticks
          SET gap_began_at = ticked_at, gap_ended_at = clock_timestamp(), ticked_at = clock_timestamp()`,
    )
    return { gapMs, leases: granted.rowCount ?? 0 }
  })
}

/** @returns the tick, as `isLookedAt` takes it; null where there is a gap since the last one */
export async function keepLook(pool: Pool, gapMs: number): Promise<string | null> {
  const kept = await pool.query<{ tick: string }>({
    name: 'timers-keep-look',
    text: `UPDATE rollcall.timer_ticks SET ticked_at = clock_timestamp()
            WHERE ticked_at > clock_timestamp() - $1 * interval '1 millisecond'
           RETURNING ticked_at::text AS tick`,
    values: [gapMs],
  })
  return kept.rows[0]?.tick ?? null
}

/** @param ownTick the end of the caller's last look, null before its first */
export async function isLookedAt(pool: Pool, ownTick: string | null, withinMs: number): Promise<boolean> {
  const others = await pool.query({
    name: 'timers-looked-at',
    text: `SELECT FROM rollcall.timer_ticks
            WHERE ticked_at IS DISTINCT FROM $1::timestamptz
              AND ticked_at > clock_timestamp() - $2 * interval '1 millisecond'`,
    values: [ownTick, withinMs],
  })
  return others.rowCount === 1
}

interface DueRow {
  task_id: string
  timer: DueDeadline['timer']
  attempt: number
  due_at: Date
  in_grace: boolean
}

// `statement_timestamp`, since what can change within a statement is no bound of an index: with fewer due rows than
// the page is long, the rest of the index would be read to its end. `OFFSET 0` has the rows of a page looked up one
// by one: joined, all that is due would be read and sorted for each page.
const DUE = {
  name: 'deadlines-due',
  text: `
    SELECT d.task_id, d.timer, d.attempt, d.due_at,
           d.timer IN ('execution', 'step', 'total')
             AND EXISTS (SELECT FROM rollcall.timer_ticks g
                          WHERE g.gap_ended_at + $3 * interval '1 millisecond' > statement_timestamp()
                            AND d.due_at BETWEEN g.gap_began_at - $3 * interval '1 millisecond' AND g.gap_ended_at)
             AND EXISTS (SELECT FROM rollcall.leases l
                          WHERE l.task_id = d.task_id AND l.attempt = d.attempt AND NOT l.lost OFFSET 0) AS in_grace
      FROM rollcall.deadlines d
     WHERE d.due_at <= statement_timestamp() AND (d.due_at, d.task_id) > ($1::timestamptz, $2::uuid)
       -- What is set aside waits for a person; asking it again at every look would only fill the logs.
       AND NOT EXISTS (SELECT FROM rollcall.set_aside s WHERE s.task_id = d.task_id OFFSET 0)
     ORDER BY d.due_at, d.task_id LIMIT $4`,
}

export async function dueDeadlines(pool: Pool, { after, limit, graceMs }: DueQuery): Promise<DueDeadline[]> {
  const due = await pool.query<DueRow>({
    ...DUE,
    values: [
      after ? timestamp(after.dueAt) : '-infinity',
      after?.taskId ?? '00000000-0000-0000-0000-000000000000',
      graceMs,
      limit,
    ],
  })
  return due.rows.map(row => ({
    taskId: row.task_id,
    timer: row.timer,
    attempt: row.attempt,
    dueAt: row.due_at.getTime(),
    inGrace: row.in_grace,
  }))
}

export async function passNotBefore(pool: Pool, tasks: readonly PendingTask[]): Promise<void> {
  if (tasks.length === 0) return
  const next = tasks.flatMap(task => {
    const deadline = nextDeadline(task, 'not_before')
    if (!deadline) return []
    return [
      { task_id: task.taskId, due_at: timestamp(deadline.at), timer: deadline.timer, attempt: task.attempt },
    ]
  })
  await pool.query({
    name: 'pass-not-before',
    text: 'SELECT rollcall.pass_not_before($1, $2)',
    values: [JSON.stringify(tasks.map(readyRow)), JSON.stringify(next)],
  })
}
