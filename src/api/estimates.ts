/**
 * When tasks will be final, as they are read, and whether what was said of them came true: what a task was told first is
 * remembered until this process sees it end. A bounded sample, since a task may end elsewhere.
 */
import { type Estimate, estimate } from '../domain/estimate.ts'
import type { Instant } from '../domain/events.ts'
import type { Signals } from '../domain/signals.ts'
import { isOpen, type Task } from '../domain/task.ts'
import type { TypeStatistics } from '../domain/type-statistics.ts'

export interface EstimatesOptions {
  /** Null where too little is known. */
  statistics: (type: string) => Promise<TypeStatistics | null>
  /** Told whether the task was final by the time that was said. */
  onSettled: (quantile: keyof Estimate, held: boolean) => void
  /** How many tasks are remembered at once. */
  most?: number
}

interface Said {
  p50At: Instant
  p90At: Instant
  /** From then on nobody here will hear of its end. */
  forgetAt: Instant
}

/** A task that takes so many times longer than was said most likely ended in another process. */
const FORGET_AFTER = 10
const FORGET_LEAST_MS = 60_000

export class Estimates {
  readonly #options: EstimatesOptions
  readonly #most: number
  readonly #said = new Map<string, Said>()
  #sweptAt = Number.NEGATIVE_INFINITY

  constructor(options: EstimatesOptions) {
    this.#options = options
    this.#most = options.most ?? 2_000
  }

  /** Null for a final task, and where too little is known. */
  async of(task: Task, signals: Signals, now: Instant): Promise<Estimate | null> {
    if (!isOpen(task)) {
      this.ended(task)
      return null
    }
    const says = estimate(task, signals, await this.#options.statistics(task.type), now)
    if (says && !this.#said.has(task.taskId)) this.#remember(task.taskId, says, now)
    return says
  }

  /** Hears of a task; one that has ended is held against what was said of it. */
  ended(task: Task): void {
    const said = this.#said.get(task.taskId)
    if (!said || isOpen(task)) return
    this.#said.delete(task.taskId)
    // Whoever cancels a task was not foreseen.
    if (task.status === 'CANCELLED') return
    this.#options.onSettled('p50', task.finishedAt <= said.p50At)
    this.#options.onSettled('p90', task.finishedAt <= said.p90At)
  }

  /** Where there is no room the newcomer goes without: to forget the oldest would leave out those that take long. */
  #remember(taskId: string, { p50, p90 }: Estimate, now: Instant): void {
    if (this.#said.size >= this.#most) this.#forget(now)
    if (this.#said.size >= this.#most) return
    const forgetMs = Math.max(FORGET_LEAST_MS, FORGET_AFTER * p90 * 1_000)
    this.#said.set(taskId, { p50At: now + p50 * 1_000, p90At: now + p90 * 1_000, forgetAt: now + forgetMs })
  }

  /** At most once a second, as all of them are looked at. */
  #forget(now: Instant): void {
    if (now - this.#sweptAt < 1_000) return
    this.#sweptAt = now
    for (const [taskId, { forgetAt }] of this.#said) if (forgetAt <= now) this.#said.delete(taskId)
  }
}
