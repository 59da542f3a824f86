/**
 * Reads snappy. kafkajs has gzip only, and one record in another codec ends its consumer each time it is fetched
 * (PITFALLS K17). Topics that we make are kept without compression by the broker whatever a producer sends; this is for
 * topics that others made. Importing it registers it.
 *
 * The format: https://github.com/google/snappy/blob/main/format_description.txt, and the frame of the Java clients
 * (a header, then blocks that each have their length before them).
 */
import { readCodec } from './unreadable.ts'

const JAVA_FRAME = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0])
const JAVA_HEADER_BYTES = 16
/** A broker takes batches of 1 MB by default; a length beyond this is no length. */
const MOST_BYTES = 128 * 1024 * 1024

export class SnappyError extends Error {}

/** @throws SnappyError when it is not snappy */
export function unsnap(input: Buffer): Buffer {
  if (!input.subarray(0, JAVA_FRAME.length).equals(JAVA_FRAME)) return unsnapBlock(input)
  const blocks: Buffer[] = []
  for (let at = JAVA_HEADER_BYTES; at < input.length; ) {
    if (at + 4 > input.length) throw new SnappyError('A snappy frame ends within a length.')
    const length = input.readUInt32BE(at)
    at += 4
    if (at + length > input.length) throw new SnappyError('A snappy frame ends within a block.')
    blocks.push(unsnapBlock(input.subarray(at, at + length)))
    at += length
  }
  return Buffer.concat(blocks)
}

function unsnapBlock(input: Buffer): Buffer {
  let at = 0
  const byte = (): number => {
    const value = input[at++]
    if (value === undefined) throw new SnappyError('A snappy block ends too early.')
    return value
  }
  const number = (bytes: number): number => {
    let value = 0
    for (let i = 0; i < bytes; i++) value += byte() * 256 ** i
    return value
  }

  let total = 0
  for (let shift = 0; ; shift += 7) {
    const next = byte()
    total += (next & 0x7f) * 2 ** shift
    if (next < 0x80) break
    if (shift > 28) throw new SnappyError('A snappy block has no length.')
  }
  if (total > MOST_BYTES) throw new SnappyError(`A snappy block says it holds ${total} bytes.`)

  const output = Buffer.alloc(total)
  let end = 0
  while (at < input.length) {
    const tag = byte()
    const kind = tag & 3
    if (kind === 0) {
      const short = tag >> 2
      const length = (short < 60 ? short : number(short - 59)) + 1
      if (at + length > input.length || end + length > total)
        throw new SnappyError('A literal of a snappy block is longer than the block.')
      input.copy(output, end, at, at + length)
      at += length
      end += length
      continue
    }
    const length = kind === 1 ? ((tag >> 2) & 7) + 4 : (tag >> 2) + 1
    const back = kind === 1 ? (tag >> 5) * 256 + byte() : number(kind === 2 ? 2 : 4)
    if (back === 0 || back > end || end + length > total)
      throw new SnappyError('A copy of a snappy block points outside it.')
    // Byte by byte: a copy may reach into what it writes.
    for (let i = 0; i < length; i++, end++) output[end] = output[end - back]!
  }
  if (end !== total) throw new SnappyError('A snappy block is shorter than it says.')
  return output
}

readCodec('Snappy', unsnap)
