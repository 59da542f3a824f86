/**
 * From events of the log to changes of status: each task is folded as far as the event and no further. Tasks that are
 * not at hand are folded from their streams; what is kept of them is bounded by count and by bytes.
 */
import { LRUCache } from 'lru-cache'
import type { Logger } from 'pino'
import { evolve, fold } from '../domain/evolve.ts'
import type { Task } from '../domain/task.ts'
import { TaskCache } from '../engine/task-cache.ts'
import { decodeEvent, streamOf, taskIdOf } from '../eventlog/codec.ts'
import type { EventLog, StoredEvent } from '../eventlog/event-log.ts'
import { type StatusChange, statusOf } from './status-message.ts'

const KEPT = { tasks: 20_000, bytes: 32 * 1024 * 1024 }
/** Streams in one read: with the largest payloads these are 13 MB, and some more for what happened since. */
const STREAMS_AT_ONCE = 50
/** Tasks whose fault was told of. */
const TOLD_MAX = 10_000

/** `broken`: its stream cannot be folded so far. */
type State = Task | null | 'broken'

export class StatusChanges {
  readonly #log: EventLog
  readonly #logger: Logger
  readonly #kept = new TaskCache(KEPT)
  readonly #told = new LRUCache<string, true>({ max: TOLD_MAX })

  constructor(log: EventLog, logger: Logger) {
    this.#log = log
    this.#logger = logger
  }

  /**
   * The changes of status or step among these events, in their order. A task whose stream cannot be folded is passed
   * over; the projector sets it aside.
   *
   * @throws LogUnavailableError
   */
  async among(batch: readonly StoredEvent[]): Promise<StatusChange[]> {
    const states = await this.#before(batch)
    return batch.flatMap(stored => {
      const taskId = taskIdOf(stored.stream)
      const change = taskId === null ? null : this.#next(taskId, states, stored)
      return change ? [change] : []
    })
  }

  /** The newest change of each of these tasks, as their streams say now. @throws LogUnavailableError */
  async newest(taskIds: readonly string[]): Promise<StatusChange[]> {
    const changes: StatusChange[] = []
    for (const page of pages(taskIds)) {
      const streams = await this.#read(page)
      for (const taskId of page) {
        const states = new Map<string, State>([[taskId, null]])
        const all = (streams.get(streamOf(taskId)) ?? []).map(stored => this.#next(taskId, states, stored))
        const last = all.findLast(change => change !== null)
        if (last) changes.push(last)
      }
    }
    return changes
  }

  /** How each task stood before its first event of the batch. */
  async #before(batch: readonly StoredEvent[]): Promise<Map<string, State>> {
    const states = new Map<string, State>()
    const missing = new Map<string, number>()
    for (const { stream, revision } of batch) {
      const taskId = taskIdOf(stream)
      if (taskId === null || states.has(taskId) || missing.has(taskId)) continue
      const kept = this.#kept.get(taskId)
      if (revision === 0) states.set(taskId, null)
      else if (kept?.revision === revision - 1) states.set(taskId, kept)
      else missing.set(taskId, revision)
    }
    for (const page of pages([...missing.keys()])) {
      const streams = await this.#read(page)
      for (const taskId of page)
        states.set(taskId, this.#fold(taskId, streams.get(streamOf(taskId)) ?? [], missing.get(taskId)!))
    }
    return states
  }

  #read(taskIds: readonly string[]): Promise<Map<string, StoredEvent[]>> {
    return this.#log.readStreams(taskIds.map(taskId => ({ stream: streamOf(taskId), fromRevision: 0 })))
  }

  /** @param until the first revision that is not folded */
  #fold(taskId: string, events: readonly StoredEvent[], until: number): State {
    try {
      return fold(taskId, null, events.slice(0, until).map(decodeEvent))
    } catch (error) {
      this.#tell(taskId, error)
      return 'broken'
    }
  }

  #next(taskId: string, states: Map<string, State>, stored: StoredEvent): StatusChange | null {
    const before = states.get(taskId) ?? null
    if (before === 'broken') return null
    try {
      const recorded = decodeEvent(stored)
      const task = evolve(taskId, before, recorded)
      states.set(taskId, task)
      this.#keep(task, stored)
      const status = statusOf(task)
      const old = before && statusOf(before)
      if (old?.status === status.status && old.step === status.step) return null
      return { eventId: stored.id, what: recorded.event.type, at: recorded.metadata.at, status }
    } catch (error) {
      this.#tell(taskId, error)
      states.set(taskId, 'broken')
      return null
    }
  }

  /** Without what is large and has no part in a status. */
  #keep(task: Task, stored: StoredEvent): void {
    const lean: Task = Object.assign({}, task, { payload: null, context: null })
    if (lean.status === 'SUCCESS') lean.result = null
    const known = this.#kept.get(task.taskId)
    // Delivered again: the cache does not go back by itself.
    if (known && known.revision !== task.revision - 1) this.#kept.delete(task.taskId)
    const bytes = stored.type === 'TaskSubmitted' ? JSON.stringify(task.labels).length : stored.data.length
    this.#kept.set(lean, bytes)
  }

  #tell(taskId: string, error: unknown): void {
    if (this.#told.has(taskId)) return
    this.#told.set(taskId, true)
    this.#logger.error(
      { err: error, taskId },
      'the stream of a task cannot be read: its status is not published any more',
    )
  }
}

function pages(taskIds: readonly string[]): string[][] {
  const cut: string[][] = []
  for (let from = 0; from < taskIds.length; from += STREAMS_AT_ONCE)
    cut.push(taskIds.slice(from, from + STREAMS_AT_ONCE))
  return cut
}
