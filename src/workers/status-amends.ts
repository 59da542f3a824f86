/**
 * Puts right what the topic may keep wrong. A send whose outcome is not known, or that of a publisher that was replaced
 * meanwhile, can arrive after what was sent later, and an old status would then stand as the newest. So the newest change
 * of each of its tasks is sent when it has arrived or can arrive no more.
 */
import type { Logger } from 'pino'
import { growing, pause } from '../broker/deadline.ts'
import type { StatusChanges } from './status-changes.ts'
import type { StatusChange } from './status-message.ts'

export interface StatusAmendsOptions {
  changes: StatusChanges
  send: (changes: readonly StatusChange[]) => Promise<void>
  logger: Logger
}

const WAITING_MAX = 20_000
const AT_ONCE = 1_000
/** What is under way at a stop gets so long. */
const STOP_MS = 500
const RETRY = { firstMs: 500, lastMs: 10_000 }

export class StatusAmends {
  readonly #options: StatusAmendsOptions
  /** Tasks, and when by `performance.now()` their newest change is to be sent. */
  readonly #waiting = new Map<string, number>()
  #stopping = new AbortController()
  #running: Promise<void> | null = null

  constructor(options: StatusAmendsOptions) {
    this.#options = options
  }

  /** How many tasks wait for it. */
  get waiting(): number {
    return this.#waiting.size
  }

  /** @param afterMs for how long something old may still arrive */
  add(taskIds: Iterable<string>, afterMs: number): void {
    const due = performance.now() + afterMs
    const left: string[] = []
    for (const taskId of taskIds)
      if (this.#waiting.size < WAITING_MAX || this.#waiting.has(taskId))
        this.#waiting.set(taskId, Math.max(due, this.#waiting.get(taskId) ?? 0))
      else left.push(taskId)
    if (left.length > 0) this.#giveUp(left)
    if (this.#waiting.size === 0) return
    this.#running ??= this.#run(this.#stopping.signal).finally(() => {
      this.#running = null
    })
  }

  /** What waits is left as it is; safe to call twice. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    const over = new AbortController()
    await Promise.race([this.#running, pause(STOP_MS, over.signal)])
    over.abort()
    if (this.#waiting.size > 0) this.#giveUp([...this.#waiting.keys()])
    this.#waiting.clear()
    this.#stopping = new AbortController()
  }

  async #run(signal: AbortSignal): Promise<void> {
    let failures = 0
    while (this.#waiting.size > 0 && !signal.aborted) {
      const now = performance.now()
      const due = [...this.#waiting].filter(([, at]) => at <= now).slice(0, AT_ONCE)
      if (due.length === 0) {
        await pause(Math.min(...this.#waiting.values()) - now, signal)
        continue
      }
      try {
        await this.#putRight(due.map(([taskId]) => taskId))
        for (const [taskId, at] of due) if (this.#waiting.get(taskId) === at) this.#waiting.delete(taskId)
        failures = 0
      } catch (err) {
        if (++failures === 1)
          this.#options.logger.warn({ err }, 'old statuses cannot be put right; this goes on until they can')
        await pause(growing(failures, RETRY), signal)
      }
    }
  }

  /** Once more where a change was not the newest any more when it had arrived. */
  async #putRight(taskIds: readonly string[]): Promise<void> {
    const { changes, send } = this.#options
    const sent = new Map<string, string>()
    for (let ids = taskIds; ids.length > 0; ) {
      const newest = await changes.newest(ids)
      const moved = newest.filter(({ status, eventId }) => sent.get(status.taskId) !== eventId)
      if (moved.length > 0) await send(moved)
      for (const { status, eventId } of moved) sent.set(status.taskId, eventId)
      ids = moved.map(({ status }) => status.taskId)
    }
  }

  #giveUp(taskIds: readonly string[]): void {
    this.#options.logger.warn(
      { tasks: taskIds.length, taskIds: taskIds.slice(0, 100) },
      'the topic may keep an old status of these tasks until they change again',
    )
  }
}
