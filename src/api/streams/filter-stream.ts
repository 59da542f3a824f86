/**
 * The stream of all tasks that a filter names: each event of them, from now on or from the Last-Event-ID. It says where it
 * stands in the log even while nothing of it happens, so that whoever comes back begins there.
 */
import type { FastifyReply } from 'fastify'
import type { Change, EndReason, Filter, Subscription } from '../../engine/changes.ts'
import { type Checkpoint, LogWentBackwardsError } from '../../eventlog/event-log.ts'
import { CatchUp, REPLAYED_MAX, TooFarBehindError } from './catch-up.ts'
import type { EventStream } from './event-stream.ts'
import { end, placeMessage, resync } from './messages.ts'
import type { StreamParts } from './parts.ts'
import { placeOf } from './place.ts'
import type { Admission, StreamOwner } from './streams.ts'
import { SubscriptionQueue } from './subscription-queue.ts'

export class FilterStream implements StreamOwner {
  readonly #parts: StreamParts
  readonly #filter: Filter
  readonly #queue = new SubscriptionQueue(change => this.#send(change))
  #subscription: Subscription | null = null
  #stream: EventStream | null = null
  /** Told before it was open. */
  #ended: EndReason | null = null
  readonly #leaving = new AbortController()
  /** It is told what happens now, and of the place it knows. */
  #isLive = false
  #place: Checkpoint | null = null

  constructor(parts: StreamParts, filter: Filter) {
    this.#parts = parts
    this.#filter = filter
  }

  /**
   * Answers the request.
   *
   * @param lastEventId null begins now
   * @throws LogUnavailableError where there is no log to begin with
   */
  async begin(lastEventId: string | null, admission: Admission, reply: FastifyReply): Promise<void> {
    const found = lastEventId === null ? null : await this.#find(lastEventId)
    if (found !== null && typeof found === 'object') {
      const stream = this.#open(admission, reply)
      await this.#catchUp(stream, found.place)
    } else {
      // Before it is answered: whoever has the answer misses nothing from then on.
      const { place } = await this.#subscribe()
      const stream = this.#open(admission, reply)
      if (found !== null) stream.send(resync(found))
      this.#live(stream, place)
    }
  }

  left(): void {
    this.#leaving.abort()
    this.#subscription?.end()
  }

  keepAlive(): Buffer | null {
    const { place } = this.#parts.app.changes
    if (!this.#isLive || place?.eventId === this.#place?.eventId) return null
    this.#place = place
    return placeMessage(place)
  }

  changed(change: Change): void {
    this.#queue.add(change)
  }

  ended(reason: EndReason): void {
    this.#ended = reason
    this.#stream?.end(reason === 'shutting_down' ? end(reason) : resync(reason))
  }

  /** Where in the log to begin, or why that cannot be said. */
  async #find(lastEventId: string): Promise<{ place: Checkpoint | null } | 'unknown_id' | 'too_old'> {
    const place = placeOf(lastEventId)
    if (place === undefined) return 'unknown_id'
    try {
      const later = await this.#parts.app.log.countAfter(place, REPLAYED_MAX + 1)
      return later > REPLAYED_MAX ? 'too_old' : { place }
    } catch (error) {
      if (error instanceof LogWentBackwardsError) return 'unknown_id'
      throw error
    }
  }

  async #subscribe(): Promise<Subscription> {
    this.#queue.clear()
    this.#subscription = await this.#parts.app.changes.subscribeTo(this.#filter, this)
    // Its client may have gone while that was asked.
    if (this.#leaving.signal.aborted) this.#subscription.end()
    return this.#subscription
  }

  async #catchUp(stream: EventStream, from: Checkpoint | null): Promise<void> {
    const { app, replays } = this.#parts
    const catchUp = new CatchUp(app, this.#filter, from, async change => {
      stream.send(this.#parts.messages.transition(change, app.log.id))
      await stream.room()
    })
    try {
      const met = await replays.run(() => catchUp.run(() => this.#subscribe(), this.#leaving.signal))
      if (met) this.#live(stream, met.place)
    } catch (error) {
      app.logger.debug({ err: error }, 'a stream could not catch up')
      this.#subscription?.end()
      // It comes back, and is told so then where its place is not there any more.
      if (error instanceof TooFarBehindError) stream.end(resync('too_old'))
      else stream.cut()
    }
  }

  #open(admission: Admission, reply: FastifyReply): EventStream {
    this.#stream = admission.open(reply, this)
    if (this.#ended) this.ended(this.#ended)
    return this.#stream
  }

  #live(stream: EventStream, place: Checkpoint | null): void {
    if (this.#queue.overflowed) stream.overflow()
    this.#place = place
    stream.send(placeMessage(place))
    this.#isLive = true
    this.#queue.release()
  }

  #send(change: Change): void {
    this.#stream?.send(this.#parts.messages.transition(change, this.#parts.app.log.id))
  }
}
