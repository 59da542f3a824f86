/** Folds tasks from their streams, catching a cached fold up from its revision. */
import { fold } from '../domain/evolve.ts'
import type { Task } from '../domain/task.ts'
import { decodeEvent, streamOf } from '../eventlog/codec.ts'
import type { EventLog } from '../eventlog/event-log.ts'
import type { TaskCache } from './task-cache.ts'

export type Loaded = { kind: 'task'; task: Task } | { kind: 'absent' } | { kind: 'broken'; error: Error }

/** The task where there is one that can be folded. */
export const taskIn = (loaded: Loaded | undefined): Task | null =>
  loaded?.kind === 'task' ? loaded.task : null

const READ_TASKS_MAX = 500

export class TaskReader {
  readonly #log: EventLog
  readonly #cache: TaskCache
  /** Reads asked in the same turn of the event loop share one round trip. */
  #waiting: Map<string, { resolve: (loaded: Loaded) => void; reject: (error: unknown) => void }[]> | null =
    null

  constructor(log: EventLog, cache: TaskCache) {
    this.#log = log
    this.#cache = cache
  }

  /** The task as it stands in the log now. @throws LogUnavailableError */
  read(taskId: string): Promise<Loaded> {
    return new Promise((resolve, reject) => {
      if (!this.#waiting) {
        this.#waiting = new Map()
        setImmediate(() => void this.#flush())
      }
      const waiters = this.#waiting.get(taskId)
      if (waiters) waiters.push({ resolve, reject })
      else this.#waiting.set(taskId, [{ resolve, reject }])
    })
  }

  async #flush(): Promise<void> {
    const waiting = this.#waiting!
    this.#waiting = null
    const ids = [...waiting.keys()]
    for (let from = 0; from < ids.length; from += READ_TASKS_MAX) {
      const page = ids.slice(from, from + READ_TASKS_MAX)
      try {
        const loaded = await this.readMany(page)
        for (const id of page) for (const waiter of waiting.get(id)!) waiter.resolve(loaded.get(id)!)
      } catch (error) {
        for (const id of page) for (const waiter of waiting.get(id)!) waiter.reject(error)
      }
    }
  }

  /** Many tasks as they stand in the log now, each with what could be made of it. @throws LogUnavailableError */
  async readMany(taskIds: readonly string[]): Promise<Map<string, Loaded>> {
    // An id that is asked twice is read once.
    const known = new Map(taskIds.map(id => [id, this.#cache.get(id)]))
    const streams = await this.#log.readStreams(
      [...known].map(([id, task]) => ({ stream: streamOf(id), fromRevision: (task?.revision ?? -1) + 1 })),
    )
    const loaded = new Map<string, Loaded>()
    for (const [id, before] of known) {
      const events = streams.get(streamOf(id)) ?? []
      try {
        const task = fold(id, before, events.map(decodeEvent))
        loaded.set(id, task ? { kind: 'task', task } : { kind: 'absent' })
        if (task && events.length > 0) {
          const bytes = events.reduce((sum, event) => sum + event.data.length, 0)
          this.#cache.set(task, bytes)
        }
      } catch (error) {
        this.#cache.delete(id)
        loaded.set(id, { kind: 'broken', error: error as Error })
      }
    }
    return loaded
  }
}
