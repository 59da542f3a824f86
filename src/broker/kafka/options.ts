/** What the adapter is told, and what it takes where it is told nothing. */
import type { Logger } from 'pino'

/** All in milliseconds. */
export interface KafkaTimeouts {
  connectMs: number
  /** Of one request, by the client. */
  requestMs: number
  /** A whole send, its retries included; what has no answer by then has an unknown outcome. */
  sendMs: number
  /** How long a stop waits for the batches under way, and then for the client to leave. */
  stopMs: number
  /** A member that is silent for so long is put out of its group. The broker takes no less than 6 s by default. */
  sessionMs: number
  heartbeatMs: number
  /** How long a fetch waits at the broker when there is nothing. */
  fetchWaitMs: number
  /** Between two looks at the ends of the partitions. */
  watchMs: number
  /** A partition that has something and does not move for so long is reported. */
  stallMs: number
  /** How long a consumer may be out of its group, or a broker be silent, before it is reported. */
  outMs: number
  /** The first pause before a rejected batch comes again or a dead consumer is built anew; it doubles. */
  firstRetryMs: number
  lastRetryMs: number
}

export const TIMEOUTS: KafkaTimeouts = {
  connectMs: 3_000,
  requestMs: 10_000,
  sendMs: 10_000,
  stopMs: 10_000,
  sessionMs: 15_000,
  heartbeatMs: 3_000,
  fetchWaitMs: 500,
  watchMs: 2_000,
  stallMs: 30_000,
  outMs: 10_000,
  firstRetryMs: 500,
  lastRetryMs: 30_000,
}

export interface KafkaOptions {
  /** Each as host:port. */
  brokers: readonly string[]
  clientId: string
  logger: Logger
  /** Of topics that are made; by default what the broker is set to. */
  replicationFactor?: number
  timeouts?: Partial<KafkaTimeouts>
}
