/**
 * The active projector follows the log and keeps the read model. One batch, its rows and its checkpoint are one
 * transaction.
 */
import { LRUCache } from 'lru-cache'
import type { Logger } from 'pino'
import { evolve } from '../domain/evolve.ts'
import type { Task } from '../domain/task.ts'
import { TaskCache } from '../engine/task-cache.ts'
import { TaskReader } from '../engine/task-reader.ts'
import { decodeEvent, isForeign, taskIdOf } from '../eventlog/codec.ts'
import type { EventLog, StoredEvent } from '../eventlog/event-log.ts'
import { Follower, type Stride } from './follower.ts'
import type { ReadModel, SetAside, Written } from './read-model.ts'

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

export class Projector {
  readonly #options: ProjectorOptions
  readonly #follower: Follower
  readonly #cache: TaskCache
  readonly #reader: TaskReader
  /** Revisions that were written: a fold may be ahead of the batch, and its later events then ask for nothing. */
  readonly #written = new LRUCache<string, number>({
    maxSize: WRITTEN_MAX,
    sizeCalculation: () => 1,
  })
  #toldForeign = false

  constructor(options: ProjectorOptions) {
    this.#options = options
    this.#cache = options.cache ?? new TaskCache()
    this.#reader = new TaskReader(options.log, this.#cache)
    const { log, readModel, logger, leaseMs, standbyMs } = options
    this.#follower = new Follower({
      name: PROJECTOR_NAME,
      log,
      places: readModel,
      logger,
      words: { who: 'the projector', does: 'projecting', made: 'the read model was made' },
      // Another projector may have written, or rows may have been repaired, since this one last held the lease.
      onTaken: () => this.#written.clear(),
      onBatch: (batch, stride) => this.#handle(batch, stride),
      leaseMs,
      standbyMs,
    })
  }

  get mode(): 'stopped' | 'standing_by' | 'projecting' | 'halted' {
    const { mode } = this.#follower
    return mode === 'following' ? 'projecting' : mode
  }

  /** Why it is halted and what to do, for people. */
  get haltedBecause(): string | null {
    return this.#follower.haltedBecause
  }

  start(): void {
    this.#follower.start()
  }

  stop(): Promise<void> {
    return this.#follower.stop()
  }

  async #handle(batch: readonly StoredEvent[], stride: Stride): Promise<void> {
    const { logger, onMoved } = this.#options
    const { tasks, aside: unread } = await this.#foldBatch(batch)
    const { moved, aside } = await this.#write(tasks, unread, stride)
    for (const one of aside) logger.error(one, 'task set aside: it cannot be projected')
    for (const task of tasks) this.#written.set(task.taskId, task.revision)
    onMoved?.(moved)
  }

  /** In one transaction: the rows, the tasks set aside, the checkpoint. */
  #write(tasks: readonly Task[], unread: readonly SetAside[], stride: Stride): Promise<Written> {
    const eventAt = tasks.reduce<number | null>((at, task) => Math.max(at ?? 0, task.updatedAt), null)
    return this.#options.readModel.write(tasks, unread, { ...stride, eventAt })
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

function lastRevision(batch: readonly StoredEvent[], taskId: string): number {
  return batch.findLast(event => taskIdOf(event.stream) === taskId)?.revision ?? 0
}
