/**
 * The active projector follows the log and keeps the read model. One batch, its rows and its checkpoint are one
 * transaction.
 *
 * Modes: standing by (another holds the lease) -> projecting -> standing by (fenced, or the database failed)
 * -> … -> stopped. A log that went backwards is an alarm: it keeps the mode `halted` until it is restarted.
 */
import { randomUUID } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import type { Logger } from 'pino'
import { evolve } from '../domain/evolve.ts'
import type { Task } from '../domain/task.ts'
import { TaskCache } from '../engine/task-cache.ts'
import { TaskReader } from '../engine/task-reader.ts'
import { decodeEvent, isForeign, taskIdOf } from '../eventlog/codec.ts'
import {
  type Checkpoint,
  type EventLog,
  LogWentBackwardsError,
  READ_LIMITS,
  type StoredEvent,
} from '../eventlog/event-log.ts'
import { ProjectorFencedError, type ReadModel, type SetAside, type Written } from './read-model.ts'

export interface ProjectorOptions {
  log: EventLog
  readModel: ReadModel
  logger: Logger
  /**
   * Folded tasks that the engine of this process keeps, where there is one: a fold that is there already need not
   * be made again. Without it the projector folds for itself.
   */
  cache?: TaskCache
  /** Told of the tasks that moved, after the commit. */
  onMoved?: (tasks: readonly Task[]) => void
  leaseMs?: number
  standbyMs?: number
}

export const PROJECTOR_NAME = 'tasks'
const WRITTEN_MAX = 20_000
/** The pause after a batch, longer after a larger one; the first event after a quiet time never waits. */
const GATHER = { leastMs: 1, mostMs: 15, eventsPerMs: 10 }
const RESTART_MS = { first: 100, longest: 2_000 }

export class Projector {
  readonly #options: ProjectorOptions
  readonly #leaseMs: number
  readonly #holder = randomUUID()
  readonly #cache: TaskCache
  readonly #reader: TaskReader
  /** Revisions that were written: a fold may be ahead of the batch, and its later events then ask for nothing. */
  readonly #written = new LRUCache<string, number>({
    maxSize: WRITTEN_MAX,
    sizeCalculation: () => 1,
  })
  #abort = new AbortController()
  #running: Promise<void> | null = null
  #checkpoint: Checkpoint | null = null
  #renewedAt = 0
  #pauseMs = RESTART_MS.first
  mode: 'stopped' | 'standing_by' | 'projecting' | 'halted' = 'stopped'
  #toldForeign = false
  /** Why it is halted and what to do, for people. */
  haltedBecause: string | null = null

  constructor(options: ProjectorOptions) {
    this.#options = options
    this.#leaseMs = options.leaseMs ?? 5_000
    this.#cache = options.cache ?? new TaskCache()
    this.#reader = new TaskReader(options.log, this.#cache)
  }

  start(): void {
    if (this.#running) return
    this.#abort = new AbortController()
    this.#running = this.#run(this.#abort.signal).finally(() => {
      this.#running = null
      if (this.mode !== 'halted') this.mode = 'stopped'
    })
  }

  async stop(): Promise<void> {
    this.#abort.abort()
    await this.#running
  }

  async #run(signal: AbortSignal): Promise<void> {
    const { readModel, logger, standbyMs = 1_000 } = this.#options
    while (!signal.aborted) {
      this.mode = 'standing_by'
      try {
        const held = await readModel.acquire(PROJECTOR_NAME, this.#holder, this.#leaseMs)
        if (!held) {
          await sleep(standbyMs, signal)
          continue
        }
        logger.info({ checkpoint: held.checkpoint }, 'projecting')
        this.mode = 'projecting'
        this.#checkpoint = held.checkpoint
        // Another projector may have written, or rows may have been repaired, since this one last held the lease.
        this.#written.clear()
        this.#renewedAt = performance.now()
        await this.#options.log.follow(held.checkpoint, batch => this.#handle(batch), signal)
      } catch (error) {
        if (error instanceof LogWentBackwardsError) {
          this.mode = 'standing_by'
          this.haltedBecause = await whyHalted(this.#checkpoint, this.#options.log)
          this.mode = 'halted'
          logger.fatal({ err: error }, `the projector halts: ${this.haltedBecause}`)
          break
        }
        if (error instanceof ProjectorFencedError) logger.warn({ err: error }, 'standing by')
        else logger.error({ err: error }, 'projecting failed, beginning again from the checkpoint')
        this.mode = 'standing_by'
        await sleep(this.#pauseMs, signal)
        this.#pauseMs = Math.min(this.#pauseMs * 2, RESTART_MS.longest)
      }
    }
    await readModel
      .giveUp(PROJECTOR_NAME, this.#holder)
      .catch(error =>
        logger.warn({ err: error }, 'the projector lease could not be given up; it ends by itself'),
      )
  }

  async #handle(batch: readonly StoredEvent[]): Promise<void> {
    const { readModel, logger, onMoved } = this.#options
    const last = batch.at(-1)
    if (!last) {
      if (performance.now() - this.#renewedAt < this.#leaseMs / 4) return
      await readModel.renew(PROJECTOR_NAME, this.#holder, this.#leaseMs, this.#checkpoint)
      this.#renewedAt = performance.now()
      return
    }
    const { tasks, aside: unread } = await this.#foldBatch(batch)
    const { moved, aside } = await this.#write(tasks, unread, last)
    for (const one of aside) logger.error(one, 'task set aside: it cannot be projected')
    for (const task of tasks) this.#written.set(task.taskId, task.revision)
    this.#renewedAt = performance.now()
    this.#pauseMs = RESTART_MS.first
    onMoved?.(moved)
    // A transaction costs much the same for one event as for a hundred, and a task that moved twice meanwhile is
    // written once: under load events gather for a moment. Where more are waiting already there is no need to.
    if (batch.length < READ_LIMITS.events) await sleep(gatherMs(batch.length), this.#abort.signal)
  }

  /** In one transaction: the rows, the tasks set aside, the checkpoint. */
  async #write(tasks: readonly Task[], unread: readonly SetAside[], last: StoredEvent): Promise<Written> {
    const to = { logId: this.#options.log.id, position: last.position, eventId: last.id }
    const written = await this.#options.readModel.write(tasks, unread, {
      name: PROJECTOR_NAME,
      holder: this.#holder,
      leaseMs: this.#leaseMs,
      from: this.#checkpoint,
      to,
      eventAt: tasks.reduce<number | null>((at, task) => Math.max(at ?? 0, task.updatedAt), null),
    })
    this.#checkpoint = to
    return written
  }

  /**
   * Folds every task of the batch to its newest state. Tasks that are not cached, or whose next event is not the
   * one expected, are folded from their streams.
   */
  async #foldBatch(batch: readonly StoredEvent[]): Promise<{ tasks: Task[]; aside: SetAside[] }> {
    const touched = new Map<string, Task | null>()
    const refold = new Set<string>()
    for (const stored of batch) {
      const taskId = taskIdOf(stored.stream)
      if (taskId === null) this.#tellForeign(stored)
      if (taskId === null || refold.has(taskId)) continue
      if (stored.revision <= (this.#written.get(taskId) ?? -1)) continue
      const before = touched.get(taskId) ?? this.#cache.get(taskId)
      // The cache is there already: delivered again, or folded by the engine when it appended.
      if (before && before.revision >= stored.revision) touched.set(taskId, before)
      else if (stored.revision !== (before ? before.revision + 1 : 0)) refold.add(taskId)
      else {
        try {
          const task = evolve(taskId, before, decodeEvent(stored))
          this.#cache.set(task, stored.data.length)
          touched.set(taskId, task)
        } catch {
          refold.add(taskId)
        }
      }
    }
    const aside: SetAside[] = []
    const loaded = refold.size > 0 ? await this.#reader.readMany([...refold]) : new Map()
    for (const [taskId, one] of loaded) {
      touched.delete(taskId)
      if (one.kind === 'task') touched.set(taskId, one.task)
      else if (one.kind === 'broken')
        aside.push({ taskId, revision: lastRevision(batch, taskId), reason: one.error.message })
    }
    return { tasks: [...touched.values()].filter(task => task !== null), aside }
  }

  /** Says once that somebody else writes among the streams of tasks; such streams are passed over. */
  #tellForeign({ stream, position }: StoredEvent): void {
    if (this.#toldForeign || !isForeign(stream)) return
    this.#toldForeign = true
    this.#options.logger.warn(
      { stream, position },
      'a stream is no task: what another hand wrote is passed over, here and from now on',
    )
  }
}

async function whyHalted(checkpoint: Checkpoint | null, log: EventLog): Promise<string> {
  const id = idOf(log)
  const movedTo = await log.sealedFor().catch(() => null)
  if (id && checkpoint && checkpoint.logId === movedTo)
    return `log ${id} was moved to log ${movedTo}, and the read model with it: start the services with the new --log`
  return checkpoint && id && checkpoint.logId !== id
    ? `the read model was made from log ${checkpoint.logId}, and this is log ${id}: start with the --log it was ` +
        'made from, or move that log here with rollcall log copy'
    : 'the log went backwards: it does not hold what the read model was made from; docs/operations.md says what to do'
}

/** Null where what was reached has no identity. */
function idOf(log: EventLog): string | null {
  try {
    return log.id
  } catch {
    return null
  }
}

function lastRevision(batch: readonly StoredEvent[], taskId: string): number {
  return batch.findLast(event => taskIdOf(event.stream) === taskId)?.revision ?? 0
}

/** Waits, or ends early when the signal is aborted. */
function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    if (signal.aborted) return resolve()
    const done = (): void => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
  })
}

const gatherMs = (events: number): number =>
  Math.min(GATHER.mostMs, Math.max(GATHER.leastMs, events / GATHER.eventsPerMs))
