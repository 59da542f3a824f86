/** What a client sends to be appended. */
import type { Expected, ProposedEvent } from './store.ts'
import type { StreamIdentifierMessage, UUIDMessage } from './stubs.ts'
import { readUUID } from './uuids.ts'

/** Appending, deleting and the batch have the same shape here, generated three times. */
interface Proposed {
  getId(): UUIDMessage | undefined
  getMetadataMap(): { get(key: string): string | undefined }
  getData_asU8(): Uint8Array
  getCustomMetadata_asU8(): Uint8Array
}

export class MissingMetadataError extends Error {
  readonly property: string

  constructor(property: string) {
    super(`The given key '${property}' was not present in the dictionary.`)
    this.property = property
  }
}

/** @throws MissingMetadataError, RangeError when the server would not take the event */
export function readProposed(message: Proposed): ProposedEvent {
  const map = message.getMetadataMap()
  const type = map.get('type')
  const contentType = map.get('content-type')
  if (type === undefined) throw new MissingMetadataError('type')
  if (contentType === undefined) throw new MissingMetadataError('content-type')
  if (type === '') throw new RangeError('Empty eventType provided.')
  return {
    id: readUUID(message.getId()),
    type,
    isJson: contentType === 'application/json',
    data: message.getData_asU8(),
    metadata: message.getCustomMetadata_asU8(),
  }
}

/** What an event counts against the bound of an append: its type in UTF-16, its data, its metadata. */
export const countedBytes = (event: ProposedEvent): number =>
  event.type.length * 2 + event.data.length + event.metadata.length

export const readStreamName = (message: StreamIdentifierMessage | undefined): string =>
  Buffer.from(message?.getStreamName_asU8() ?? []).toString('utf8')

const UINT64_MAX = 2n ** 64n - 1n
const INT64_MAX = 2n ** 63n - 1n

/** @throws RangeError for a number that is no revision */
export function readRevision(text: string): bigint {
  const revision = BigInt(text)
  if (revision === UINT64_MAX) return -1n
  if (revision > INT64_MAX) throw new RangeError('Specified argument was out of the range of valid values.')
  return revision
}

interface ExpectedOptions {
  hasNoStream(): boolean
  hasAny(): boolean
  hasStreamExists(): boolean
}

/**
 * @param revision what was sent as a revision, null where none was
 * @throws RangeError where nothing is expected, not even anything
 */
export function readExpected(options: ExpectedOptions, revision: string | null): Expected {
  if (options.hasNoStream()) return 'no_stream'
  if (options.hasAny()) return 'any'
  if (options.hasStreamExists()) return 'stream_exists'
  if (revision === null) throw new RangeError("'None' is not a valid expected stream revision")
  const number = readRevision(revision)
  return number < 0n ? 'no_stream' : number
}
