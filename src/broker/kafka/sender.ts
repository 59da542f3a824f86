/**
 * Sends records: one producer, made when it is first needed (PITFALLS K15, K20). It is not the idempotent one, which
 * would change nothing across restarts (K13): whoever reads knows a record by what is in it.
 */
import { type Kafka, type Message, Partitioners, type Producer } from 'kafkajs'
import type { BaseLogger } from 'pino'
import { BrokerUnavailableError, type OutgoingRecord, RecordRefusedError } from '../broker.ts'
import { pause, within } from '../deadline.ts'
import type { Contact } from './contact.ts'
import { brokerCodes, portError } from './errors.ts'
import { type KafkaTimeouts, RETRY } from './options.ts'

/** The broker takes batches of 1,048,588 bytes by default, and the client puts all records of a partition in one. */
const CHUNK_BYTES = 1_000_000
/** Of a record, beside its parts: lengths, times, offsets. */
const RECORD_OVERHEAD_BYTES = 64
/** Sends that are under way, those included that nobody waits for any more. */
const MOST_SENDS = 1_000
const ALL_REPLICAS = -1
/** So much earlier than a send the first contact ends, which knows why nobody was reached. */
const REASON_MS = 50

export interface SenderOptions {
  kafka: Kafka
  contact: Contact
  timeouts: KafkaTimeouts
  logger: BaseLogger
}

export class Sender {
  readonly #kafka: Kafka
  readonly #contact: Contact
  readonly #timeouts: KafkaTimeouts
  readonly #logger: BaseLogger
  readonly #closing = new AbortController()
  #producer: Promise<Producer> | null = null
  #sends = 0

  constructor({ kafka, contact, timeouts, logger }: SenderOptions) {
    this.#kafka = kafka
    this.#contact = contact
    this.#timeouts = timeouts
    this.#logger = logger
  }

  /** @throws BrokerUnavailableError, RecordRefusedError: see the port */
  async send(topic: string, records: readonly OutgoingRecord[]): Promise<void> {
    if (records.length === 0) return
    const what = `A send of ${records.length} records to ${topic}`
    if (this.#closing.signal.aborted) throw new BrokerUnavailableError(`${what} came after the close.`)
    if (this.#sends >= MOST_SENDS)
      throw new BrokerUnavailableError(`${what} was not begun: ${MOST_SENDS} sends are under way already.`)
    this.#sends++
    const sending = this.#sendChunks(topic, records).finally(() => this.#sends--)
    try {
      await within(sending, this.#timeouts.sendMs, what)
    } catch (error) {
      throw portError(error, what)
    }
  }

  /** Waits for what is under way for a bounded time. Safe to repeat. */
  async close(): Promise<void> {
    this.#closing.abort()
    const waited = performance.now()
    while (this.#sends > 0 && performance.now() - waited < this.#timeouts.stopMs)
      await pause(20, new AbortController().signal)
    await this.#drop(this.#producer)
  }

  async #sendChunks(topic: string, records: readonly OutgoingRecord[]): Promise<void> {
    const deadline = performance.now() + this.#timeouts.sendMs
    let refusal: unknown = null
    const waiting = chunksOf(records)
    for (let chunk = waiting.shift(); chunk; chunk = waiting.shift()) {
      if (performance.now() > deadline)
        throw new BrokerUnavailableError('Its time was over before its last part.')
      try {
        await this.#contact.reach(deadline - performance.now() - REASON_MS, this.#closing.signal)
        await this.#sendChunk(topic, chunk)
      } catch (error) {
        if (!(portError(error, topic) instanceof RecordRefusedError)) throw error
        if (brokerCodes(error).includes('INVALID_TOPIC_EXCEPTION')) throw error
        // Which of them it is the broker does not say; the others are not to suffer for it.
        if (chunk.length > 1) waiting.unshift(...chunk.map(record => [record]))
        else refusal ??= error
      }
    }
    if (refusal !== null) throw refusal
  }

  async #sendChunk(topic: string, records: readonly OutgoingRecord[]): Promise<void> {
    const connecting = this.#connected()
    const producer = await connecting
    const messages = records.map(
      ({ key, value, headers }): Message => ({ key, value, headers: { ...headers } }),
    )
    try {
      await producer.send({ topic, messages, acks: ALL_REPLICAS, timeout: this.#timeouts.requestMs })
    } catch (error) {
      // The client asks for all topics it ever sent to in one request: one that was deleted fails it for all others.
      if (brokerCodes(error).includes('UNKNOWN_TOPIC_OR_PARTITION') && this.#producer === connecting) {
        this.#producer = null
        void this.#drop(connecting)
      }
      // It was no broker that said so: who listens there now is not known.
      if (brokerCodes(error).length === 0) this.#contact.forget()
      throw error
    }
  }

  #connected(): Promise<Producer> {
    if (this.#producer) return this.#producer
    const connecting = this.#connect()
    this.#producer = connecting
    connecting.catch(() => {
      if (this.#producer === connecting) this.#producer = null
    })
    return connecting
  }

  async #connect(): Promise<Producer> {
    const producer = this.#kafka.producer({
      allowAutoTopicCreation: false,
      createPartitioner: Partitioners.DefaultPartitioner,
      idempotent: false,
      retry: RETRY,
    })
    try {
      await producer.connect()
    } catch (error) {
      producer.disconnect().catch(() => {})
      throw error
    }
    return producer
  }

  async #drop(connecting: Promise<Producer> | null): Promise<void> {
    if (!connecting) return
    try {
      const leaving = connecting.then(producer => producer.disconnect())
      await within(leaving, this.#timeouts.stopMs, 'The end of the producer')
    } catch (err) {
      this.#logger.debug({ err }, 'the kafka producer did not end in order')
    }
  }
}

/** Those that may be too large come first and alone: when the broker refuses one, as little as can be was sent. */
function chunksOf(records: readonly OutgoingRecord[]): (readonly OutgoingRecord[])[] {
  const large: OutgoingRecord[][] = []
  const chunks: OutgoingRecord[][] = []
  let bytes = 0
  for (const record of records) {
    const size = sizeOf(record)
    if (size > CHUNK_BYTES) {
      large.push([record])
      continue
    }
    const last = chunks.at(-1)
    if (last && bytes + size <= CHUNK_BYTES) {
      last.push(record)
      bytes += size
    } else {
      chunks.push([record])
      bytes = size
    }
  }
  return [...large, ...chunks]
}

function sizeOf({ key, value, headers }: OutgoingRecord): number {
  let bytes = RECORD_OVERHEAD_BYTES + Buffer.byteLength(key) + (value?.length ?? 0)
  for (const [name, text] of Object.entries(headers))
    bytes += Buffer.byteLength(name) + Buffer.byteLength(text) + 8
  return bytes
}
