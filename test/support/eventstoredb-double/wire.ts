/**
 * Protobuf for the two answers that are made for every event: the generated code spends on each what the whole double
 * otherwise does. It writes from the back, so that the length of a message is known when it is written before it.
 */
import type { StoredEvent } from './store.ts'

const VARINT = 0
const BYTES = 2

class BackwardWriter {
  #buffer = Buffer.allocUnsafe(64 * 1024)
  #at = this.#buffer.length

  /** What was written, in a buffer of its own; the writer is empty again. */
  take(): Buffer {
    const made = Buffer.from(this.#buffer.subarray(this.#at))
    this.#at = this.#buffer.length
    return made
  }

  /** Where a message ends that is written from here on. */
  get mark(): number {
    return this.#buffer.length - this.#at
  }

  /** Puts tag and length before a message that was written since the mark. */
  message(field: number, mark: number): void {
    this.#varint(this.mark - mark)
    this.#tag(field, BYTES)
  }

  bytes(field: number, value: Uint8Array): void {
    this.#reserve(value.length + 16)
    this.#at -= value.length
    this.#buffer.set(value, this.#at)
    this.#varint(value.length)
    this.#tag(field, BYTES)
  }

  text(field: number, value: string): void {
    const length = Buffer.byteLength(value)
    this.#reserve(length + 16)
    this.#at -= length
    this.#buffer.write(value, this.#at, length)
    this.#varint(length)
    this.#tag(field, BYTES)
  }

  number(field: number, value: bigint): void {
    this.#reserve(16)
    if (value <= Number.MAX_SAFE_INTEGER) this.#varint(Number(value))
    else this.#bigVarint(value)
    this.#tag(field, VARINT)
  }

  #tag(field: number, type: number): void {
    this.#buffer[--this.#at] = (field << 3) | type
  }

  #varint(value: number): void {
    this.#reserve(16)
    let bytes = 1
    for (let rest = value; rest >= 128; rest = Math.floor(rest / 128)) bytes++
    this.#at -= bytes
    let rest = value
    for (let index = 0; index < bytes - 1; index++) {
      this.#buffer[this.#at + index] = (rest % 128) | 128
      rest = Math.floor(rest / 128)
    }
    this.#buffer[this.#at + bytes - 1] = rest
  }

  #bigVarint(value: bigint): void {
    const septets: number[] = []
    for (let rest = value; rest > 0n; rest >>= 7n) septets.push(Number(rest & 127n))
    for (const [index, septet] of septets.reverse().entries())
      this.#buffer[--this.#at] = index === 0 ? septet : septet | 128
  }

  #reserve(bytes: number): void {
    if (this.#at >= bytes) return
    const used = this.mark
    const larger = Buffer.allocUnsafe((this.#buffer.length + bytes) * 2)
    larger.set(this.#buffer.subarray(this.#at), larger.length - used)
    this.#buffer = larger
    this.#at = larger.length - used
  }
}

const writer = new BackwardWriter()

/** ReadResp with an event, its id as text. */
export function encodeEvent(event: StoredEvent): Buffer {
  const { position } = event
  writer.number(3, position)
  const recorded = writer.mark
  writer.bytes(8, event.data)
  if (event.metadata.length > 0) writer.bytes(7, event.metadata)
  mapEntry('content-type', event.isJson ? 'application/json' : 'application/octet-stream')
  mapEntry('created', event.createdTicks.toString())
  mapEntry('type', event.type)
  writer.number(5, position)
  writer.number(4, position)
  writer.number(3, event.revision)
  streamIdentifier(2, event.stream)
  uuid(1, event.id)
  writer.message(1, recorded)
  writer.message(1, 0)
  return writer.take()
}

/** BatchAppendResp of an append that has its place, its correlation id as text. */
export function encodeAppended(
  correlation: string,
  stream: string,
  revision: bigint,
  position: bigint,
): Buffer {
  streamIdentifier(4, stream)
  const success = writer.mark
  writer.number(2, position)
  writer.number(1, position)
  writer.message(3, success)
  writer.number(1, revision)
  writer.message(3, success)
  uuid(1, correlation)
  return writer.take()
}

/** Of the metadata, which is field 6 of an event. */
function mapEntry(key: string, value: string): void {
  const entry = writer.mark
  writer.text(2, value)
  writer.text(1, key)
  writer.message(6, entry)
}

function streamIdentifier(field: number, stream: string): void {
  const identifier = writer.mark
  writer.text(3, stream)
  writer.message(field, identifier)
}

function uuid(field: number, id: string): void {
  const message = writer.mark
  writer.text(2, id)
  writer.message(field, message)
}
