/**
 * The log of the double: streams, their numbering, the order of all events, and the rules by which an append is
 * written, recognised as a repetition or refused. No protocol in here.
 *
 * A position is the byte at which a record begins; commit and prepare are the same, as they are for every append
 * that is written in one piece.
 */
import { randomUUID } from 'node:crypto'
import { RecentIds } from './recent-ids.ts'

/** 2^63 - 1: the number of the last event that a stream can have, and of a tombstone. */
export const REVISION_MAX = 2n ** 63n - 1n
export const NO_STREAM = -1n

export interface ProposedEvent {
  /** UUID in lower case. */
  id: string
  type: string
  isJson: boolean
  data: Uint8Array
  metadata: Uint8Array
}

export interface StoredEvent extends ProposedEvent {
  stream: string
  revision: bigint
  position: bigint
  /** Where the next record begins. */
  end: bigint
  /** Hundreds of nanoseconds since 1970. */
  createdTicks: bigint
  /** The answer that carries the event, made when it is first read. */
  wire: Buffer | null
}

export type Expected = bigint | 'any' | 'no_stream' | 'stream_exists'

/**
 * - `written`: `revision` is -1 where a stream without events got an append without events
 * - `repeated`: the same ids stand there already; `revision` is that of the old append's last event, `position` is
 *   null where that event cannot be read any more
 * - `wrong_expected_version`: `current` is -1 where there is no such stream
 */
export type AppendOutcome =
  | { kind: 'written'; revision: bigint; position: bigint }
  | { kind: 'repeated'; revision: bigint; position: bigint | null }
  | { kind: 'wrong_expected_version'; current: bigint }
  | { kind: 'stream_deleted' }

/** What a stream's metadata stream says of what can be read of it. */
interface StreamMetadata {
  truncateBefore: bigint
  softDeleted: boolean
  maxCount: bigint | null
  maxAgeMs: number | null
}

interface Stream {
  name: string
  nameBytes: number
  events: StoredEvent[]
  tombstoned: boolean
  metadata: StreamMetadata
}

const NO_METADATA: StreamMetadata = { truncateBefore: 0n, softDeleted: false, maxCount: null, maxAgeMs: null }
const NO_BYTES = new Uint8Array(0)
/** Ids, numbers, flags, lengths and the time of a record that is stored in one piece. */
const RECORD_BYTES = 88
const TICKS_PER_MS = 10_000n

export interface StoreOptions {
  /** Where the first record begins, as in a log that has been used. */
  firstPosition?: bigint
  /** Bound of the cache of recent event ids; the server's is 8 MiB. */
  recentIdsBytes?: number
  now?: () => number
}

export class EventStoreDBStore {
  readonly #streams = new Map<string, Stream>()
  readonly #recentIds: RecentIds
  readonly #listeners = new Set<() => void>()
  readonly #now: () => number
  readonly #firstPosition: bigint
  #records: StoredEvent[] = []
  #end: bigint
  /** Without it a repetition is a conflict, as from a server that does not find the events of before. */
  recognisesRepetitions = true

  constructor(options: StoreOptions = {}) {
    this.#recentIds = new RecentIds(options.recentIdsBytes ?? 8 * 1024 * 1024)
    this.#now = options.now ?? Date.now
    this.#firstPosition = options.firstPosition ?? 0n
    this.#end = this.#firstPosition
  }

  /** All events in the order of the log. */
  get records(): readonly StoredEvent[] {
    return this.#records
  }

  /** Where the next record will begin. */
  get end(): bigint {
    return this.#end
  }

  /** Position of the last record, -1 in an empty log. */
  get lastPosition(): bigint {
    return this.#records.at(-1)?.position ?? -1n
  }

  /** Called after every append that wrote something. */
  onAppended(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  append(name: string, expected: Expected, events: readonly ProposedEvent[]): AppendOutcome {
    const stream = this.#streams.get(name)
    const refused = this.#check(stream, name, expected, events)
    if (refused) return refused
    const target = stream ?? this.#newStream(name)
    const undelete = target.metadata.softDeleted && events.length > 0
    const firstRevision = BigInt(target.events.length)
    let last: StoredEvent | undefined
    for (const event of events) last = this.#write(target, event)
    if (undelete) this.#undelete(target, firstRevision)
    this.#notify()
    return {
      kind: 'written',
      revision: BigInt(target.events.length) - 1n,
      position: last?.position ?? this.lastPosition,
    }
  }

  /** Hides a stream's events; a later append goes on with its numbers. */
  softDelete(name: string, expected: Expected): AppendOutcome {
    const stream = this.#streams.get(name)
    const id = randomUUID()
    const refused = this.#check(stream, name, expected, [{ id }])
    if (refused) return refused
    if (!stream?.events.length && !this.#streams.get(`$$${name}`)?.events.length)
      return { kind: 'wrong_expected_version', current: NO_STREAM }
    // In figures that a double could not hold, so as text.
    const event = this.#writeMetadata(name, `{"$tb":${REVISION_MAX}}`, id)
    this.#notify()
    return { kind: 'written', revision: event.revision, position: event.position }
  }

  /** Ends a stream for ever: no read, no append. */
  tombstone(name: string, expected: Expected): AppendOutcome {
    const stream = this.#streams.get(name)
    const id = randomUUID()
    const refused = this.#check(stream, name, expected, [{ id }])
    if (refused) return refused
    const target = stream ?? this.#newStream(name)
    target.tombstoned = true
    const event = this.#write(target, {
      id,
      type: '$streamDeleted',
      isJson: true,
      data: NO_BYTES,
      metadata: NO_BYTES,
    })
    this.#notify()
    return { kind: 'written', revision: event.revision, position: event.position }
  }

  /**
   * A stream as it can be read: null where it does not exist or is softly deleted.
   *
   * @returns `min` is the first revision that may be read; of the events themselves none is missing
   */
  stream(
    name: string,
  ): { events: readonly StoredEvent[]; min: bigint; notBeforeTicks: bigint } | 'tombstoned' | null {
    const stream = this.#streams.get(name)
    if (!stream) return null
    if (stream.tombstoned) return 'tombstoned'
    const { metadata, events } = stream
    if (events.length === 0 || metadata.softDeleted) return null
    const last = BigInt(events.length) - 1n
    const byCount = metadata.maxCount === null ? 0n : last - metadata.maxCount + 1n
    return {
      events,
      min: byCount > metadata.truncateBefore ? byCount : metadata.truncateBefore,
      notBeforeTicks:
        metadata.maxAgeMs === null ? 0n : BigInt(this.#now() - metadata.maxAgeMs) * TICKS_PER_MS,
    }
  }

  /** Last revision of a stream, also of one that is softly deleted; -1 where it has none. */
  lastRevision(name: string): bigint {
    const stream = this.#streams.get(name)
    if (stream?.tombstoned) return REVISION_MAX
    return BigInt(stream?.events.length ?? 0) - 1n
  }

  /** The event that a link names, null where it cannot be read. */
  resolve(link: StoredEvent): StoredEvent | null {
    const [revision = '', ...name] = Buffer.from(link.data).toString('utf8').split('@')
    const stream = /^\d+$/.test(revision) ? this.stream(name.join('@')) : null
    if (stream === null || stream === 'tombstoned') return null
    return stream.events[Number(revision)] ?? null
  }

  /** Index of the first record that begins at a position or behind it. */
  indexAt(position: bigint): number {
    let low = 0
    let high = this.#records.length
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#records[middle]!.position < position) low = middle + 1
      else high = middle
    }
    return low
  }

  /** Whether a record begins or ends at a position. Before the first record lies what was cleared away. */
  isBoundary(position: bigint): boolean {
    if (position <= this.#firstPosition || position === this.#end) return true
    const index = this.indexAt(position)
    return this.#records[index]?.position === position || this.#records[index - 1]?.end === position
  }

  /** Leaves bytes that hold no event, as the server's own records do. */
  skip(bytes: number): void {
    this.#end += BigInt(bytes)
  }

  /** Forgets what an in-memory cache forgets when the server is started again. */
  restarted(): void {
    this.#recentIds.clear()
  }

  /** Goes back to an older copy: forgets every record behind a position, all of them with -1. */
  truncateAfter(position: bigint): void {
    while (this.lastPosition > position) {
      const record = this.#records.pop()!
      const stream = this.#streams.get(record.stream)!
      if (record.revision === REVISION_MAX) stream.tombstoned = false
      else stream.events.pop()
    }
    for (const [name, stream] of this.#streams) {
      if (stream.events.length === 0 && !stream.tombstoned) this.#streams.delete(name)
      if (name.startsWith('$$')) this.#readMetadata(stream)
    }
    this.#end = this.#records.at(-1)?.end ?? this.#firstPosition
    this.#recentIds.clear()
  }

  /** Null when the append is to be written. */
  #check(
    stream: Stream | undefined,
    name: string,
    expected: Expected,
    events: readonly { id: string }[],
  ): AppendOutcome | null {
    if (stream?.tombstoned) return { kind: 'stream_deleted' }
    const current = BigInt(stream?.events.length ?? 0) - 1n
    if (expected === 'stream_exists') {
      if (stream?.metadata.softDeleted) return { kind: 'stream_deleted' }
      if (current < 0n && !this.#streams.get(`$$${name}`)?.events.length)
        return { kind: 'wrong_expected_version', current }
    }
    if (expected === 'any' || expected === 'stream_exists') return this.#checkRecent(name, current, events)
    const wanted = expected === 'no_stream' ? NO_STREAM : expected
    if (wanted > current) return { kind: 'wrong_expected_version', current }
    if (wanted < current) return this.#checkRepetition(stream!, wanted, current, events)
    return null
  }

  /** Without an expectation a repetition is recognised only by what is still remembered. */
  #checkRecent(name: string, current: bigint, events: readonly { id: string }[]): AppendOutcome | null {
    let last = NO_STREAM
    for (const [index, { id }] of events.entries()) {
      const known = this.#recentIds.get(id)
      if (known?.stream !== name) return index === 0 ? null : { kind: 'wrong_expected_version', current }
      last = known.revision
    }
    if (events.length === 0) return null
    return { kind: 'repeated', revision: last, position: this.#readablePosition(name, last) }
  }

  /** Behind the stream's end an append is a repetition when all its ids stand where they would have been written. */
  #checkRepetition(
    stream: Stream,
    wanted: bigint,
    current: bigint,
    events: readonly { id: string }[],
  ): AppendOutcome | null {
    if (!this.recognisesRepetitions) return { kind: 'wrong_expected_version', current }
    const from = Number(wanted) + 1
    for (const [index, { id }] of events.entries()) {
      if (stream.events[from + index]?.id === id) continue
      if (index === 0 && wanted === NO_STREAM && stream.metadata.softDeleted) return null
      return { kind: 'wrong_expected_version', current }
    }
    if (events.length === 0) return { kind: 'wrong_expected_version', current }
    const last = wanted + BigInt(events.length)
    return { kind: 'repeated', revision: last, position: this.#readablePosition(stream.name, last) }
  }

  #readablePosition(name: string, revision: bigint): bigint | null {
    const stream = this.stream(name)
    if (stream === null || stream === 'tombstoned' || revision < stream.min) return null
    return stream.events[Number(revision)]?.position ?? null
  }

  #newStream(name: string): Stream {
    // The metadata may have been written before the first event.
    const metadataStream = this.#streams.get(`$$${name}`)
    const stream = {
      name,
      nameBytes: Buffer.byteLength(name),
      events: [],
      tombstoned: false,
      metadata: metadataStream ? parseMetadata(metadataStream.events.at(-1)) : NO_METADATA,
    }
    this.#streams.set(name, stream)
    return stream
  }

  #write(stream: Stream, event: ProposedEvent): StoredEvent {
    const bytes =
      RECORD_BYTES +
      textBytes(stream.nameBytes) +
      textBytes(Buffer.byteLength(event.type)) +
      event.data.length +
      event.metadata.length
    const position = this.#end
    this.#end = position + BigInt(bytes)
    const stored: StoredEvent = {
      id: event.id,
      type: event.type,
      isJson: event.isJson,
      data: event.data,
      metadata: event.metadata,
      stream: stream.name,
      revision: stream.tombstoned ? REVISION_MAX : BigInt(stream.events.length),
      position,
      end: this.#end,
      createdTicks: BigInt(this.#now()) * TICKS_PER_MS,
      wire: null,
    }
    this.#records.push(stored)
    if (!stream.tombstoned) stream.events.push(stored)
    this.#recentIds.put(event.id, stream.name, stored.revision)
    if (stream.name.startsWith('$$')) this.#readMetadata(stream)
    return stored
  }

  #writeMetadata(name: string, json: string, id: string): StoredEvent {
    const stream = this.#streams.get(`$$${name}`) ?? this.#newStream(`$$${name}`)
    const data = Buffer.from(json)
    return this.#write(stream, { id, type: '$metadata', isJson: true, data, metadata: NO_BYTES })
  }

  /** An append to a softly deleted stream makes it readable again from that append on. */
  #undelete(stream: Stream, firstRevision: bigint): void {
    const raw = this.#streams.get(`$$${stream.name}`)?.events.at(-1)
    const parsed: unknown = raw ? JSON.parse(Buffer.from(raw.data).toString('utf8')) : {}
    const json = JSON.stringify({ ...(parsed as object), $tb: Number(firstRevision) })
    this.#writeMetadata(stream.name, json, randomUUID())
  }

  #readMetadata(metadataStream: Stream): void {
    const stream = this.#streams.get(metadataStream.name.slice(2))
    if (stream) stream.metadata = parseMetadata(metadataStream.events.at(-1))
  }

  #notify(): void {
    for (const listener of this.#listeners) listener()
  }
}

/** Bytes of a text with its length before it. */
function textBytes(bytes: number): number {
  return bytes + (bytes < 128 ? 1 : bytes < 16_384 ? 2 : 3)
}

/** What cannot be read counts as no metadata. */
function parseMetadata(event: StoredEvent | undefined): StreamMetadata {
  if (!event) return NO_METADATA
  let parsed: { $tb?: unknown; $maxCount?: unknown; $maxAge?: unknown }
  try {
    parsed = JSON.parse(Buffer.from(event.data).toString('utf8'))
  } catch {
    return NO_METADATA
  }
  const truncateBefore = typeof parsed?.$tb === 'number' ? parsed.$tb : 0
  return {
    softDeleted: truncateBefore >= 2 ** 63,
    truncateBefore: BigInt(truncateBefore),
    maxCount: typeof parsed?.$maxCount === 'number' ? BigInt(parsed.$maxCount) : null,
    maxAgeMs: typeof parsed?.$maxAge === 'number' ? parsed.$maxAge * 1_000 : null,
  }
}
