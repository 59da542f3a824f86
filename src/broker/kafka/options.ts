/** What the adapter is told, and what it takes where it is told nothing. */
import type { ConnectionOptions } from 'node:tls'
import type { RetryOptions } from 'kafkajs'
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
  /**
   * How long a rebalance waits for a member to come back, before it goes on without it: also for one that died and
   * whose place its successor wants. No batch keeps ours from coming at its next heartbeat.
   */
  rebalanceMs: number
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
  heartbeatMs: 2_000,
  rebalanceMs: 6_000,
  fetchWaitMs: 500,
  watchMs: 2_000,
  stallMs: 30_000,
  outMs: 10_000,
  firstRetryMs: 500,
  lastRetryMs: 30_000,
}

/**
 * How the client tries again. Said in full wherever it is made: what it is not told it takes from other defaults when
 * NODE_ENV is test (PITFALLS K16). Bounded, so that what nobody waits for any more ends soon (K13).
 */
export const RETRY = {
  retries: 5,
  initialRetryTime: 200,
  maxRetryTime: 2_000,
  factor: 0.2,
  multiplier: 2,
} satisfies RetryOptions

/** PEM throughout. */
export interface KafkaTls {
  /** The authorities to trust; by default those of the system. */
  ca?: string | undefined
  /** For brokers that ask who comes; both or none. */
  cert?: string | undefined
  key?: string | undefined
  /** The name that the certificate has to have; by default the host of the address. */
  serverName?: string | undefined
}

export const SASL_MECHANISMS = ['plain', 'scram-sha-256', 'scram-sha-512'] as const

export interface KafkaSasl {
  mechanism: (typeof SASL_MECHANISMS)[number]
  username: string
  password: string
}

export interface KafkaOptions {
  /** Each as host:port. */
  brokers: readonly string[]
  clientId: string
  logger: Logger
  /** Of topics that are made; by default what the broker is set to. */
  replicationFactor?: number
  /** Encrypted, and the brokers known by their certificate; by default neither. */
  tls?: boolean | KafkaTls
  /** Who we are, for brokers that ask. */
  sasl?: KafkaSasl | undefined
  timeouts?: Partial<KafkaTimeouts>
}

/** In the words of Node; false for none. */
export function tlsOptions(tls: boolean | KafkaTls = false): ConnectionOptions | boolean {
  if (typeof tls === 'boolean') return tls
  const { ca, cert, key, serverName } = tls
  // What is undefined would hide the defaults.
  return {
    ...(ca === undefined ? {} : { ca }),
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key }),
    ...(serverName === undefined ? {} : { servername: serverName }),
  }
}
