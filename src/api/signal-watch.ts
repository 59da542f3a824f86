/**
 * Heartbeats, progress and places in the queue of the tasks that somebody waits for here. Those are no events, so they are
 * looked at: the leases of all running ones by one query a second, the places of waiting ones more rarely, and no more of
 * either at a time than a bound; with more, each has its turn.
 */
import { NO_SIGNALS, type Signals } from '../domain/signals.ts'
import type { ProcessingTask, Task } from '../domain/task.ts'
import { signalTag } from './etag.ts'
import type { AppParts } from './parts.ts'
import type { TaskView } from './schemas/tasks.ts'
import { taskAnswer } from './task-answer.ts'

type Tell = (view: TaskView) => void

const TICK_MS = 1_000
const RUNNING_MAX = 1_000
/** Places are counted one by one, so there are fewer of them, and on every fifth tick. */
const WAITING_MAX = 100
const WAITING_TICKS = 5

interface Entry {
  task: Task
  /** Who is told, and which signals it knows; undefined where it knows none. */
  told: Map<Tell, number | null | undefined>
}

export class SignalWatch {
  readonly #parts: AppParts
  readonly #entries = new Map<string, Entry>()
  #timer: NodeJS.Timeout | null = null
  #looking = false
  #ticks = 0
  #turns = { running: 0, waiting: 0 }

  constructor(parts: AppParts) {
    this.#parts = parts
  }

  /**
   * Tells when the signals of this task are others than these.
   *
   * @returns ends it; safe to call twice
   */
  add(task: Task, signals: Signals, tell: Tell): () => void {
    const { taskId } = task
    const entry = this.#entries.get(taskId) ?? { task, told: new Map() }
    this.#entries.set(taskId, entry)
    this.moved(task)
    entry.told.set(tell, signalTag(signals))
    this.#timer ??= setInterval(() => void this.#look(), TICK_MS).unref()
    return () => {
      entry.told.delete(tell)
      if (entry.told.size === 0 && this.#entries.get(taskId) === entry) this.#entries.delete(taskId)
      if (this.#entries.size === 0) this.stop()
    }
  }

  /** A task that somebody waits for is further than it was: what is known beside its stream is told anew. */
  moved(task: Task): void {
    const entry = this.#entries.get(task.taskId)
    if (!entry || entry.task.revision >= task.revision) return
    entry.task = task
    for (const tell of entry.told.keys()) entry.told.set(tell, undefined)
  }

  /** Looks no more; safe to call twice. */
  stop(): void {
    if (this.#timer) clearInterval(this.#timer)
    this.#timer = null
  }

  async #look(): Promise<void> {
    // One that takes longer than a tick is not joined by another.
    if (this.#looking) return
    this.#looking = true
    try {
      await this.#lookAtRunning()
      if (this.#ticks++ % WAITING_TICKS === 0) await this.#lookAtWaiting()
    } catch (err) {
      this.#parts.logger.debug({ err }, 'signals cannot be read; they are looked at again')
    } finally {
      this.#looking = false
    }
  }

  async #lookAtRunning(): Promise<void> {
    const tasks = this.#turn('PROCESSING', 'running', RUNNING_MAX) as ProcessingTask[]
    if (tasks.length === 0) return
    const leases = await this.#parts.workState.leaseSignals(tasks)
    for (const task of tasks)
      await this.#tell(task, { ...NO_SIGNALS, lease: leases.get(task.taskId) ?? null })
  }

  async #lookAtWaiting(): Promise<void> {
    for (const task of this.#turn('PENDING', 'waiting', WAITING_MAX))
      await this.#tell(task, await this.#parts.workState.signals(task))
  }

  /** Up to `max` of those in this status, going on after those of the last time. */
  #turn(status: Task['status'], which: 'running' | 'waiting', max: number): Task[] {
    const all = [...this.#entries.values()].map(({ task }) => task).filter(one => one.status === status)
    if (all.length <= max) return all
    const from = this.#turns[which] % all.length
    this.#turns[which] = from + max
    return [...all.slice(from), ...all.slice(0, from)].slice(0, max)
  }

  async #tell(task: Task, signals: Signals): Promise<void> {
    const tag = signalTag(signals)
    const entry = this.#entries.get(task.taskId)
    const isLate = () => entry?.task === task && [...entry.told.values()].some(known => known !== tag)
    if (!entry || !isLate()) return
    const view = await taskAnswer(this.#parts, task, signals)
    // It may have moved meanwhile.
    if (!isLate()) return
    for (const [tell, known] of [...entry.told]) {
      if (known === tag) continue
      entry.told.set(tell, tag)
      tell(view)
    }
  }
}
