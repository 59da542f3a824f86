/** Read requests, and what comes back as the port has it. */
import type { StoredEvent } from '../event-log.ts'
import { type Names, type Place, positionOf } from './names.ts'
import { Empty, ReadReq, type ReadRequest, type ReadResponse, StreamIdentifier } from './stubs.ts'

const { Options } = ReadReq
const FORWARDS = 0
const BACKWARDS = 1

/** The server's window of a filtered read, and how many of them pass between two of its checkpoints. */
const CHECKPOINT_WINDOWS = 32

/** Events of one stream from a revision on, or its last one. */
export function streamRequest(name: string, from: number | 'last', count: number): ReadRequest {
  const stream = new Options.StreamOptions()
  stream.setStreamIdentifier(new StreamIdentifier().setStreamName(Buffer.from(name)))
  if (from === 'last') stream.setEnd(new Empty())
  else stream.setRevision(String(from))
  const options = usual()
  options.setStream(stream)
  options.setNoFilter(new Empty())
  options.setReadDirection(from === 'last' ? BACKWARDS : FORWARDS)
  options.setCount(String(count))
  return request(options)
}

/** Our events in `$all`: forwards from the start or from a place, that one included, or backwards from the end. */
export function logRequest(names: Names, from: 'start' | 'end' | Place, count: number): ReadRequest {
  const options = ofLog(names, from)
  options.setReadDirection(from === 'end' ? BACKWARDS : FORWARDS)
  options.setCount(String(count))
  return request(options)
}

/** Our events in `$all` after a place, and then those to come. */
export function subscriptionRequest(names: Names, after: 'start' | Place): ReadRequest {
  const options = ofLog(names, after)
  options.setSubscription(new Options.SubscriptionOptions())
  return request(options)
}

function ofLog(names: Names, from: 'start' | 'end' | Place) {
  const all = new Options.AllOptions()
  if (from === 'start') all.setStart(new Empty())
  else if (from === 'end') all.setEnd(new Empty())
  else all.setPosition(new Options.Position().setCommitPosition(from.commit).setPreparePosition(from.prepare))
  const filter = new Options.FilterOptions()
  filter.setStreamIdentifier(new Options.FilterOptions.Expression().setPrefixList([names.prefix]))
  filter.setCount(new Empty())
  filter.setCheckpointintervalmultiplier(CHECKPOINT_WINDOWS)
  const options = usual()
  options.setAll(all)
  options.setFilter(filter)
  return options
}

function usual() {
  const options = new Options()
  options.setResolveLinks(false)
  options.setUuidOption(new Options.UUIDOption().setString(new Empty()))
  return options
}

const request = (options: InstanceType<typeof Options>): ReadRequest => new ReadReq().setOptions(options)

const METADATA = /^\{"version":(\d{1,5}),"metadata":/
/** No schema has it, so that an event of another hand is noticed where events are decoded. */
const NO_VERSION = 0

/** The event of a response, null where it holds something else. Bytes are taken as they are, parsed by nobody. */
export function storedEvent(names: Names, response: ReadResponse): StoredEvent | null {
  const recorded = response.getEvent()?.getEvent()
  if (!recorded) return null
  const around = text(recorded.getCustomMetadata_asU8())
  const version = around.endsWith('}') ? METADATA.exec(around) : null
  return {
    position: positionOf({ commit: recorded.getCommitPosition(), prepare: recorded.getPreparePosition() }),
    stream: names.here(text(recorded.getStreamIdentifier()?.getStreamName_asU8())),
    revision: Number(recorded.getStreamRevision()),
    id: recorded.getId()?.getString() ?? '',
    type: recorded.getMetadataMap().get('type') ?? '',
    version: version ? Number(version[1]) : NO_VERSION,
    data: text(recorded.getData_asU8()),
    metadata: version ? around.slice(version[0].length, -1) : around,
  }
}

const text = (bytes: Uint8Array | undefined): string =>
  bytes ? Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('utf8') : ''
