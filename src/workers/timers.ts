/**
 * The timers look at the database's clock for what is due, page by page, and ask the engine: what happens is
 * decided at the log, not on their view of it. Any number of processes may run them.
 */
import type { Pool } from 'pg'
import type { Logger } from 'pino'
import type { Command, CommandEnvelope } from '../domain/commands.ts'
import { type DeadlineTimer, nextDeadline } from '../domain/deadlines.ts'
import type { PendingTask, Task } from '../domain/task.ts'
import type { Answer, AnyRefusalCode } from '../engine/answer.ts'
import type { Clock } from '../engine/clock.ts'
import type { Engine } from '../engine/engine.ts'
import { inTransaction, timestamp } from '../projections/database.ts'
import { makeReady } from '../projections/work-state.ts'
import { Sweeps } from './sweeps.ts'
import { countByType, type WorkSignal } from './work-signal.ts'

export interface TimersOptions {
  pool: Pool
  engine: Engine
  clock: Clock
  signal: WorkSignal
  logger: Logger
  /** Name in the history of what fires. */
  id?: string
  intervalMs?: number
}

const PAGE = 500
/** Pages of one kind in one tick; the next tick goes on where this one stopped. */
const PAGES_PER_TICK = 4
/** A pause in ticks longer than this means that workers may have gone unheard. */
const GAP_MS = 5_000
const LONGEST_PAUSE_MS = 5_000

interface DueRow {
  task_id: string
  timer: DeadlineTimer
  attempt: number
  due_at: string
}

/**
 * Refusals that pass: the lease stands as lost and is asked again at the next tick. `not_due` is among them: the row
 * was taken by the database's clock itself, which can be milliseconds ahead of what the engine has sampled.
 */
const PASSING: ReadonlySet<AnyRefusalCode> = new Set([
  'not_due',
  'conflict',
  'overloaded',
  'log_unavailable',
  'shutting_down',
  'internal_error',
])

export class Timers {
  readonly #options: TimersOptions
  readonly #intervalMs: number
  readonly #sweeps: Sweeps
  #cursor: { dueAt: string; taskId: string } | null = null
  #timer: NodeJS.Timeout | null = null
  #ticking: Promise<void> | null = null
  #started = false
  #failures = 0

  constructor(options: TimersOptions) {
    this.#options = options
    this.#intervalMs = options.intervalMs ?? 200
    this.#sweeps = new Sweeps(options.pool, options.engine, options.clock, options.signal)
  }

  start(): void {
    if (this.#started) return
    this.#started = true
    // A look that is still under way since a stop plans the next one itself.
    if (!this.#ticking) this.#plan()
  }

  async stop(): Promise<void> {
    this.#started = false
    if (this.#timer) clearTimeout(this.#timer)
    await this.#ticking
  }

  /** Jittered, so that many processes do not look in step; slower while the database does not answer. */
  #plan(): void {
    const pauseMs =
      Math.min(this.#intervalMs * 2 ** this.#failures, LONGEST_PAUSE_MS) * (0.8 + 0.4 * Math.random())
    this.#timer = setTimeout(() => {
      this.#ticking = this.tick()
        .then(
          () => {
            this.#failures = 0
          },
          error => {
            this.#failures = Math.min(this.#failures + 1, 10)
            this.#options.logger.error({ err: error }, 'the timers could not look')
          },
        )
        .finally(() => {
          this.#ticking = null
          if (this.#started) this.#plan()
        })
    }, pauseMs)
  }

  /** One look at everything that may be due. */
  async tick(): Promise<void> {
    await this.#heedGap()
    await this.#fireDeadlines()
    await this.#takeLostLeases()
    await this.#returnOverdueOffers()
    await this.#sweeps.sweep()
  }

  /**
   * After a gap in the ticks every lease that was not taken yet is given anew, before any is looked at. Timers of
   * other processes wait at the row of ticks until that is done.
   */
  async #heedGap(): Promise<void> {
    const { pool, logger } = this.#options
    const ticked = await pool.query({
      name: 'timers-tick',
      text: `WITH last AS (SELECT ticked_at FROM rollcall.timer_ticks FOR UPDATE)
             UPDATE rollcall.timer_ticks SET ticked_at = clock_timestamp() FROM last
              WHERE clock_timestamp() - last.ticked_at < $1 * interval '1 millisecond'`,
      values: [GAP_MS],
    })
    if (ticked.rowCount) return
    await inTransaction(pool, async client => {
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
      if (gapMs < GAP_MS) return
      const granted = await client.query(
        `UPDATE rollcall.leases SET held_until = clock_timestamp() + lease_ms * interval '1 millisecond'
          WHERE NOT lost AND held_until < clock_timestamp() + lease_ms * interval '1 millisecond'`,
      )
      await client.query('UPDATE rollcall.timer_ticks SET ticked_at = clock_timestamp()')
      if (granted.rowCount)
        logger.warn({ gapMs, leases: granted.rowCount }, 'the timers had a gap: leases are granted anew')
    })
  }

  async #fireDeadlines(): Promise<void> {
    for (let pages = 0; pages < PAGES_PER_TICK; pages++) {
      const due = await this.#options.pool.query<DueRow>({
        name: 'deadlines-due',
        // What is set aside waits for a person; asking it again at every tick would only fill the logs.
        text: `SELECT task_id, timer, attempt, due_at::text AS due_at FROM rollcall.deadlines d
                WHERE due_at <= clock_timestamp() AND (due_at, task_id) > ($1::timestamptz, $2::uuid)
                  AND NOT EXISTS (SELECT 1 FROM rollcall.set_aside s WHERE s.task_id = d.task_id)
                ORDER BY due_at, task_id LIMIT ${PAGE}`,
        values: [
          this.#cursor?.dueAt ?? '-infinity',
          this.#cursor?.taskId ?? '00000000-0000-0000-0000-000000000000',
        ],
      })
      const last = due.rows.at(-1)
      // The page moves past every row it has seen, so rows that cannot be acted on hold nobody up (S09).
      this.#cursor = last && due.rows.length === PAGE ? { dueAt: last.due_at, taskId: last.task_id } : null
      await this.#makeDueReady(due.rows.filter(row => row.timer === 'not_before'))
      await this.#options.engine.executeMany(due.rows.flatMap(row => this.#commandOf(row)))
      if (!this.#cursor) return
    }
  }

  #commandOf(row: DueRow): CommandEnvelope[] {
    if (row.timer === 'not_before') return []
    const commandId = `timer:${row.attempt}:${row.due_at.replace(' ', 'T')}`
    if (row.timer === 'retry')
      return [this.#envelope(row.task_id, commandId, { trigger: 'RETRY', reason: null })]
    // The timers of the task as a whole outlast its attempts.
    const attempt = row.timer === 'queue' || row.timer === 'total' ? null : row.attempt
    const command = { trigger: 'TIMEOUT', timer: row.timer, attempt, lastHeartbeatAt: null } as const
    return [this.#envelope(row.task_id, commandId, command)]
  }

  /** The same deadline gives the same command id: of several processes that fire it the later ones are repetitions. */
  #envelope(taskId: string, commandId: string, command: Command): CommandEnvelope {
    return {
      taskId,
      command,
      commandId,
      actor: { kind: 'timer', id: this.#options.id ?? 'timers' },
      source: 'timer',
      correlationId: null,
      causationId: null,
      trace: null,
      ifRevision: null,
    }
  }

  /** A delayed task whose time has come becomes claimable and its next deadline takes the row over. */
  async #makeDueReady(rows: readonly DueRow[]): Promise<void> {
    if (rows.length === 0) return
    const { pool, engine, clock, signal } = this.#options
    const loaded = await engine.readMany(rows.map(row => row.task_id))
    const due: PendingTask[] = []
    for (const one of loaded.values())
      if (one.kind === 'task' && one.task.status === 'PENDING' && one.task.runAt <= clock.now())
        due.push(one.task)
    await inTransaction(pool, async client => {
      await makeReady(client, due)
      for (const task of due) await client.query(nextAfterNotBefore(task))
    })
    signal.ready(countByType(due))
  }

  async #takeLostLeases(): Promise<void> {
    for (let pages = 0; pages < PAGES_PER_TICK; pages++) {
      const lost = await this.#options.pool.query<{
        task_id: string
        attempt: number
        held_until: Date
        last_heartbeat_at: Date | null
      }>({
        name: 'leases-take',
        text: `UPDATE rollcall.leases SET lost = true
                WHERE task_id IN (SELECT task_id FROM rollcall.leases WHERE held_until <= clock_timestamp()
                                   ORDER BY held_until LIMIT ${PAGE} FOR UPDATE SKIP LOCKED)
                  AND held_until <= clock_timestamp()
               RETURNING task_id, attempt, held_until, last_heartbeat_at`,
      })
      if (lost.rows.length === 0) return
      const answers = await this.#options.engine.executeMany(
        lost.rows.map(row =>
          this.#envelope(row.task_id, `timer:${row.attempt}:lease`, {
            trigger: 'TIMEOUT',
            timer: 'lease',
            attempt: row.attempt,
            lastHeartbeatAt: row.last_heartbeat_at?.getTime() ?? null,
            leaseEndedAt: row.held_until.getTime(),
          }),
        ),
      )
      // Where the log says that the attempt is over, or where it just ended it, the lease has no purpose left.
      const over = lost.rows.filter((_, index) => !isPassing(answers[index]!)).map(row => row.task_id)
      // A lease that is not lost is a later attempt's.
      await this.#options.pool.query(
        'DELETE FROM rollcall.leases WHERE task_id = ANY ($1::uuid[]) AND lost',
        [over],
      )
      if (lost.rows.length < PAGE) return
    }
  }

  async #returnOverdueOffers(): Promise<void> {
    const returned = await this.#options.pool.query<{ type: string }>({
      name: 'offers-return',
      text: `WITH overdue AS (
               DELETE FROM rollcall.offers
                WHERE task_id IN (SELECT task_id FROM rollcall.offers WHERE held_until <= clock_timestamp()
                                   ORDER BY held_until LIMIT ${PAGE} FOR UPDATE SKIP LOCKED)
               RETURNING *)
             INSERT INTO rollcall.ready (task_id, type, priority, pending_since, attempt, times_offered)
             SELECT task_id, type, priority, pending_since, attempt, times_offered FROM overdue
             ON CONFLICT (task_id) DO NOTHING
             RETURNING type`,
    })
    if (returned.rows.length > 0) this.#options.signal.ready(countByType(returned.rows))
  }
}

const isPassing = (answer: Answer): boolean => answer.kind === 'refused' && PASSING.has(answer.code)

function nextAfterNotBefore(task: Task) {
  const next = nextDeadline(task, 'not_before')
  return {
    name: 'deadlines-after-not-before',
    text: `UPDATE rollcall.deadlines SET due_at = $2, timer = $3
            WHERE task_id = $1 AND timer = 'not_before' AND attempt = $4`,
    values: [task.taskId, timestamp(next?.at ?? null), next?.timer, task.attempt],
  }
}
