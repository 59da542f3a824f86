/** Stores a source's events in the target: the same ids, bytes, revisions and, as far as calls go, the same order. */
import { eventBytes } from '../check-append.ts'
import {
  type Append,
  type AppendResult,
  type Checkpoint,
  EVENT_BYTES_MAX,
  type EventLog,
  type StoredEvent,
} from '../event-log.ts'
import { CopyError } from './copy-error.ts'
import { type Patience, patiently } from './patience.ts'

/** Well within what a call may hold, so that an answer comes in time. */
const CALL = { appends: 500, events: 1_000, bytes: 4 * 1024 * 1024 } as const

interface Member {
  stream: string
  expected: number | 'no_stream'
  events: StoredEvent[]
  bytes: number
}

/**
 * Appends events that stand one after the other in the source. A repeat stores nothing.
 *
 * @returns the place of the last one in the target
 * @throws CopyError when the target holds something else, or can never hold one of them
 */
export async function appendCopies(
  to: EventLog,
  events: readonly StoredEvent[],
  patience: Patience,
): Promise<Checkpoint | null> {
  let place: Checkpoint | null = null
  for (const call of callsOf(events)) {
    const appends = call.map(
      ({ stream, expected, events: members }): Append => ({
        stream,
        expected,
        events: members.map(({ id, type, version, data, metadata }) => ({
          id,
          type,
          version,
          data,
          metadata,
        })),
      }),
    )
    const results = await patiently(patience, () => to.appendMany(appends))
    for (const [index, result] of results.entries()) place = await placeOrFail(to, call[index]!, result)
  }
  return place
}

/**
 * Divides events into calls. A stream stands once in a call, so one ends where a stream would come again after
 * others: moving its events forward to its first ones would change the order.
 */
function* callsOf(events: readonly StoredEvent[]): Generator<Member[]> {
  let call: Member[] = []
  let streams = new Set<string>()
  let count = 0
  let bytes = 0
  for (const event of events) {
    const size = eventBytes(event)
    const last = call.at(-1)
    const isFull = count >= CALL.events || bytes + size > CALL.bytes
    if (!isFull && last?.stream === event.stream && last.bytes + size <= EVENT_BYTES_MAX) {
      last.events.push(event)
      last.bytes += size
    } else {
      if (isFull || streams.has(event.stream) || call.length >= CALL.appends) {
        yield call
        call = []
        streams = new Set()
        count = 0
        bytes = 0
      }
      const expected = event.revision === 0 ? 'no_stream' : event.revision - 1
      call.push({ stream: event.stream, expected, events: [event], bytes: size })
      streams.add(event.stream)
    }
    count++
    bytes += size
  }
  if (call.length > 0) yield call
}

async function placeOrFail(
  to: EventLog,
  { stream, events }: Member,
  result: AppendResult,
): Promise<Checkpoint> {
  const first = events[0]!
  if (result.kind === 'appended')
    return { logId: to.id, position: result.position, eventId: events.at(-1)!.id }
  if (result.kind === 'rejected')
    throw new CopyError(
      'copy_conflict',
      `the target cannot hold event ${first.revision} of stream ${stream} (id ${first.id}): ${result.message}. The source ` +
        'was changed by hand, or is of another version; restore it',
    )
  const { events: there } = await to.readStream(stream, first.revision, events.length)
  const at = events.findIndex(({ id }, index) => there[index]?.id !== id)
  const { revision, id } = events[Math.max(at, 0)]!
  const other = there[Math.max(at, 0)]
  throw new CopyError(
    'copy_conflict',
    other
      ? `stream ${stream} has event ${other.id} at revision ${revision} in the target, where the source has event ${id}: the ` +
          'target is not empty and holds another history; copy into an empty log'
      : `event ${revision} of stream ${stream} has no place in the target, where the stream ` +
          `${result.actual === null ? 'does not exist' : `ends at revision ${result.actual}`}: the target has lost events ` +
          'that were copied; copy into an empty log',
  )
}
