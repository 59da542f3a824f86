/** Redrives: dead letters are handed in again as they are, as a person asks, slowly and a bounded number at once. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { AnyRefusalCode } from '../engine/answer.ts'
import type { DeadLetterReason, DeadLetters, LetterStatus, Redrive } from './dead-letters.ts'
import type { EventHandling, Handled } from './event-handling.ts'

export type Redriven =
  | ({ letterId: string; kind: 'redriven' } & Omit<Handled & { kind: 'done' }, 'kind'>)
  /** It still cannot be handled, or not now. */
  | { letterId: string; kind: 'kept'; code: DeadLetterReason | AnyRefusalCode; message: string }
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
    const { deadLetters, handling, logger } = this.#options
    const redriven = new Map<string, Redriven>()
    await deadLetters.redrive(letterIds, by, async letters => {
      const outcomes = await handling.handle(letters.map(({ record }) => record))
      letters.forEach(({ letterId }, index) => {
        redriven.set(letterId, answerOf(letterId, outcomes[index]!))
      })
      return outcomes.map(redriveOf)
    })
    for (const { letterId, kind, code, ...rest } of redriven.values())
      logger.info(
        { letterId, by, kind, code, answer: 'answer' in rest ? rest.answer : null },
        'a dead letter was handed in again',
      )
    const rest = letterIds.filter(id => !redriven.has(id))
    const known = new Map(
      (await deadLetters.statuses(rest)).map(({ letterId, status }) => [letterId, status] as const),
    )
    return letterIds.map(letterId => redriven.get(letterId) ?? notWaiting(letterId, known.get(letterId)))
  }
}

function answerOf(letterId: string, outcome: Handled): Redriven {
  if (outcome.kind === 'done') {
    const { answer, code, message } = outcome
    return { letterId, kind: 'redriven', answer, code, message }
  }
  const { code, message } = outcome.kind === 'dead' ? outcome.fault : outcome
  return { letterId, kind: 'kept', code, message }
}

function redriveOf(outcome: Handled): Redrive {
  if (outcome.kind === 'done') return { kind: 'settled', because: outcome.message ?? outcome.answer }
  return outcome.kind === 'dead' ? { kind: 'remains', fault: outcome.fault } : { kind: 'untried' }
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
