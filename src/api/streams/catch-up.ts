/**
 * Brings a filter's stream from a place in the past to where it is told what happens now, without a gap and without telling
 * anything twice. Places cannot be compared, so the two meet at an event: first the past is read to about its end; then it
 * subscribes and reads on as far as the place that everything after is told from. Where it does not come upon that place,
 * those who tell are behind what it has read, and it waits for them.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Change, Filter, Subscription } from '../../engine/changes.ts'
import { TaskFolds } from '../../engine/task-folds.ts'
import type { Checkpoint, StoredEvent } from '../../eventlog/event-log.ts'
import type { AppParts } from '../parts.ts'

/** Events of the log that are read for one that comes back, its own and others. */
export const REPLAYED_MAX = 10_000
const FOLDS_KEPT = { tasks: 2_000, bytes: 8 * 1024 * 1024 }
/** Those who tell are milliseconds behind, unless the log was away. */
const MEET = { tries: 12, firstMs: 10, longestMs: 1_000 }

export class TooFarBehindError extends Error {}

export class CatchUp {
  readonly #parts: Pick<AppParts, 'log' | 'engine' | 'logger'>
  readonly #filter: Filter
  readonly #send: (change: Change) => Promise<void>
  readonly #folds: TaskFolds
  #at: Checkpoint | null

  constructor(
    parts: Pick<AppParts, 'log' | 'engine' | 'logger'>,
    filter: Filter,
    from: Checkpoint | null,
    send: (change: Change) => Promise<void>,
  ) {
    this.#parts = parts
    this.#filter = filter
    this.#at = from
    this.#send = send
    this.#folds = new TaskFolds(parts.log, () => {}, FOLDS_KEPT)
  }

  /**
   * @param subscribe begins to be told anew
   * @param signal nobody waits for it any more
   * @returns the place from which it is told; null where nobody is
   * @throws TooFarBehindError, LogUnavailableError, LogWentBackwardsError
   */
  async run(
    subscribe: () => Promise<Subscription>,
    signal: AbortSignal,
  ): Promise<{ place: Checkpoint | null } | null> {
    await this.#readTo(null, signal)
    let pauseMs: number = MEET.firstMs
    for (let tries = 0; tries < MEET.tries && !signal.aborted; tries++) {
      const subscription = await subscribe()
      const { place } = subscription
      if (this.#isAt(place) || (await this.#readTo(place, signal))) return { place }
      subscription.end()
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
      pauseMs = Math.min(pauseMs * 2, MEET.longestMs)
    }
    if (signal.aborted) return null
    throw new TooFarBehindError('the events of now are behind those of the past')
  }

  #isAt(place: Checkpoint | null): boolean {
    return this.#at?.eventId === place?.eventId
  }

  /**
   * Reads on to a place, or as far as there is anything now.
   *
   * @returns whether it is at the place
   */
  async #readTo(place: Checkpoint | null, signal: AbortSignal): Promise<boolean> {
    const { log } = this.#parts
    let left = await log.countAfter(this.#at, REPLAYED_MAX + 1)
    if (left > REPLAYED_MAX) throw new TooFarBehindError('too much has happened meanwhile')
    if (left === 0) return false
    const done = new AbortController()
    let arrived = false
    await log.follow(
      this.#at,
      async batch => {
        const to = place === null ? -1 : batch.findIndex(({ id }) => id === place.eventId)
        arrived = to !== -1
        const read = arrived ? batch.slice(0, to + 1) : batch
        left -= read.length
        await this.#sendAll(read)
        if (arrived || left <= 0 || batch.length === 0) done.abort()
      },
      AbortSignal.any([signal, done.signal]),
    )
    return arrived
  }

  async #sendAll(batch: readonly StoredEvent[]): Promise<void> {
    const { log, engine } = this.#parts
    for (const folded of await this.#folds.among(batch))
      if (this.#filter.matches(folded.task))
        await this.#send({ ...folded, definition: await engine.definitionOf(folded.task) })
    const last = batch.at(-1)
    if (last) this.#at = { logId: log.id, position: last.position, eventId: last.id }
  }
}
