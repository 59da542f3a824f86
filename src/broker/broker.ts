/**
 * The port to the message broker: topics, sending, consuming. Delivery is at least once and in no order that anything
 * may rest on; what a record means is decided by the log. `src/broker/kafka` is the adapter.
 */

/** A record to send. Everything about a task has its id as key. */
export interface OutgoingRecord {
  key: string
  /** null is a compacted topic's deletion. */
  value: Buffer | null
  headers: Readonly<Record<string, string>>
}

/** A record as it came, byte for byte. */
export interface IncomingRecord {
  topic: string
  partition: number
  /** Decimal. */
  offset: string
  key: Buffer | null
  value: Buffer | null
  /** A name may stand more than once: its values then stand together, in their order. */
  headers: readonly (readonly [string, Buffer])[]
  /** By the producer's clock, or the broker's: data, never compared with ours. Milliseconds. */
  timestamp: number
}

export interface Topic {
  name: string
  partitions: number
  /** Only the newest record of a key is kept. */
  compacted: boolean
}

export interface Consumer {
  /**
   * Whether it makes progress: it is a member of its group, and the place it has handled moves while there is
   * something before it. A ping proves nothing (PITFALLS K5, K6).
   */
  health(): { ok: boolean; reason: string | null }
  /** Takes no more, waits for the batch under way for a bounded time, leaves the group; safe to call twice. */
  stop(): Promise<void>
}

/** Less than the whole of a batch. */
export interface HandledPart {
  /** How many of its first records are handled, at least one; the others are handed on again at once. */
  count: number
  /** Called when the place was moved behind them, or when that failed: then they come again to whoever is next. */
  onPassed: () => void
}

export interface Consuming {
  group: string
  topics: readonly string[]
  /**
   * Handles a batch of one partition, one batch at a time per partition. Only when it resolves is the batch passed, or as
   * much of it as it says; when it rejects the same records come again, after a pause that grows. The signal fires when a
   * stop waits no longer.
   */
  // biome-ignore lint/suspicious/noConfusingVoidType: most handle the whole batch and have nothing to say.
  onBatch: (records: readonly IncomingRecord[], signal: AbortSignal) => Promise<HandledPart | void>
  /** At most so many are handed on, and then passed, at once; 500 where it is left out. */
  recordsAtOnce?: number
}

export interface Broker {
  /** Creates the topics that are missing; others stay as they are. @throws BrokerUnavailableError */
  ensureTopics(topics: readonly Topic[]): Promise<void>
  /**
   * Sends records to a topic; resolves when every replica that has to has them.
   *
   * @throws BrokerUnavailableError when the outcome is not known: they may be sent again
   * @throws RecordRefusedError when the broker will never take one of them; the others may have been sent
   */
  send(topic: string, records: readonly OutgoingRecord[]): Promise<void>
  /** Consumes until stopped, through outages; a consumer that died is built anew. */
  consume(consuming: Consuming): Consumer
  /** Ends consumers and connections; safe to call twice. */
  close(): Promise<void>
}

/** The broker did not answer in time or could not be reached. What was sent may have arrived. */
export class BrokerUnavailableError extends Error {
  readonly code = 'broker_unavailable'
}

/** The broker will never take this: too large, or a topic whose name it does not allow. */
export class RecordRefusedError extends Error {
  readonly code = 'record_refused'
}
