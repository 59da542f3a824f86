/**
 * Appends whose outcome is unknown are repeated with the same bytes until the log answers or a deadline ends
 * it; a batch that fails as a whole is split until the member at fault stands alone.
 */
import type { Logger } from 'pino'
import {
  type Append,
  type AppendResult,
  type EventLog,
  LogSealedError,
  LogUnavailableError,
} from '../eventlog/event-log.ts'

const FIRST_PAUSE_MS = 50
const LONGEST_PAUSE_MS = 1_000

export class AppendRetrier {
  readonly #log: EventLog
  readonly #deadlineMs: number
  readonly #logger: Logger

  constructor(log: EventLog, deadlineMs: number, logger: Logger) {
    this.#log = log
    this.#deadlineMs = deadlineMs
    this.#logger = logger
  }

  /**
   * @throws LogUnavailableError when the outcome is still unknown at the deadline; LogSealedError at once, since
   *   what was moved does not come back
   */
  async append(appends: readonly Append[]): Promise<AppendResult[]> {
    const giveUpAt = performance.now() + this.#deadlineMs
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS)) {
      try {
        return await this.#log.appendMany(appends)
      } catch (error) {
        if (!(error instanceof LogUnavailableError)) return this.#split(appends, error)
        if (error instanceof LogSealedError || performance.now() + pauseMs > giveUpAt) throw error
        this.#logger.warn(
          { err: error, appends: appends.length },
          'append has no known outcome, sending the same bytes again',
        )
        await new Promise(resolve => setTimeout(resolve, pauseMs))
      }
    }
  }

  async #split(appends: readonly Append[], error: unknown): Promise<AppendResult[]> {
    if (appends.length === 1) {
      this.#logger.error({ err: error, stream: appends[0]!.stream }, 'an append cannot be stored')
      return [{ kind: 'rejected', reason: 'invalid_event', message: (error as Error).message }]
    }
    const middle = appends.length >> 1
    return [...(await this.append(appends.slice(0, middle))), ...(await this.append(appends.slice(middle)))]
  }
}
