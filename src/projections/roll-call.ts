/**
 * The roll call: every task answers with its status, and whoever does not answer is named. It comes from the read
 * model, so it says how far that lags, and does not say 0 while nobody can know.
 */
import type { Pool, PoolClient } from 'pg'
import { OPEN_STATUSES, type Status } from '../domain/lifecycle.ts'
import type { EventLog } from '../eventlog/event-log.ts'
import { inTransaction } from './database.ts'
import { LAG_EVENTS_MAX, readLag } from './lag.ts'
import {
  type NamedTasks,
  OTHER_TYPES,
  type RollCallGroup,
  type RollCallReport,
  TYPES_MAX,
  UNACCOUNTED_REASONS,
  type UnaccountedReason,
} from './roll-call-report.ts'

export { type RollCallFigures, type RollCallReport, rollCallFigures } from './roll-call-report.ts'

export interface RollCallOptions {
  /** A deadline may be this late before its task counts as overdue: the timers are to have acted. */
  graceMs?: number | undefined
  /** With more lag than this nobody can say that everything is accounted for. */
  lagBoundSeconds?: number | undefined
}

export const ROLL_CALL_DEFAULTS = { graceMs: 30_000, lagBoundSeconds: 10 } as const
const NAMED_MAX = 20
const DETAIL_CHARACTERS = 300
const STATEMENT_TIMEOUT_MS = 10_000
/** An answer is given again for a second, or for longer where it was long in the making: it must not be the load. */
const FRESH = { ms: 1_000, timesItsCost: 4 }

export class RollCall {
  readonly #pool: Pool
  readonly #log: EventLog
  readonly #graceMs: number
  readonly #lagBoundSeconds: number
  #reading: Promise<RollCallReport> | null = null
  #last: { report: RollCallReport; until: number } | null = null

  constructor(pool: Pool, log: EventLog, options: RollCallOptions = {}) {
    this.#pool = pool
    this.#log = log
    this.#graceMs = options.graceMs ?? ROLL_CALL_DEFAULTS.graceMs
    this.#lagBoundSeconds = options.lagBoundSeconds ?? ROLL_CALL_DEFAULTS.lagBoundSeconds
  }

  /**
   * Calls the roll, at most once a second: who asks meanwhile gets the same answer.
   *
   * @throws when log or read model cannot be reached, or the database takes longer than 10 s
   */
  read(): Promise<RollCallReport> {
    if (this.#last && performance.now() < this.#last.until) return Promise.resolve(this.#last.report)
    this.#reading ??= this.#readNow().finally(() => {
      this.#reading = null
    })
    return this.#reading
  }

  async #readNow(): Promise<RollCallReport> {
    const begun = performance.now()
    // Before the rows: what is projected meanwhile is in them and does no harm.
    const lag = await readLag(this.#pool, this.#log)
    const rows = await inTransaction(this.#pool, client => this.#readRows(client))
    const { total, ...called } = rows
    const unknownBecause =
      lag.events === null
        ? 'the log went backwards: it does not hold what the read model was made from'
        : lag.seconds > this.#lagBoundSeconds
          ? `the read model is ${Math.round(lag.seconds)} s behind the log; more than ${this.#lagBoundSeconds} s is too much to tell`
          : null
    const report: RollCallReport = {
      ...called,
      unaccounted: {
        total: unknownBecause === null ? total : null,
        unknownBecause,
        reasons: called.unaccounted,
      },
      lag: {
        events: lag.events,
        moreEvents: lag.events === LAG_EVENTS_MAX,
        seconds: Math.round(lag.seconds * 1_000) / 1_000,
        boundSeconds: this.#lagBoundSeconds,
      },
      graceMs: this.#graceMs,
    }
    const costMs = performance.now() - begun
    const until = performance.now() + Math.max(FRESH.ms, costMs * FRESH.timesItsCost)
    this.#last = { report, until }
    return report
  }

  /** All of it in one snapshot, so that the parts agree. */
  async #readRows(client: PoolClient) {
    await client.query(
      `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;
       SET LOCAL statement_timeout = ${STATEMENT_TIMEOUT_MS}; SET LOCAL work_mem = '64MB'`,
    )
    const groups = await client.query<GroupRow>({
      name: 'roll-call-groups',
      text: GROUPS,
      values: [this.#graceMs, TYPES_MAX, OTHER_TYPES],
    })
    const without = await client.query<NamedRow>({ name: 'roll-call-without-worker', text: WITHOUT_WORKER })
    const unaccounted = await client.query<NamedRow & { reason: UnaccountedReason; total: string }>({
      name: 'roll-call-unaccounted',
      text: UNACCOUNTED,
      values: [this.#graceMs, OPEN_STATUSES],
    })
    const letters = await client.query<{ count: string }>({
      name: 'roll-call-dead-letters',
      text: `SELECT count(*) FROM rollcall.dead_letters WHERE status = 'waiting'`,
    })
    const verified = await client.query<{ now: Date; from: Date | null; at: Date | null }>({
      name: 'roll-call-verified',
      text: `SELECT now() AS now, verified_from AS "from", verified_at AS at
               FROM (SELECT 1) one LEFT JOIN rollcall.verification ON true`,
    })
    const { now, from, at } = verified.rows[0]!
    const open = (row: GroupRow) => (OPEN_STATUSES as readonly string[]).includes(row.status)
    const sum = (rows: readonly GroupRow[]) => rows.reduce((all, row) => all + Number(row.count), 0)
    return {
      at: now.toISOString(),
      tasks: sum(groups.rows),
      open: sum(groups.rows.filter(open)),
      groups: groups.rows.map(groupOf),
      withoutLiveWorker: named(without.rows),
      deadLetters: Number(letters.rows[0]!.count),
      unaccounted: UNACCOUNTED_REASONS.map(reason => ({
        reason,
        ...named(unaccounted.rows.filter(row => row.reason === reason)),
      })),
      total: Number(unaccounted.rows[0]?.total ?? 0),
      verified: from && at && { from: from.toISOString(), at: at.toISOString() },
    }
  }
}

interface GroupRow {
  type: string
  status: Status
  count: string
  oldest: Date
  overdue: string
}

interface NamedRow {
  task_id: string
  detail: string
  count: string
}

const groupOf = (row: GroupRow): RollCallGroup => ({
  type: row.type,
  status: row.status,
  count: Number(row.count),
  oldestCreatedAt: row.oldest.toISOString(),
  overdue: Number(row.overdue),
})

const named = (rows: readonly NamedRow[]): NamedTasks => ({
  count: Number(rows[0]?.count ?? 0),
  tasks: rows.map(row => ({ taskId: row.task_id, detail: row.detail })),
})

const instant = (column: string): string =>
  `to_char(${column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')`

/** The types with the most tasks by name, the rest as one. Types are users' words: there may be any number. */
const GROUPS = `
  WITH late AS (
    SELECT task_id FROM rollcall.deadlines WHERE due_at < now() - $1 * interval '1 millisecond'
  ), overdue AS (
    SELECT t.type, t.status, count(*) AS count FROM late JOIN rollcall.tasks t USING (task_id) GROUP BY 1, 2
  ), grouped AS (
    SELECT type, status, count(*) AS count, min(created_at) AS oldest FROM rollcall.tasks GROUP BY 1, 2
  ), largest AS (
    SELECT type FROM grouped GROUP BY type ORDER BY sum(count) DESC, type LIMIT $2
  )
  SELECT coalesce(l.type, $3) AS type, g.status, sum(g.count) AS count, min(g.oldest) AS oldest,
         coalesce(sum(o.count), 0) AS overdue
    FROM grouped g
    LEFT JOIN largest l USING (type)
    LEFT JOIN overdue o ON o.type = g.type AND o.status = g.status
   GROUP BY 1, 2
   ORDER BY coalesce(l.type, $3) = $3, 1,
            array_position('{PENDING,PROCESSING,RETRYING,SUCCESS,FAILED,CANCELLED}'::text[], g.status)`

const WITHOUT_WORKER = `
  SELECT t.task_id, count(*) OVER () AS count,
         CASE WHEN l.task_id IS NULL THEN 'no lease is known of attempt ' || t.attempt
              ELSE 'the lease of ' || l.worker || ' ended at ' || ${instant('l.held_until')}
         END AS detail
    FROM rollcall.tasks t
    LEFT JOIN rollcall.leases l ON l.task_id = t.task_id AND l.attempt = t.attempt
   WHERE t.status = 'PROCESSING' AND (l.task_id IS NULL OR l.lost OR l.held_until < now())
   ORDER BY l.held_until NULLS FIRST, t.task_id
   LIMIT ${NAMED_MAX}`

const UNACCOUNTED = `
  WITH unaccounted AS MATERIALIZED (
    SELECT t.task_id, 'no_timer' AS reason, t.updated_at AS since,
           'it is ' || t.status || ' and no timer is armed' AS detail
      FROM rollcall.tasks t
     WHERE t.status = ANY ($2::text[])
       AND NOT EXISTS (SELECT FROM rollcall.deadlines d WHERE d.task_id = t.task_id)
    UNION ALL
    SELECT task_id, 'overdue', due_at,
           timer || ' was due at ' || ${instant('due_at')}
      FROM rollcall.deadlines WHERE due_at < now() - $1 * interval '1 millisecond'
    UNION ALL
    SELECT task_id, 'set_aside', set_aside_at, reason FROM rollcall.set_aside
    UNION ALL
    SELECT task_id, CASE WHEN kind = 'row_missing' THEN 'not_in_read_model' ELSE 'drift' END, min(found_at),
           string_agg(kind || ': ' || detail, '; ' ORDER BY kind)
      FROM rollcall.drift GROUP BY task_id, kind = 'row_missing'
  ), ranked AS (
    SELECT *, count(*) OVER (PARTITION BY reason) AS count,
           row_number() OVER (PARTITION BY reason ORDER BY since, task_id) AS place
      FROM unaccounted
  )
  SELECT task_id, reason, left(detail, ${DETAIL_CHARACTERS}) AS detail, count,
         (SELECT count(DISTINCT task_id) FROM unaccounted) AS total
    FROM ranked WHERE place <= ${NAMED_MAX}
   ORDER BY reason, place`
