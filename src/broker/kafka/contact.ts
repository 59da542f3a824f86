/**
 * The first contact with the broker: whether it can be used is asked before the client says anything, and again after
 * whatever may have been a change of brokers. Without that the client would try for ever, in silence (PITFALLS K2).
 */
import type { ConnectionOptions } from 'node:tls'
import type { BaseLogger } from 'pino'
import { BrokerUnavailableError } from '../broker.ts'
import { DeadlineError, growing, pause, within } from '../deadline.ts'
import { assertCompatible, BrokerIncompatibleError } from './compatibility.ts'

export interface ContactOptions {
  brokers: readonly string[]
  tls: ConnectionOptions | boolean
  /** For the answer of one broker. */
  timeoutMs: number
  /** Until one that cannot be used is asked again: somebody may have replaced it. By default 30 s. */
  againMs?: number
  logger: BaseLogger
}

const AGAIN_MS = 30_000
const POLL = { firstMs: 100, lastMs: 1_000 }

export class Contact {
  readonly #options: ContactOptions
  #answer: Promise<void> | null = null
  /** By performance.now(). */
  #wrongUntil = 0

  constructor(options: ContactOptions) {
    this.#options = options
  }

  /** @throws BrokerUnavailableError whose cause is a BrokerIncompatibleError where asking again is of no use */
  ask(): Promise<void> {
    if (this.#wrongUntil > 0 && performance.now() > this.#wrongUntil) this.#answer = null
    this.#answer ??= this.#ask()
    return this.#answer
  }

  /** As {@link ask}, and asks again for so long while nobody answers. Says why the last ask failed that had an end. */
  async reach(ms: number, signal: AbortSignal): Promise<void> {
    const deadline = performance.now() + ms
    let reason: unknown
    for (let failures = 1; ; failures++) {
      try {
        return await within(this.ask(), deadline - performance.now(), 'The first contact with the broker')
      } catch (error) {
        const isOver = error instanceof DeadlineError
        if (!isOver || reason === undefined) reason = error
        const pauseMs = growing(failures, POLL)
        if (isOver || isForGood(error) || signal.aborted || performance.now() + pauseMs > deadline)
          throw reason
        await pause(pauseMs, signal)
      }
    }
  }

  /** The next who needs the broker asks anew. */
  forget(): void {
    if (this.#wrongUntil === 0) this.#answer = null
  }

  async #ask(): Promise<void> {
    const { brokers, tls, timeoutMs, againMs = AGAIN_MS, logger } = this.#options
    this.#wrongUntil = 0
    try {
      await assertCompatible(brokers, { tls, timeoutMs })
    } catch (error) {
      if (!(error instanceof BrokerIncompatibleError)) {
        this.#answer = null
        throw error
      }
      this.#wrongUntil = performance.now() + againMs
      logger.error({ reason: error.message }, 'the kafka broker cannot be used')
      throw new BrokerUnavailableError(error.message, { cause: error })
    }
  }
}

function isForGood(error: unknown): boolean {
  return error instanceof Error && error.cause instanceof BrokerIncompatibleError
}
