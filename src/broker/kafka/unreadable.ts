/**
 * Batches whose records cannot be read: compressed in a codec that there is no reader for, or broken. kafkajs would end
 * of them, each time it fetches (PITFALLS K17), and with the one partition all others of the consumer would wait.
 *
 * Instead one record comes for all of the batch: no key, the compressed bytes as its value, the place of the last of
 * them, and a header that says what it is. Whoever handles records finds it to be none that it knows, and keeps it.
 *
 * kafkajs asks a codec for the bytes of all records and reads from them as many as the batch's head names. So the codec
 * writes that many: it is handed a view of the bytes of the whole batch, and the head stands before it.
 */
import { randomUUID } from 'node:crypto'
import kafkajs, { type KafkaMessage } from 'kafkajs'

/** Of a record that stands for a batch. */
export const UNREADABLE = 'rollcall_unreadable'
/** No producer knows it, so none can write one. */
const MARK = `unreadable-${randomUUID()}`

/** Where the fields of a batch's head are, and how long it is. */
const HEAD = { length: 8, magic: 16, lastOffsetDelta: 23, count: 57, bytes: 61 } as const
/** The length counts what is after it. */
const LENGTH_END = 12
const MAGIC = 2
/** More than a batch of 1 MB holds in any codec that compresses well; each takes some ten bytes here. */
const MOST_RECORDS = 1_000_000

type Decompress = (bytes: Buffer) => Buffer | Promise<Buffer>

// These two are no exports that a module could name.
const { CompressionCodecs, CompressionTypes } = kafkajs

/** Has the client read a codec by this, and what this throws on as described above. */
export function readCodec(codec: 'GZIP' | 'Snappy' | 'LZ4' | 'ZSTD', decompress: Decompress): void {
  const name = codec.toLowerCase()
  CompressionCodecs[CompressionTypes[codec]] = () => ({
    compress: async () => {
      throw new Error(`Records are sent without compression; ${name} is only read.`)
    },
    decompress: async (bytes: Buffer) => {
      try {
        return await decompress(bytes)
      } catch (error) {
        return standIns(bytes, `${name}: ${error instanceof Error ? error.message : String(error)}`)
      }
    },
  })
}

export interface Unreadable {
  /** In words: the codec, how many records, why. */
  reason: string
}

/** What a message stands for: itself, a whole batch, or nothing, because another stands for its batch. */
export function standsFor(message: KafkaMessage): 'itself' | 'nothing' | Unreadable {
  const mark = message.headers?.[MARK]
  if (mark === undefined) return 'itself'
  const reason = String(mark)
  return reason === '' ? 'nothing' : { reason }
}

/** As many records as the batch has; the last one stands for all. @throws when these bytes are not within a batch */
function standIns(bytes: Buffer, reason: string): Buffer {
  const { count, lastOffsetDelta } = headBefore(bytes)
  const records: Buffer[] = []
  for (let i = 0; i < count - 1; i++) records.push(recordOf({ offsetDelta: i, value: null, mark: '' }))
  const mark = `${count} records, ${reason}`
  records.push(recordOf({ offsetDelta: lastOffsetDelta, value: bytes, mark }))
  return Buffer.concat(records)
}

function headBefore(bytes: Buffer): { count: number; lastOffsetDelta: number } {
  const start = bytes.byteOffset - HEAD.bytes
  if (start < 0) throw new Error('The bytes of a codec do not stand in a batch.')
  const head = Buffer.from(bytes.buffer, start, HEAD.bytes)
  const count = head.readInt32BE(HEAD.count)
  const whole = head.readInt32BE(HEAD.length) === HEAD.bytes - LENGTH_END + bytes.length
  if (!whole || head.readInt8(HEAD.magic) !== MAGIC || count < 1 || count > MOST_RECORDS)
    throw new Error('The head of a batch is not where it should be.')
  return { count, lastOffsetDelta: head.readInt32BE(HEAD.lastOffsetDelta) }
}

interface StandIn {
  offsetDelta: number
  value: Buffer | null
  mark: string
}

/** Length; attributes, difference of time and of offset, key, value, headers. */
function recordOf({ offsetDelta, value, mark }: StandIn): Buffer {
  const body = Buffer.concat([
    Buffer.from([0, 0]),
    varint(offsetDelta),
    field(null),
    field(value),
    varint(1),
    field(Buffer.from(MARK)),
    field(Buffer.from(mark)),
  ])
  return Buffer.concat([varint(body.length), body])
}

function field(bytes: Buffer | null): Buffer {
  return bytes === null ? varint(-1) : Buffer.concat([varint(bytes.length), bytes])
}

/** Zigzag, seven bits to a byte. */
function varint(value: number): Buffer {
  const bytes: number[] = []
  for (let rest = ((value << 1) ^ (value >> 31)) >>> 0; ; rest >>>= 7) {
    if (rest < 0x80) return Buffer.from([...bytes, rest])
    bytes.push((rest & 0x7f) | 0x80)
  }
}

const noReader: Decompress = () => {
  throw new Error('there is no reader for it')
}
readCodec('LZ4', noReader)
readCodec('ZSTD', noReader)
