/**
 * Whether the broker speaks the versions of the protocol that kafkajs speaks. kafkajs looks at the highest version that
 * a broker takes and not at the lowest: where a newer broker has dropped what kafkajs sends, the broker only closes the
 * connection, and kafkajs tries again. So it is asked once at the start, and what does not fit is named.
 */

import { once } from 'node:events'
import { connect as connectPlain, isIP, type Socket } from 'node:net'
import { type ConnectionOptions, connect as connectTls } from 'node:tls'
import { BrokerUnavailableError } from '../broker.ts'

/** The requests we make: their key in the protocol, and the highest version of each that kafkajs 2.2.4 knows. */
export const CLIENT_APIS = {
  Produce: { key: 0, highest: 7 },
  Fetch: { key: 1, highest: 11 },
  ListOffsets: { key: 2, highest: 3 },
  Metadata: { key: 3, highest: 6 },
  OffsetCommit: { key: 8, highest: 5 },
  OffsetFetch: { key: 9, highest: 4 },
  FindCoordinator: { key: 10, highest: 2 },
  JoinGroup: { key: 11, highest: 5 },
  Heartbeat: { key: 12, highest: 3 },
  LeaveGroup: { key: 13, highest: 3 },
  SyncGroup: { key: 14, highest: 3 },
  DescribeGroups: { key: 15, highest: 2 },
  SaslHandshake: { key: 17, highest: 1 },
  ApiVersions: { key: 18, highest: 2 },
  CreateTopics: { key: 19, highest: 3 },
  DeleteTopics: { key: 20, highest: 1 },
  InitProducerId: { key: 22, highest: 1 },
  DescribeConfigs: { key: 32, highest: 2 },
  SaslAuthenticate: { key: 36, highest: 1 },
  CreatePartitions: { key: 37, highest: 1 },
  DeleteGroups: { key: 42, highest: 1 },
} as const

export interface VersionRange {
  lowest: number
  highest: number
}

/** A broker that kafkajs cannot work with, now or ever. */
export class BrokerIncompatibleError extends Error {
  readonly code = 'broker_incompatible'
}

/** How a broker is reached. */
export interface BrokerAddress {
  /** `host:port` */
  broker: string
  tls?: ConnectionOptions | boolean
  /** For all of it; by default 10 s. */
  timeoutMs?: number
}

/** It is the first version, which every broker answers, whoever asks: also before a password is given. */
const API_VERSIONS = 18
const CLIENT_ID = 'rollcall'
/** Fifty-odd APIs take 6 bytes each. */
const ANSWER_BYTES_MAX = 64 * 1024
/** How an answer begins of one that expected TLS; as a length it would be beyond any. */
const TLS_ALERT = 0x15
const TLS_MAJOR = 3

/**
 * @throws BrokerIncompatibleError that names each API whose versions do not fit, and theirs and ours
 * @throws BrokerUnavailableError when none of the brokers could be asked
 */
export async function assertCompatible(
  brokers: readonly string[],
  options: Omit<BrokerAddress, 'broker'> = {},
): Promise<void> {
  let reason: Error | undefined
  for (const broker of brokers) {
    const versions = await apiVersions({ broker, ...options }).catch((error: Error) => {
      if (!(error instanceof BrokerUnavailableError)) throw error
      reason = error
    })
    if (!versions) continue
    const wrong = incompatibilities(versions)
    if (wrong.length === 0) return
    throw new BrokerIncompatibleError(
      `The Kafka broker ${broker} cannot be used with kafkajs 2.2.4: ${wrong.join('; ')}. ` +
        'The newest broker that it is tested with is Apache Kafka 4.3.1.',
    )
  }
  throw reason ?? new BrokerUnavailableError('No Kafka broker is given.')
}

/** What does not fit, in words; empty when all does. */
export function incompatibilities(versions: ReadonlyMap<number, VersionRange>): string[] {
  const wrong: string[] = []
  for (const [name, { key, highest }] of Object.entries(CLIENT_APIS)) {
    const theirs = versions.get(key)
    if (theirs === undefined) wrong.push(`it does not know ${name}`)
    else if (highest < theirs.lowest)
      wrong.push(`of ${name} it takes version ${theirs.lowest} to ${theirs.highest}, and we send ${highest}`)
  }
  return wrong
}

/** Asks one broker for the versions of each API, by its key. @throws BrokerUnavailableError, BrokerIncompatibleError */
export async function apiVersions(address: BrokerAddress): Promise<Map<number, VersionRange>> {
  const { broker, timeoutMs = 10_000 } = address
  const signal = AbortSignal.timeout(timeoutMs)
  const socket = open(address)
  let answer: Buffer
  try {
    await once(socket, address.tls ? 'secureConnect' : 'connect', { signal })
    socket.write(question())
    answer = await frame(socket, signal)
  } catch (cause) {
    const why = signal.aborted ? `no answer within ${timeoutMs} ms` : (cause as Error).message
    throw new BrokerUnavailableError(`The Kafka broker ${broker} cannot be reached: ${why}.`, { cause })
  } finally {
    socket.destroy()
  }
  return parse(answer, broker)
}

function open({ broker, tls }: BrokerAddress): Socket {
  const colon = broker.lastIndexOf(':')
  const host = broker.slice(0, colon).replace(/^\[(.*)\]$/, '$1')
  const port = Number(broker.slice(colon + 1))
  const socket = tls
    ? connectTls({ host, port, ...(isIP(host) ? {} : { servername: host }), ...(tls === true ? {} : tls) })
    : connectPlain({ host, port })
  socket.on('error', () => {}) // whoever waits is told
  return socket
}

/** Length; key, version, correlation id, client's name; no body. */
function question(): Buffer {
  const name = Buffer.from(CLIENT_ID)
  const request = Buffer.alloc(14 + name.length)
  request.writeInt32BE(10 + name.length, 0)
  request.writeInt16BE(API_VERSIONS, 4)
  request.writeInt16BE(0, 6)
  request.writeInt32BE(1, 8)
  request.writeInt16BE(name.length, 12)
  name.copy(request, 14)
  return request
}

/** One answer, without its length. */
async function frame(socket: Socket, signal: AbortSignal): Promise<Buffer> {
  let bytes = Buffer.alloc(0)
  const abort = (): void => void socket.destroy(new Error('no answer in time'))
  signal.addEventListener('abort', abort)
  try {
    for await (const chunk of socket) {
      bytes = Buffer.concat([bytes, chunk as Buffer])
      if (bytes.length < 4) continue
      if (bytes[0] === TLS_ALERT && bytes[1] === TLS_MAJOR) throw new Error('it wants TLS')
      const length = bytes.readInt32BE(0)
      if (length < 0 || length > ANSWER_BYTES_MAX) throw new Error('what answers there is no Kafka broker')
      if (bytes.length >= 4 + length) return bytes.subarray(4, 4 + length)
    }
  } finally {
    signal.removeEventListener('abort', abort)
  }
  throw new Error('it closed the connection instead of an answer')
}

/** Correlation id, error, count; then key, lowest and highest of each. */
function parse(answer: Buffer, broker: string): Map<number, VersionRange> {
  const count = answer.length >= 10 ? answer.readInt32BE(6) : -1
  if (count < 0 || answer.readInt16BE(4) !== 0 || answer.length < 10 + count * 6)
    throw new BrokerIncompatibleError(
      `What answers at ${broker} does not say which versions of Kafka's protocol it speaks, as every broker does.`,
    )
  const versions = new Map<number, VersionRange>()
  for (let at = 10; at < 10 + count * 6; at += 6)
    versions.set(answer.readInt16BE(at), {
      lowest: answer.readInt16BE(at + 2),
      highest: answer.readInt16BE(at + 4),
    })
  return versions
}
