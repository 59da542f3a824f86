/** What the tests of the adapter share: a broker of their own, and a reader that says what it got. */
import { createRequire } from 'node:module'
import kafkajs, { type Admin, Kafka, logLevel, type Producer } from 'kafkajs'
import { pino } from 'pino'
import type { Test } from 'tap'
import type { Broker, Consumer, IncomingRecord, OutgoingRecord } from '../../../src/broker/broker.ts'
import {
  type KafkaOptions,
  type KafkaTimeouts,
  openKafkaBroker,
} from '../../../src/broker/kafka/kafka-broker.ts'

export const { CompressionCodecs, CompressionTypes } = kafkajs

/** Short, so that what is reported after a while is reported within a test. */
export const QUICK: Partial<KafkaTimeouts> = {
  connectMs: 1_000,
  requestMs: 3_000,
  sendMs: 3_000,
  stopMs: 4_000,
  sessionMs: 6_000,
  heartbeatMs: 300,
  rebalanceMs: 1_500,
  fetchWaitMs: 100,
  watchMs: 200,
  stallMs: 3_000,
  outMs: 1_000,
  firstRetryMs: 50,
  lastRetryMs: 500,
}

export interface Server {
  readonly brokers: readonly string[]
}

export function open(
  t: Test,
  server: Server,
  timeouts: Partial<KafkaTimeouts> = {},
  security: Pick<KafkaOptions, 'tls' | 'sasl'> = {},
): { broker: Broker; lines: string[] } {
  const lines: string[] = []
  const logger = pino({ level: 'debug' }, { write: (line: string) => void lines.push(line) })
  const broker = openKafkaBroker({
    brokers: server.brokers,
    clientId: 'rollcall-test',
    logger,
    timeouts: { ...QUICK, ...timeouts },
    ...security,
  })
  t.teardown(() => broker.close())
  return { broker, lines }
}

/** The client as others use it. */
export function plainClient(server: Server): Kafka {
  const retry = { retries: 5, initialRetryTime: 100 }
  return new Kafka({ brokers: [...server.brokers], logLevel: logLevel.NOTHING, retry })
}

/** Connected until the test ends. */
export async function plainAdmin(t: Test, server: Server): Promise<Admin> {
  const admin = plainClient(server).admin()
  t.teardown(() => admin.disconnect())
  await admin.connect()
  return admin
}

/** Connected until the test ends. */
export async function plainProducer(t: Test, server: Server): Promise<Producer> {
  const producer = plainClient(server).producer({ allowAutoTopicCreation: false })
  t.teardown(() => producer.disconnect())
  await producer.connect()
  return producer
}

export const record = (key: string, value: string | null = key): OutgoingRecord => ({
  key,
  value: value === null ? null : Buffer.from(value),
  headers: {},
})

export interface Reader {
  consumer: Consumer
  got: IncomingRecord[]
  keys: () => string[]
}

/** Keeps what comes. */
export function read(
  broker: Broker,
  topics: string[],
  options: {
    group?: string
    before?: (records: readonly IncomingRecord[], signal: AbortSignal) => Promise<void> | void
  } = {},
): Reader {
  const got: IncomingRecord[] = []
  const consumer = broker.consume({
    group: options.group ?? `of-${topics[0]}`,
    topics,
    onBatch: async (records, signal) => {
      await options.before?.(records, signal)
      got.push(...records)
    },
  })
  return { consumer, got, keys: () => got.map(one => String(one.key)) }
}

export async function until(what: string, met: () => boolean | Promise<boolean>, ms = 15_000): Promise<void> {
  const end = performance.now() + ms
  while (!(await met())) {
    if (performance.now() > end) throw new Error(`In ${ms} ms it did not come to this: ${what}`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

let reads = 0
let broken = false
/** How often the client had to read snappy. */
export const snappyReads = (): number => reads

type Write = (bytes: Buffer) => Buffer
interface Codec {
  decompress(bytes: Buffer): Promise<Buffer>
}

/** Has the client of the tests write what it otherwise only reads, or does not even read; nothing is made smaller. */
export function writeCodecs(): void {
  const write = (type: 2 | 3 | 4, compress: Write): void => {
    const codec: Codec = CompressionCodecs[type]()
    CompressionCodecs[type] = () => ({
      compress: async ({ buffer }: { buffer: Buffer }) => compress(buffer),
      decompress: async (bytes: Buffer) => {
        if (type === CompressionTypes.Snappy) {
          reads++
          if (broken) throw new TypeError('one that ends the client for good')
        }
        return codec.decompress(bytes)
      },
    })
  }
  write(CompressionTypes.Snappy, snap)
  write(CompressionTypes.LZ4, lz4)
  write(CompressionTypes.ZSTD, zstd)
}

/** A frame of blocks of at most 64 KiB that are kept as they are, without checksums. */
export function lz4(bytes: Buffer): Buffer {
  const parts: Buffer[] = [Buffer.from([0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82])]
  for (let at = 0; at < bytes.length; at += 65_536) {
    const part = bytes.subarray(at, at + 65_536)
    const size = Buffer.alloc(4)
    size.writeUInt32LE((part.length | 0x80000000) >>> 0)
    parts.push(size, part)
  }
  return Buffer.concat([...parts, Buffer.alloc(4)])
}

/** One raw block. */
export function zstd(bytes: Buffer): Buffer {
  const head = Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38])
  const size = Buffer.alloc(4)
  size.writeUInt32LE(bytes.length * 8 + 1)
  return Buffer.concat([head, size.subarray(0, 3), bytes])
}

/** Until the returned function is called, the client ends of each fetch with snappy in it. */
export function breakSnappy(): () => void {
  broken = true
  return () => {
    broken = false
  }
}

interface RequestQueue {
  checkPendingRequests(): void
}

/** Counts how often the client's connections look whether a request waits. */
export function countLooks(t: Test): () => number {
  const loaded: unknown = createRequire(import.meta.url)('kafkajs/src/network/requestQueue/index.js')
  const { prototype } = loaded as { prototype: RequestQueue }
  const original = prototype.checkPendingRequests
  let looks = 0
  prototype.checkPendingRequests = function counted(this: RequestQueue) {
    looks++
    original.call(this)
  }
  t.teardown(() => {
    prototype.checkPendingRequests = original
  })
  return () => looks
}

export function snap(buffer: Buffer): Buffer {
  const block: Buffer[] = [varint(buffer.length)]
  for (let at = 0; at < buffer.length; at += 60) {
    const part = buffer.subarray(at, at + 60)
    block.push(Buffer.from([(part.length - 1) << 2]), part)
  }
  const body = Buffer.concat(block)
  const length = Buffer.alloc(4)
  length.writeUInt32BE(body.length)
  const header = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0, 0, 0, 0, 1, 0, 0, 0, 1])
  return Buffer.concat([header, length, body])
}

function varint(value: number): Buffer {
  const bytes: number[] = []
  for (let rest = value; ; rest >>>= 7) {
    if (rest < 0x80) return Buffer.from([...bytes, rest])
    bytes.push((rest & 0x7f) | 0x80)
  }
}
