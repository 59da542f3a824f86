/** Redrives: dead letters are handed in again as they are, as a person asks, slowly and a bounded number at once. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { DeadLetter, DeadLetters, LetterStatus } from './dead-letters.ts'
import type { EventHandling } from './event-handling.ts'

export type Redriven =
  | { letterId: string; kind: 'redriven'; answer: string; code: string | null; message: string | null }
  /** It still cannot be handled, or not now. */
  | { letterId: string; kind: 'kept'; code: string; message: string }
  | { letterId: string; kind: 'refused'; code: 'dead_letter_not_found' | 'not_waiting'; message: string }

/** More people redrive at once than are served. */
export class RedrivesBusyError extends Error {
  readonly code = 'overloaded'
}

export interface RedrivesOptions {
  deadLetters: DeadLetters
  handling: EventHandling
  logger: Logger
  /** Default 100. */
  lettersPerSecond?: number
}

/** Whole letters are in memory meanwhile. */
const AT_ONCE = 10
const WAITING_MAX = 4

export class Redrives {
  readonly #options: RedrivesOptions
  #last: Promise<unknown> = Promise.resolve()
  #waiting = 0

  constructor(options: RedrivesOptions) {
    this.#options = options
  }

  /**
   * Redrives letters, one request after the other; the answers stand in the order of the ids.
   *
   * @throws RedrivesBusyError
   */
  async redrive(letterIds: readonly string[], by: string): Promise<Redriven[]> {
    if (this.#waiting >= WAITING_MAX)
      throw new RedrivesBusyError(`${WAITING_MAX} redrives are under way; ask again later.`)
    this.#waiting++
    const turn = this.#last.then(() => this.#redrive([...new Set(letterIds)], by))
    this.#last = turn.catch(() => {})
    try {
      const redriven = await turn
      return letterIds.map(id => redriven.get(id)!)
    } finally {
      this.#waiting--
    }
  }

  async #redrive(letterIds: readonly string[], by: string): Promise<Map<string, Redriven>> {
    const pauseMs = (AT_ONCE * 1_000) / (this.#options.lettersPerSecond ?? 100)
    const all = new Map<string, Redriven>()
    for (let from = 0; from < letterIds.length; from += AT_ONCE) {
      const some = letterIds.slice(from, from + AT_ONCE)
      for (const one of await this.#redriveSome(some, by)) all.set(one.letterId, one)
      await sleep((pauseMs * some.length) / AT_ONCE)
    }
    return all
  }

  async #redriveSome(letterIds: readonly string[], by: string): Promise<Redriven[]> {
    const letters = await this.#options.deadLetters.read(letterIds)
    const waiting = letters.filter(({ status }) => status === 'waiting')
    const outcomes = await this.#options.handling.handle(waiting.map(({ record }) => record))
    const redriven = new Map<string, Redriven>()
    for (const [index, outcome] of outcomes.entries()) {
      const letter = waiting[index]!
      redriven.set(letter.letterId, await this.#settle(letter, outcome, by))
    }
    const known = new Map(letters.map(letter => [letter.letterId, letter]))
    return letterIds.map(
      letterId => redriven.get(letterId) ?? notWaiting(letterId, known.get(letterId)?.status),
    )
  }

  async #settle(
    { letterId, record }: DeadLetter,
    outcome: Awaited<ReturnType<EventHandling['handle']>>[number],
    by: string,
  ): Promise<Redriven> {
    const { deadLetters, logger } = this.#options
    if (outcome.kind === 'passing')
      return { letterId, kind: 'kept', code: outcome.code, message: outcome.message }
    if (outcome.kind === 'dead') {
      const { code, message } = outcome.fault
      await deadLetters.remains(letterId, outcome.fault)
      return { letterId, kind: 'kept', code, message }
    }
    const { answer, code, message } = outcome
    await deadLetters.settle([letterId], { status: 'redriven', by, because: message ?? answer })
    const { topic, partition, offset } = record
    logger.info({ letterId, topic, partition, offset, by, answer, code }, 'a dead letter was redriven')
    return { letterId, kind: 'redriven', answer, code, message }
  }
}

/** The answer for a letter that does not wait; `status` is undefined where there is none. */
export function notWaiting(
  letterId: string,
  status: LetterStatus | undefined,
): Redriven & { kind: 'refused' } {
  if (!status)
    return {
      letterId,
      kind: 'refused',
      code: 'dead_letter_not_found',
      message: 'No dead letter has this id.',
    }
  return { letterId, kind: 'refused', code: 'not_waiting', message: `It was ${status} before.` }
}
