/** What was found to differ between streams and rows, and where the walk over all of them stands. */
import type { Pool } from 'pg'
import type { Examined, Finding, FindingKind } from './findings.ts'

/**
 * Keeps what was found of these tasks, and forgets what was found of them before and is right now.
 *
 * @param kinds what was looked for; other kinds stay as they are
 * @returns the findings that are new
 */
export async function keepFindings(
  pool: Pool,
  { taskIds, findings }: Examined,
  kinds: readonly FindingKind[],
): Promise<Finding[]> {
  if (taskIds.length === 0) return []
  const kept = await pool.query<{ task_id: string; kind: FindingKind; fresh: boolean }>({
    name: 'drift-keep',
    text: `WITH found AS (
             SELECT * FROM json_to_recordset($1::json) AS f (task_id uuid, kind text, detail text)
           ), right_again AS (
             DELETE FROM rollcall.drift d
              WHERE d.task_id = ANY ($2::uuid[]) AND d.kind = ANY ($3::text[])
                AND NOT EXISTS (SELECT FROM found f WHERE f.task_id = d.task_id AND f.kind = d.kind)
           )
           INSERT INTO rollcall.drift AS d (task_id, kind, detail, found_at, seen_at)
           SELECT task_id, kind, detail, now(), now() FROM found ORDER BY task_id, kind
           ON CONFLICT (task_id, kind) DO UPDATE SET detail = excluded.detail, seen_at = excluded.seen_at
           RETURNING d.task_id, d.kind, d.found_at = d.seen_at AS fresh`,
    values: [
      JSON.stringify(findings.map(({ taskId, kind, detail }) => ({ task_id: taskId, kind, detail }))),
      taskIds,
      kinds,
    ],
  })
  const fresh = new Set(kept.rows.filter(row => row.fresh).map(row => `${row.task_id} ${row.kind}`))
  return findings.filter(({ taskId, kind }) => fresh.has(`${taskId} ${kind}`))
}

/** Tasks with findings, those that nobody has looked at for longest first. */
export async function driftingTasks(pool: Pool, limit: number): Promise<string[]> {
  const { rows } = await pool.query<{ task_id: string }>({
    name: 'drift-oldest',
    text: 'SELECT task_id FROM rollcall.drift ORDER BY seen_at LIMIT $1',
    values: [limit],
  })
  return [...new Set(rows.map(row => row.task_id))]
}

/** The place where the last walk was left, null where a new one is to begin. */
export async function loadPlace(pool: Pool): Promise<string | null> {
  const { rows } = await pool.query<{ place: string | null }>({
    name: 'verification-load',
    text: 'SELECT place FROM rollcall.verification',
  })
  return rows[0]?.place ?? null
}

export async function savePlace(pool: Pool, place: string | null): Promise<void> {
  await pool.query({
    name: 'verification-save',
    text: `INSERT INTO rollcall.verification (place) VALUES ($1)
           ON CONFLICT (one) DO UPDATE SET place = excluded.place`,
    values: [place],
  })
}

/**
 * Notes that everything was looked at once.
 *
 * @param from when the walk began, in milliseconds by the database's clock; what was not seen since is gone
 */
export async function endWalk(pool: Pool, from: number): Promise<void> {
  await pool.query({
    name: 'verification-end',
    text: `WITH gone AS (DELETE FROM rollcall.drift WHERE seen_at < $1)
           INSERT INTO rollcall.verification (verified_from, verified_at) VALUES ($1, clock_timestamp())
           ON CONFLICT (one) DO UPDATE SET verified_from = excluded.verified_from, verified_at = excluded.verified_at`,
    values: [new Date(from).toISOString()],
  })
}

/** The database's clock, in milliseconds. */
export async function databaseNow(pool: Pool): Promise<number> {
  const { rows } = await pool.query<{ now: number }>({
    name: 'verification-now',
    text: 'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now',
  })
  return rows[0]!.now
}
