/**
 * From events of the log to their tasks: each task is folded as far as the event and no further, so that no state of it
 * is left out. Tasks that are not at hand are folded from their streams; what is kept of them is bounded by count and
 * by bytes.
 */
import type { RecordedEvent } from '../domain/events.ts'
import { evolve, fold } from '../domain/evolve.ts'
import type { Task } from '../domain/task.ts'
import { decodeEvent, streamOf, taskIdOf } from '../eventlog/codec.ts'
import type { EventLog, StoredEvent } from '../eventlog/event-log.ts'
import { TaskCache } from './task-cache.ts'

/**
 * An event, and its task before and after it. What is large is not there for sure: a task that was kept has lost its
 * payload, its context and its result.
 */
export interface Folded {
  stored: StoredEvent
  recorded: RecordedEvent
  before: Task | null
  task: Task
}

/** `broken`: its stream cannot be folded so far. */
type State = Task | null | 'broken'

const KEPT = { tasks: 20_000, bytes: 32 * 1024 * 1024 }
/** Streams in one read: with the largest payloads these are 13 MB, and some more for what happened since. */
const STREAMS_AT_ONCE = 50

export class TaskFolds {
  readonly #log: Pick<EventLog, 'readStreams'>
  readonly #onBroken: (taskId: string, error: unknown) => void
  readonly #kept: TaskCache

  /** @param onBroken told of a task whose stream cannot be folded, each time it is come upon */
  constructor(
    log: Pick<EventLog, 'readStreams'>,
    onBroken: (taskId: string, error: unknown) => void,
    kept: { tasks: number; bytes: number } = KEPT,
  ) {
    this.#log = log
    this.#onBroken = onBroken
    this.#kept = new TaskCache(kept)
  }

  /**
   * Those of these events that are of a task, in their order. A task whose stream cannot be folded is passed over; the
   * projector sets it aside.
   *
   * @throws LogUnavailableError
   */
  async among(batch: readonly StoredEvent[]): Promise<Folded[]> {
    const states = await this.#before(batch)
    return batch.flatMap(stored => {
      const taskId = taskIdOf(stored.stream)
      const folded = taskId === null ? null : this.#next(taskId, states, stored)
      return folded ? [folded] : []
    })
  }

  /**
   * Every event of each of these tasks, one task after another, as their streams say now; of one that cannot be folded
   * those up to there.
   *
   * @throws LogUnavailableError
   */
  async *of(taskIds: readonly string[]): AsyncGenerator<Folded[]> {
    for (const page of pages(taskIds)) {
      const streams = await this.#read(page)
      for (const taskId of page) {
        const states = new Map<string, State>([[taskId, null]])
        yield (streams.get(streamOf(taskId)) ?? []).flatMap(
          stored => this.#next(taskId, states, stored) ?? [],
        )
      }
    }
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
      this.#onBroken(taskId, error)
      return 'broken'
    }
  }

  #next(taskId: string, states: Map<string, State>, stored: StoredEvent): Folded | null {
    const before = states.get(taskId) ?? null
    if (before === 'broken') return null
    try {
      const recorded = decodeEvent(stored)
      const task = evolve(taskId, before, recorded)
      states.set(taskId, task)
      this.#keep(task, stored)
      return { stored, recorded, before, task }
    } catch (error) {
      this.#onBroken(taskId, error)
      states.set(taskId, 'broken')
      return null
    }
  }

  #keep(task: Task, stored: StoredEvent): void {
    const lean: Task = Object.assign({}, task, { payload: null, context: null })
    if (lean.status === 'SUCCESS') lean.result = null
    const known = this.#kept.get(task.taskId)
    // Delivered again: the cache does not go back by itself.
    if (known && known.revision !== task.revision - 1) this.#kept.delete(task.taskId)
    const bytes = stored.type === 'TaskSubmitted' ? JSON.stringify(task.labels).length : stored.data.length
    this.#kept.set(lean, bytes)
  }
}

function pages(taskIds: readonly string[]): string[][] {
  const cut: string[][] = []
  for (let from = 0; from < taskIds.length; from += STREAMS_AT_ONCE)
    cut.push(taskIds.slice(from, from + STREAMS_AT_ONCE))
  return cut
}
