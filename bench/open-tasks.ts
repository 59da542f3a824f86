/**
 * A database with many open tasks, written by SQL alone: what the timers and claims look at, without streams. Plans
 * and the time to find due work depend on these rows only.
 */
import type pg from 'pg'

export interface OpenTasks {
  count: number
  /** How many types they are spread over: `type-0`, `type-1`, … */
  types: number
  /** How many deadlines, leases and offers, each, are due; the others are so in an hour. */
  due: number
}

/**
 * Tasks 1 to `count`: of twenty 16 wait, one of them taken, one is delayed, two run and one is in its backoff. Their ids
 * are as spread as random ones and the same every time, so that what the planner knows of them is the same too.
 */
const ROWS = `
  CREATE TEMP TABLE numbered ON COMMIT DROP AS
  SELECT n, md5(n::text)::uuid AS task_id, 'type-' || n % $2 AS type,
         CASE WHEN n % 20 < 17 THEN 'PENDING' WHEN n % 20 < 19 THEN 'PROCESSING' ELSE 'RETRYING' END AS status,
         date_trunc('milliseconds', now()) - ($1 - n) * interval '1 millisecond' AS created_at,
         n % 20 = 16 AS delayed, n % 20 = 0 AS taken
    FROM generate_series(1, $1::int) n`

const FILLS = [
  `INSERT INTO rollcall.tasks (task_id, type, status, attempt, max_attempts, run, priority, created_at, run_at,
          started_at, updated_at, revision, hash)
   SELECT task_id, type, status, 1, 3, 1, n % 3, created_at, created_at,
          CASE WHEN status <> 'PENDING' THEN created_at END, created_at, 1, repeat('0', 64)
     FROM numbered`,
  `INSERT INTO rollcall.deadlines (task_id, due_at, timer, attempt)
   SELECT task_id, created_at + interval '1 hour',
          CASE WHEN delayed THEN 'not_before' WHEN status = 'PENDING' THEN 'queue'
               WHEN status = 'PROCESSING' THEN 'execution' ELSE 'retry' END, 1
     FROM numbered`,
  `INSERT INTO rollcall.ready (task_id, type, priority, pending_since, attempt)
   SELECT task_id, type, n % 3, created_at, 1 FROM numbered WHERE status = 'PENDING' AND NOT delayed AND NOT taken`,
  `INSERT INTO rollcall.offers (task_id, type, priority, pending_since, attempt, times_offered, claim_id, held_until)
   SELECT task_id, type, n % 3, created_at, 1, 1, 'claim-' || n, created_at + interval '1 hour'
     FROM numbered WHERE taken`,
  `INSERT INTO rollcall.leases (task_id, attempt, token_hash, claim_id, worker, lease_ms, held_until)
   SELECT task_id, 1, repeat('0', 64), 'claim-' || n, 'worker', 60000, created_at + interval '1 hour'
     FROM numbered WHERE status = 'PROCESSING'`,
]

const DUE = [
  ['deadlines', 'due_at'],
  ['leases', 'held_until'],
  ['offers', 'held_until'],
] as const

/** Fills a migrated database that has no tasks yet. Indexes are built afterwards, which is a good deal faster. */
export async function fillOpenTasks(client: pg.ClientBase, { count, types, due }: OpenTasks): Promise<void> {
  await client.query('BEGIN')
  await client.query(`SET LOCAL maintenance_work_mem = '256MB'`)
  // Into a table that was emptied in this transaction rows are written without the write-ahead log.
  await client.query(
    'TRUNCATE rollcall.tasks, rollcall.deadlines, rollcall.ready, rollcall.offers, rollcall.leases',
  )
  const indexes = await client.query<{ drop: string; create: string }>(
    `SELECT CASE WHEN c.oid IS NULL THEN format('DROP INDEX rollcall.%I', i.indexname)
                 ELSE format('ALTER TABLE rollcall.%I DROP CONSTRAINT %I', i.tablename, i.indexname) END AS drop,
            CASE WHEN c.oid IS NULL THEN i.indexdef
                 ELSE format('ALTER TABLE rollcall.%I ADD CONSTRAINT %I %s', i.tablename, i.indexname,
                             pg_get_constraintdef(c.oid)) END AS create
       FROM pg_indexes i LEFT JOIN pg_constraint c
         ON c.conname = i.indexname AND c.connamespace = 'rollcall'::regnamespace
      WHERE i.schemaname = 'rollcall' AND i.tablename IN ('tasks', 'deadlines', 'ready', 'offers', 'leases')`,
  )
  for (const { drop } of indexes.rows) await client.query(drop)
  await client.query(ROWS.replaceAll('$1', String(count)).replaceAll('$2', String(types)))
  for (const fill of FILLS) await client.query(fill)
  for (const { create } of indexes.rows) await client.query(create)
  for (const [table, column] of DUE)
    await client.query(
      `UPDATE rollcall.${table} SET ${column} = now() - interval '1 second'
        WHERE task_id IN (SELECT task_id FROM rollcall.${table} ORDER BY task_id LIMIT ${due})`,
    )
  await client.query('COMMIT')
  await client.query(
    'VACUUM ANALYZE rollcall.tasks, rollcall.deadlines, rollcall.ready, rollcall.offers, rollcall.leases',
  )
}
