/** Says once that the service is away and once that it is back, however many requests notice. */
import { messageOf } from './outcome.ts'
import { monotonicMs } from './waiting.ts'
import type { WorkerSettings } from './worker-options.ts'

export class Outage {
  readonly #settings: WorkerSettings
  readonly #what: string
  #since: number | null = null
  #failures = 0

  /** @param what the request that fails, as it reads in a log line */
  constructor(settings: WorkerSettings, what: string) {
    this.#settings = settings
    this.#what = what
  }

  failed(error: unknown, fields: Record<string, unknown> = {}): void {
    this.#failures++
    if (this.#since !== null) return
    this.#since = monotonicMs()
    const { logger, worker, onError } = this.#settings
    logger.warn(
      { worker, error: messageOf(error), ...fields },
      `${this.#what} failed; trying again until it works`,
    )
    onError(error)
  }

  over(): void {
    if (this.#since === null) return
    const { logger, worker } = this.#settings
    const seconds = Math.round((monotonicMs() - this.#since) / 100) / 10
    logger.info({ worker, seconds, failures: this.#failures }, `${this.#what} works again`)
    this.#since = null
    this.#failures = 0
  }
}
