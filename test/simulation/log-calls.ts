/** What a story asks of its log, and the same asked of another one: every answer beside that of the first. */
import { isDeepStrictEqual } from 'node:util'
import type { AppendResult, Checkpoint, EventLog, StoredEvent } from '../../src/eventlog/event-log.ts'

/** One call and what the log answered, in a form in which answers of two logs can be compared. */
interface Call {
  what: string
  /** Calls that write keep their order, others may be asked at once. */
  writes: boolean
  ask: (log: EventLog, places: Places) => Promise<unknown>
  answer: unknown
}

/** One follower: where it began, and every event that it was given. */
interface Followed {
  from: Checkpoint | null
  events: unknown[]
}

export interface Recording {
  /** To be used in the place of the log that is recorded; closing it leaves that one open. */
  log: EventLog
  calls: Call[]
  followed: Followed[]
}

/** Reads that are asked at once. */
const READS_AT_ONCE = 16
const FOLLOW_MS = 20_000

/** Which event stands at which position of one log: each at one, at whatever time it is asked. */
export class Places {
  readonly #positions = new Map<string, string>()
  readonly #ids = new Map<string, string>()

  /** A word on the position of an event that is the same for every log that is right. */
  see(eventId: string, position: string): string {
    const before = this.#positions.get(eventId) ?? position
    const other = this.#ids.get(position) ?? eventId
    this.#positions.set(eventId, before)
    this.#ids.set(position, other)
    if (before !== position) return `${position}, and ${before} before`
    return other === eventId ? 'its own' : `${position}, which is that of ${other}`
  }

  knows(eventId: string): boolean {
    return this.#positions.has(eventId)
  }

  /** The same place in the log with this identity. */
  checkpoint(from: Checkpoint | null, logId: string): Checkpoint | null {
    if (from === null) return null
    return { ...from, logId, position: this.#positions.get(from.eventId) ?? 'never seen' }
  }
}

const seenEvent = (places: Places, event: StoredEvent): unknown => ({
  ...event,
  position: places.see(event.id, event.position),
})

const seenHead = (places: Places, logId: string, head: Checkpoint | null): unknown =>
  head && {
    isOurs: head.logId === logId,
    id: head.eventId,
    position: places.see(head.eventId, head.position),
  }

function seenResult(places: Places, lastId: string, result: AppendResult): unknown {
  return result.kind === 'appended' ? { ...result, position: places.see(lastId, result.position) } : result
}

/** Records every call to a log that does at once what it is asked, as the one in memory does. */
export function recording(log: EventLog): Recording {
  const calls: Call[] = []
  const followed: Followed[] = []
  const places = new Places()
  /** Streams of events that others follow in one append, whose answer says where the last one stands. */
  const streams = new Map<string, string>()
  const keep = async <T>(
    what: string,
    writes: boolean,
    ask: (log: EventLog) => Promise<T>,
    seen: (answer: T, log: EventLog, places: Places) => unknown,
    askAt: (log: EventLog, places: Places) => Promise<T> = ask,
  ): Promise<T> => {
    const call: Call = {
      what,
      writes,
      ask: async (other, at) => seen(await askAt(other, at), other, at),
      answer: 'none',
    }
    calls.push(call)
    const answer = await ask(log)
    call.answer = seen(answer, log, places)
    return answer
  }
  return {
    calls,
    followed,
    log: {
      id: log.id,
      appendMany: appends => {
        for (const { stream, events } of appends)
          for (const { id } of events.slice(0, -1)) streams.set(id, stream)
        return keep(
          `append to ${appends.map(({ stream, expected }) => `${stream} at ${expected}`).join(', ')}`,
          true,
          log => log.appendMany(appends),
          (results, _, places) =>
            results.map((result, index) => seenResult(places, appends[index]!.events.at(-1)!.id, result)),
        )
      },
      readStream: (stream, from, limit) =>
        keep(
          `read ${stream} from ${from}`,
          false,
          log => log.readStream(stream, from, limit),
          ({ events, next }, _, places) => ({ next, events: events.map(event => seenEvent(places, event)) }),
        ),
      readStreams: streams =>
        keep(
          `read ${streams.map(({ stream, fromRevision }) => `${stream} from ${fromRevision}`).join(', ')}`,
          false,
          log => log.readStreams(streams),
          (found, _, places) =>
            [...found]
              .sort(([one], [other]) => (one < other ? -1 : 1))
              .map(([stream, events]) => [stream, events.map(event => seenEvent(places, event))]),
        ),
      head: () => {
        // A story asks at every step; between two appends there is one answer.
        const last = calls.findLast(({ what, writes }) => writes || what === 'head')
        if (last?.what === 'head') return log.head()
        return keep(
          'head',
          false,
          log => log.head(),
          (head, log, places) => seenHead(places, log.id, head),
        )
      },
      countAfter: (from, limit) =>
        keep(
          `count after ${from?.eventId ?? 'nothing'}`,
          false,
          log => log.countAfter(from, limit),
          count => count,
          async (log, places) => {
            const stream = from && !places.knows(from.eventId) && streams.get(from.eventId)
            if (stream)
              for (const event of (await log.readStream(stream, 0, 1_000)).events) seenEvent(places, event)
            return log.countAfter(places.checkpoint(from, log.id), limit)
          },
        ),
      follow: (from, onBatch, signal) => {
        const one: Followed = { from, events: [] }
        followed.push(one)
        const onSeen = (batch: readonly StoredEvent[]) => {
          one.events.push(...batch.map(event => seenEvent(places, event)))
          return onBatch(batch)
        }
        return log.follow(from, onSeen, signal)
      },
      seal: movedTo => log.seal(movedTo),
      sealedFor: () => log.sealedFor(),
      close: async () => {},
    },
  }
}

/** An answer that is not that of the first log. */
export interface Other {
  what: string
  answer: unknown
  expected: unknown
}

/**
 * Asks another log, which has to be empty, for the same in the same order, while somebody follows it.
 *
 * @returns the first answer that is another one, null where none is
 */
export async function replay({ calls, followed }: Recording, log: EventLog): Promise<Other | null> {
  const places = new Places()
  const all = followed.reduce((one, other) => (other.events.length > one.events.length ? other : one))
  const live = followFor(log, null, all.events.length)
  live.catch(() => {})
  for (let from = 0; from < calls.length; ) {
    let end = from + 1
    while (end < calls.length && end - from < READS_AT_ONCE && !calls[end]!.writes && !calls[from]!.writes)
      end++
    const together = calls.slice(from, end)
    from = end
    const answers = await Promise.all(together.map(call => call.ask(log, places)))
    const index = together.findIndex((call, index) => !isDeepStrictEqual(answers[index], call.answer))
    const wrong = together[index]
    if (wrong) return { what: wrong.what, answer: answers[index], expected: wrong.answer }
  }
  const compare = (what: string, events: readonly StoredEvent[], expected: unknown[]): Other | null => {
    const answer = events.map(event => seenEvent(places, event))
    return isDeepStrictEqual(answer, expected) ? null : { what, answer, expected }
  }
  let wrong = compare('follow all the while', await live, all.events)
  for (const { from, events } of followed) {
    const again = await followFor(log, places.checkpoint(from, log.id), events.length)
    wrong ??= compare(`follow from ${from?.eventId ?? 'the start'}`, again, events)
  }
  return wrong
}

/** The next so many events from a place on. */
export async function followFor(
  log: EventLog,
  from: Checkpoint | null,
  count: number,
): Promise<StoredEvent[]> {
  const events: StoredEvent[] = []
  if (count === 0) return events
  const done = new AbortController()
  const take = async (batch: readonly StoredEvent[]) => {
    events.push(...batch)
    if (events.length >= count) done.abort()
  }
  await log.follow(from, take, AbortSignal.any([done.signal, AbortSignal.timeout(FOLLOW_MS)]))
  return events.slice(0, count)
}
