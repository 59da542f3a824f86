/** One subscription: what it was sent waits here, within bounds, until it is taken. */
import type { ClientReadableStream } from '@grpc/grpc-js'
import { eventBytes } from '../check-append.ts'
import { READ_LIMITS, type StoredEvent } from '../event-log.ts'
import type { Connection, Live } from './connection.ts'
import { asLogError } from './errors.ts'
import { storedEvent, subscriptionRequest } from './messages.ts'
import { isAfter, type Names, placeOf } from './names.ts'
import type { ReadResponse } from './stubs.ts'

/** Beyond these the server has to wait; the library holds a few more. */
const HELD = { events: 2 * READ_LIMITS.events, bytes: READ_LIMITS.bytes } as const

export class Subscription {
  readonly #call: ClientReadableStream<ReadResponse>
  readonly #names: Names
  #waiting: StoredEvent[] = []
  #bytes = 0
  #last: { position: string } | null
  #wake: (() => void) | null = null
  /** Whether the server has sent all there was, so that what comes is new. */
  caughtUp = false
  /** Why it ended; null while it goes on. */
  failure: Error | null = null
  heardAt = performance.now()

  private constructor(live: Live, names: Names, after: { position: string } | null) {
    this.#names = names
    this.#last = after
    const place = after && placeOf(after.position)
    this.#call = live.streams.read(
      subscriptionRequest(names, place ?? 'start'),
      ...live.arguments({ leader: false }),
    )
    this.#call.on('data', response => this.#take(response))
    this.#call.on('end', () => this.#fail(new Error('the server ended the subscription')))
  }

  /** @param after the last event that was handled; null from the start of the log */
  static async open(
    connection: Connection,
    names: Names,
    after: { position: string } | null,
  ): Promise<Subscription> {
    const live = await connection.live()
    const subscription = new Subscription(live, names, after)
    subscription.#call.on('error', error => {
      if (subscription.failure) return
      subscription.#fail(error)
      void connection.failed(live, error)
    })
    return subscription
  }

  /** The newest event that came, whether or not it was taken. */
  get last(): { position: string } | null {
    return this.#last
  }

  /** Takes what has come, a page at most. */
  take(): StoredEvent[] {
    let end = 0
    for (let bytes = 0; end < this.#waiting.length && end < READ_LIMITS.events && bytes < READ_LIMITS.bytes; )
      bytes += eventBytes(this.#waiting[end++]!)
    const page = this.#waiting.splice(0, end)
    for (const event of page) this.#bytes -= eventBytes(event)
    if (this.#call.isPaused() && this.#waiting.length < HELD.events / 2 && this.#bytes < HELD.bytes / 2)
      this.#call.resume()
    return page
  }

  /** Waits for something to take or to know, so long at most. */
  wait(ms: number, signal: AbortSignal): Promise<void> {
    if (this.#waiting.length > 0 || this.failure || signal.aborted) return Promise.resolve()
    return new Promise(resolve => {
      const done = () => {
        clearTimeout(timer)
        signal.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, ms)
      signal.addEventListener('abort', done)
      // What else comes in this turn of the event loop belongs to the same batch.
      this.#wake = () => {
        this.#wake = null
        setImmediate(done)
      }
    })
  }

  close(): void {
    this.failure ??= new Error('the subscription was closed')
    this.#call.cancel()
  }

  #take(response: ReadResponse): void {
    this.heardAt = performance.now()
    // Its checkpoints run ahead of what was handled, and say nothing that the events do not (PITFALLS E8, E9).
    if (response.hasCaughtUp()) this.caughtUp = true
    else if (response.hasFellBehind()) this.caughtUp = false
    const event = storedEvent(this.#names, response)
    // After a resumption an event may come that was there already.
    if (event && (this.#last === null || isAfter(event, this.#last))) {
      this.#last = event
      this.#waiting.push(event)
      this.#bytes += eventBytes(event)
      if (this.#waiting.length >= HELD.events || this.#bytes >= HELD.bytes) this.#call.pause()
    }
    this.#wake?.()
  }

  #fail(error: unknown): void {
    this.failure ??= asLogError(error, 'following') as Error
    this.#wake?.()
  }
}
