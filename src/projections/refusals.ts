/**
 * Refused commands are kept beside their task: the first 20, the last 20 and how many there were. They are noted
 * in memory and written in batches, so that saying no costs the database little; what it does not take in time is
 * dropped and counted, never waited for.
 *
 * idle -> waiting (a moment, or until a batch is full) -> writing -> idle, or -> pausing -> writing (again the same
 * batch) while the database does not answer.
 */
import { randomUUID } from 'node:crypto'
import type { Pool, QueryConfig } from 'pg'
import type { Logger } from 'pino'
import type { CommandEnvelope } from '../domain/commands.ts'
import type { Actor, Instant, Source } from '../domain/events.ts'
import { cutText, storableText } from '../domain/text.ts'
import type { Answer, AnyRefusalCode } from '../engine/answer.ts'
import type { Clock } from '../engine/clock.ts'
import { isUnfit, timestamp } from './database.ts'

export interface RefusalsOptions {
  pool: Pool
  clock: Clock
  logger: Logger
  /** Told how many refusals were not kept. */
  onDropped?: (count: number) => void
  intervalMs?: number
  /** Refusals that may wait for the database, those of the batch being written included. */
  waiting?: number
}

export interface KeptRefusal {
  /** Its place among the refusals of the task, from 1. */
  number: number
  /** The task's when it was refused. */
  revision: number | null
  code: AnyRefusalCode
  message: string
  trigger: string
  actor: Actor
  source: Source
  commandId: string
  at: Date
}

export interface TaskRefusals {
  count: number
  /** The first ones, up to 20. */
  first: KeptRefusal[]
  /** The last ones beyond those, up to 20. */
  last: KeptRefusal[]
}

const FIRST = 20
const BATCH = 500
const MESSAGE_BYTES = 1_000
const ID_BYTES = 256
const WRITE_MS = 10_000
const RETRY_MS = { first: 250, longest: 5_000 }
const STOP_MS = 2_000

/** These say something about the service, nothing about the task. */
const OF_THE_SERVICE: ReadonlySet<AnyRefusalCode> = new Set([
  'overloaded',
  'log_unavailable',
  'shutting_down',
  'internal_error',
])

/** A row for `rollcall.keep_refusals`; the columns' names are the table's. */
interface Row {
  task_id: string
  revision: number
  code: string
  message: string
  trigger: string
  actor_kind: string
  actor_id: string
  source: string
  command_id: string
  refused_at: Instant
}

export class Refusals {
  readonly #options: RefusalsOptions
  readonly #intervalMs: number
  readonly #most: number
  readonly #queue: Row[] = []
  #batch: { id: string; rows: Row[] } | null = null
  #timer: NodeJS.Timeout | null = null
  #writing: Promise<void> | null = null
  #pauseMs = RETRY_MS.first
  #failing = false
  #stopping: Promise<void> | null = null

  constructor(options: RefusalsOptions) {
    this.#options = options
    this.#intervalMs = options.intervalMs ?? 200
    this.#most = options.waiting ?? 5_000
  }

  /**
   * Notes an answer that is a refusal about a task. Not kept: what a service under stress says, what strangers ask of
   * tasks that are not there, and what timers ask on a view that was behind.
   */
  record(envelope: CommandEnvelope, answer: Answer): void {
    if (answer.kind !== 'refused' || answer.task === null || envelope.actor.kind === 'timer') return
    if (OF_THE_SERVICE.has(answer.code)) return
    if (this.#stopping || this.#waiting >= this.#most) {
      this.#options.onDropped?.(1)
      return
    }
    this.#queue.push(
      rowOf(envelope, answer.code, answer.message, answer.task.revision, this.#options.clock.now()),
    )
    if (this.#queue.length === BATCH && !this.#failing) this.#plan(0)
    else if (!this.#timer) this.#plan(this.#intervalMs)
  }

  get #waiting(): number {
    return this.#queue.length + (this.#batch?.rows.length ?? 0)
  }

  #plan(ms: number): void {
    if (this.#stopping || this.#writing) return
    if (this.#timer) clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      this.#timer = null
      this.#write()
    }, ms)
  }

  /** Writes one batch and plans the next one. Never rejects. */
  #write(): Promise<void> {
    this.#writing ??= this.#writeBatch().finally(() => {
      this.#writing = null
      if (this.#failing) this.#plan(this.#pauseMs)
      else if (this.#queue.length > 0) this.#plan(this.#queue.length >= BATCH ? 0 : this.#intervalMs)
    })
    return this.#writing
  }

  async #writeBatch(): Promise<void> {
    // A batch whose outcome is not known is written again as it was, so that it counts once.
    this.#batch ??= { id: randomUUID(), rows: this.#queue.splice(0, BATCH) }
    const { id, rows } = this.#batch
    if (rows.length === 0) {
      this.#batch = null
      return
    }
    try {
      await this.#options.pool.query(keepStatement(id, rows))
      this.#batch = null
      this.#failing = false
      this.#pauseMs = RETRY_MS.first
    } catch (error) {
      if (isUnfit(error)) {
        this.#batch = null
        this.#drop(rows.length, 'the database refuses them', error)
        return
      }
      if (!this.#failing)
        this.#options.logger.warn(
          { err: error, waiting: this.#waiting },
          'refusals cannot be written; they wait',
        )
      else this.#pauseMs = Math.min(this.#pauseMs * 2, RETRY_MS.longest)
      this.#failing = true
    }
  }

  #drop(count: number, reason: string, error?: unknown): void {
    this.#options.onDropped?.(count)
    this.#options.logger.error({ count, err: error }, `refusals were not kept: ${reason}`)
  }

  /** What is kept of a task's refusals; those of the last moment may be missing. @throws when the database does not answer */
  async read(taskId: string): Promise<TaskRefusals> {
    const found = await this.#options.pool.query<KeptRow>({
      name: 'refusals-of-task',
      text: `SELECT c.count, r.number, r.revision, r.code, r.message, r.trigger, r.actor_kind, r.actor_id, r.source,
                    r.command_id, r.refused_at
               FROM rollcall.refusal_counts c JOIN rollcall.refusals r USING (task_id)
              WHERE task_id = $1 ORDER BY r.number`,
      values: [taskId],
    })
    const kept = found.rows.map(keptOf)
    return {
      count: Number(found.rows[0]?.count ?? 0),
      first: kept.filter(({ number }) => number <= FIRST),
      last: kept.filter(({ number }) => number > FIRST),
    }
  }

  /** Writes what waits, for a bounded time; the rest is dropped. Safe to call twice. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop()
    return this.#stopping
  }

  async #stop(): Promise<void> {
    if (this.#timer) clearTimeout(this.#timer)
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<void>(resolve => {
      timer = setTimeout(resolve, STOP_MS)
    })
    await Promise.race([this.#writeAll(), late])
    clearTimeout(timer)
    const left = this.#waiting
    this.#queue.length = 0
    if (left > 0) this.#drop(left, 'the service stops and the database does not take them')
  }

  /** Until nothing waits or the database fails; a batch under way before may have failed already. */
  async #writeAll(): Promise<void> {
    await this.#writing
    while (this.#waiting > 0) {
      await this.#write()
      if (this.#failing) return
    }
  }
}

/** pg takes a timeout for each statement; its types do not say so. */
function keepStatement(id: string, rows: readonly Row[]): QueryConfig & { query_timeout: number } {
  return {
    name: 'keep-refusals',
    text: 'SELECT rollcall.keep_refusals($1, $2)',
    values: [id, JSON.stringify(rows.map(row => ({ ...row, refused_at: timestamp(row.refused_at) })))],
    query_timeout: WRITE_MS,
  }
}

interface KeptRow {
  count: string
  number: string
  revision: number | null
  code: AnyRefusalCode
  message: string
  trigger: string
  actor_kind: Actor['kind']
  actor_id: string
  source: Source
  command_id: string
  refused_at: Date
}

const keptOf = (row: KeptRow): KeptRefusal => ({
  number: Number(row.number),
  revision: row.revision,
  code: row.code,
  message: row.message,
  trigger: row.trigger,
  actor: { kind: row.actor_kind, id: row.actor_id },
  source: row.source,
  commandId: row.command_id,
  at: row.refused_at,
})

function rowOf(
  { taskId, command, actor, source, commandId }: CommandEnvelope,
  code: AnyRefusalCode,
  message: string,
  revision: number,
  at: Instant,
): Row {
  const text = (some: string, bytes: number) => cutText(storableText(some), bytes)
  return {
    task_id: taskId,
    revision,
    code,
    message: text(message, MESSAGE_BYTES),
    trigger: command.trigger === 'TIMEOUT' ? `TIMEOUT:${command.timer}` : command.trigger,
    actor_kind: actor.kind,
    actor_id: text(actor.id, ID_BYTES),
    source,
    command_id: text(commandId, ID_BYTES),
    refused_at: at,
  }
}
