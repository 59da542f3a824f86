/**
 * What every adapter checks before it stores: the contract of the call, which throws, and each member, which
 * is rejected alone. It runs for every event that is stored, so it copies nothing.
 */
import {
  APPEND_LIMITS,
  type Append,
  type AppendResult,
  type EncodedEvent,
  EVENT_BYTES_MAX,
  LogContractError,
} from './event-log.ts'

type Rejection = Extract<AppendResult, { kind: 'rejected' }>

/** Streams and event types: EventStoreDB keeps names that begin with `$` for itself. */
const NAME = /^[A-Za-z][A-Za-z0-9._-]{0,127}$/
/**
 * Lower case, since a database gives a UUID back in lower case and the bytes must be those that were hashed.
 * The nil UUID means "none" to EventStoreDB.
 */
const UUID = /^(?!00000000-0000-0000-0000-000000000000)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/
const VERSION_MAX = 32_767
const REVISION_MAX = 2_147_483_647

/** An event whose data and metadata are known to be what JSON.stringify wrote. A set of such events would cost more. */
class WrittenEvent implements EncodedEvent {
  readonly #vouched = true
  readonly id: string
  readonly type: string
  readonly version: number
  readonly data: string
  readonly metadata: string

  constructor({ id, type, version, data, metadata }: EncodedEvent) {
    this.id = id
    this.type = type
    this.version = version
    this.data = data
    this.metadata = metadata
    Object.freeze(this)
  }

  static is(event: EncodedEvent): boolean {
    return #vouched in event
  }
}

/**
 * Vouches for an event whose data and metadata JSON.stringify has just written, and freezes it, so that it is
 * not parsed and written once more on append: that is two thirds of what an append costs in Node.
 */
export const asWritten = (event: EncodedEvent): EncodedEvent => new WrittenEvent(event)

/**
 * Checks a call.
 *
 * @returns per member what is wrong with it, null where nothing is
 * @throws LogContractError when the call breaks a limit or names a stream twice
 */
export function checkAppends(appends: readonly Append[]): (Rejection | null)[] {
  if (appends.length > APPEND_LIMITS.appends)
    throw new LogContractError(`${appends.length} appends in one call; ${APPEND_LIMITS.appends} are allowed`)
  const streams = new Set<string>()
  let events = 0
  for (const append of appends) {
    if (streams.has(append.stream))
      throw new LogContractError(`stream ${append.stream} stands twice in one call`)
    streams.add(append.stream)
    if (append.events.length === 0)
      throw new LogContractError(`the append to stream ${append.stream} has no events`)
    if (!isExpectation(append.expected))
      throw new LogContractError(`${append.expected} is no expectation (stream ${append.stream})`)
    events += append.events.length
  }
  if (events > APPEND_LIMITS.events)
    throw new LogContractError(`${events} events in one call; ${APPEND_LIMITS.events} are allowed`)

  // Rejected members are not stored and so do not count: one huge event must not fail its neighbours.
  let bytes = 0
  const rejections = appends.map(append => {
    const checked = checkMember(append)
    if (typeof checked !== 'number') return checked
    bytes += checked
    return null
  })
  if (bytes > APPEND_LIMITS.bytes)
    throw new LogContractError(`${bytes} bytes in one call; ${APPEND_LIMITS.bytes} are allowed`)
  return rejections
}

/** The bytes of an event as the limits count them. */
export const eventBytes = (event: EncodedEvent): number =>
  Buffer.byteLength(event.data) + Buffer.byteLength(event.metadata)

function isExpectation(expected: unknown): boolean {
  if (expected === 'any' || expected === 'no_stream') return true
  return Number.isInteger(expected) && (expected as number) >= 0 && (expected as number) <= REVISION_MAX
}

/** The bytes of a member's events, or why it cannot be stored. */
function checkMember({ stream, events }: Append): number | Rejection {
  if (!NAME.test(stream)) return invalid('the name of its stream is malformed')
  let bytes = 0
  for (const [index, event] of events.entries()) {
    const size = eventBytes(event)
    if (size > EVENT_BYTES_MAX)
      return {
        kind: 'rejected',
        reason: 'too_large',
        message: `event ${event.id} has ${size} bytes; ${EVENT_BYTES_MAX} are allowed`,
      }
    const fault = eventFault(event)
    if (fault) return invalid(`event ${index} of the append: ${fault}`)
    bytes += size
  }
  if (bytes > EVENT_BYTES_MAX)
    return {
      kind: 'rejected',
      reason: 'too_large',
      message: `the append has ${bytes} bytes; ${EVENT_BYTES_MAX} are allowed`,
    }
  if (events.length > 1 && new Set(events.map(event => event.id)).size < events.length)
    return invalid('two of its events have the same id')
  return bytes
}

const invalid = (message: string): Rejection => ({ kind: 'rejected', reason: 'invalid_event', message })

function eventFault(event: EncodedEvent): string | null {
  if (!UUID.test(event.id)) return 'its id is no UUID in lower case'
  if (!NAME.test(event.type)) return 'its type is malformed'
  if (!Number.isInteger(event.version) || event.version < 1 || event.version > VERSION_MAX)
    return 'its version is malformed'
  if (WrittenEvent.is(event)) return null
  if (!isFixedPoint(event.data)) return 'its data is not what JSON.stringify writes'
  if (!isFixedPoint(event.metadata)) return 'its metadata is not what JSON.stringify writes'
  return null
}

/**
 * Whether a text is what JSON.stringify writes. Such a text holds no control character and no lone surrogate
 * (both are escaped), which is what adapters rely on.
 */
function isFixedPoint(text: string): boolean {
  try {
    return JSON.stringify(JSON.parse(text)) === text
  } catch {
    // Not JSON, or nested deeper than the parser of V8 goes.
    return false
  }
}
