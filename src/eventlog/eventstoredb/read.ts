/** Reading: pages bounded by count and bytes, each call by a time of its own. */
import type { ClientReadableStream } from '@grpc/grpc-js'
import { eventBytes } from '../check-append.ts'
import {
  type Checkpoint,
  LogUnavailableError,
  LogWentBackwardsError,
  READ_LIMITS,
  type StoredEvent,
  type StreamSlice,
} from '../event-log.ts'
import { within } from '../within.ts'
import type { Connection, Live } from './connection.ts'
import {
  asLogError,
  isCancelled,
  isInvalidPosition,
  isNotLeader,
  isStreamDeleted,
  isStreamNotFound,
} from './errors.ts'
import { logRequest, storedEvent, streamRequest } from './messages.ts'
import { type Names, placeOf } from './names.ts'
import type { ReadRequest, ReadResponse } from './stubs.ts'

/** Streams that are read at a time; more wait. */
const PARALLEL = 32

export class Reader {
  readonly #connection: Connection
  readonly #timeoutMs: number
  readonly names: Names

  constructor(connection: Connection, names: Names, timeoutMs: number) {
    this.#connection = connection
    this.#timeoutMs = timeoutMs
    this.names = names
  }

  async stream(stream: string, fromRevision: number, limit: number): Promise<StreamSlice> {
    const count = Math.min(limit, READ_LIMITS.events)
    const { events, more } = await this.#page(
      streamRequest(this.names.there(stream), fromRevision, count + 1),
      count,
      `reading stream ${stream}`,
    )
    return { events, next: more ? events.at(-1)!.revision + 1 : null }
  }

  async streams(
    streams: readonly { stream: string; fromRevision: number }[],
  ): Promise<Map<string, StoredEvent[]>> {
    const found = new Map<string, StoredEvent[]>()
    await inParallel(streams, async ({ stream, fromRevision }) => {
      for (let from: number | null = fromRevision; from !== null; ) {
        const slice: StreamSlice = await this.stream(stream, from, READ_LIMITS.events)
        const events = found.get(stream)
        if (events) events.push(...slice.events)
        else if (slice.events.length > 0) found.set(stream, slice.events)
        from = slice.next
      }
    })
    return found
  }

  /** A stream's last event, null where there is none. */
  async last(stream: string): Promise<StoredEvent | null> {
    return this.lastOf(this.names.there(stream))
  }

  /** The last event of a stream by the name it has there. */
  async lastOf(name: string): Promise<StoredEvent | null> {
    const { events } = await this.#page(streamRequest(name, 'last', 1), 1, `reading the end of ${name}`)
    return events[0] ?? null
  }

  /** The first event of a stream by the name it has there. */
  async firstOf(name: string): Promise<StoredEvent | null> {
    const { events } = await this.#page(streamRequest(name, 0, 1), 1, `reading the start of ${name}`)
    return events[0] ?? null
  }

  /** The newest event of the log. */
  async head(): Promise<StoredEvent | null> {
    const { events } = await this.#page(logRequest(this.names, 'end', 1), 1, 'reading the head')
    return events[0] ?? null
  }

  /** Checks that an event is where a follower has left it. @throws LogWentBackwardsError */
  async verify(from: Checkpoint): Promise<void> {
    await this.#after(from, 0)
  }

  /** How many events come after a place, up to a limit. @throws LogWentBackwardsError */
  async countAfter(from: Checkpoint | null, limit: number): Promise<number> {
    if (from) return this.#after(from, limit)
    return (await this.#count(logRequest(this.names, 'start', limit))).count
  }

  async #after(from: Checkpoint, limit: number): Promise<number> {
    const gone = () =>
      new LogWentBackwardsError(
        `log ${from.logId} is not what was followed: event ${from.eventId} is no longer at position ${from.position}`,
      )
    const place = placeOf(from.position)
    if (!place) throw gone()
    const { count, first } = await this.#count(logRequest(this.names, place, limit + 1)).catch(error => {
      throw isInvalidPosition(error.cause) ? gone() : error
    })
    if (first?.id !== from.eventId || first.position !== from.position) throw gone()
    return count - 1
  }

  /** Counts, keeping none but the first. */
  async #count(request: ReadRequest): Promise<{ count: number; first: StoredEvent | null }> {
    let counted = { count: 0, first: null as StoredEvent | null }
    await this.#read(
      request,
      'reading the log',
      response => {
        counted.first ??= storedEvent(this.names, response)
        counted.count++
        return true
      },
      () => {
        counted = { count: 0, first: null }
      },
    )
    return counted
  }

  /** A page of at most so many events. `more`: there are others behind it. */
  async #page(
    request: ReadRequest,
    count: number,
    what: string,
  ): Promise<{ events: StoredEvent[]; more: boolean }> {
    let page = { events: [] as StoredEvent[], more: false }
    let bytes = 0
    await this.#read(
      request,
      what,
      response => {
        if (page.events.length === count || bytes >= READ_LIMITS.bytes) {
          page.more = true
          return false
        }
        const event = storedEvent(this.names, response)
        if (!event) return true
        page.events.push(event)
        bytes += eventBytes(event)
        return true
      },
      () => {
        page = { events: [], more: false }
        bytes = 0
      },
    )
    return page
  }

  /** Reads events until the end, or until `onEvent` wants no more. The leader is looked for once. */
  async #read(
    request: ReadRequest,
    what: string,
    onEvent: (response: ReadResponse) => boolean,
    onAgain: () => void,
  ): Promise<void> {
    for (let turned = false; ; turned = true) {
      let live: Live | null = null
      try {
        live = await within(this.#timeoutMs, this.#connection.live(), what)
        const call = live.streams.read(request, ...live.arguments({ leader: true }))
        await this.#consume(call, what, onEvent)
        this.#connection.worked()
        return
      } catch (error) {
        if (isStreamDeleted(error) || isStreamNotFound(error)) return
        if (isInvalidPosition(error)) throw asLogError(error, what)
        if (live) await this.#connection.failed(live, error)
        if (!isNotLeader(error) || turned) throw asLogError(error, what)
        onAgain()
      }
    }
  }

  #consume(
    call: ClientReadableStream<ReadResponse>,
    what: string,
    onEvent: (response: ReadResponse) => boolean,
  ): Promise<void> {
    return new Promise((resolve, reject) => {
      let enough = false
      const timer = setTimeout(() => {
        reject(new LogUnavailableError(`the log did not answer ${what} within ${this.#timeoutMs} ms`))
        call.cancel()
      }, this.#timeoutMs)
      const done = (error?: unknown) => {
        clearTimeout(timer)
        if (error === undefined || (enough && isCancelled(error))) resolve()
        else reject(error)
      }
      call.on('data', (response: ReadResponse) => {
        if (enough) return
        try {
          if (!response.hasEvent() || onEvent(response)) return
        } catch (error) {
          done(error)
        }
        enough = true
        call.cancel()
        resolve()
      })
      call.on('error', done)
      call.on('end', () => done())
    })
  }
}

/** Does something for each of many, so many at a time; ends at the first that fails. */
export async function inParallel<T>(items: readonly T[], each: (item: T) => Promise<void>): Promise<void> {
  let next = 0
  const run = async () => {
    while (next < items.length) await each(items[next++]!)
  }
  await Promise.all(Array.from({ length: Math.min(PARALLEL, items.length) }, run))
}
