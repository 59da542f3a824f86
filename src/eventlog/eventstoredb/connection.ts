/**
 * A supervised client. A client that lost its server may never find it again: a failed discovery is remembered
 * for ever (PITFALLS E14), and a call may hang on a connection that leads nowhere. So one that failed is thrown away and
 * the next call gets a new one, with a growing pause between.
 *
 * Of the client this uses what connects: channel, discovery, TLS, credentials. The calls themselves are made on the
 * generated stubs (docs/adr/0011): the client's own appends share one table of promises in the whole process, lose
 * settled ones (PITFALLS E1 to E3), and its reads hand over parsed JSON where the port wants bytes.
 */
import type { CallOptions, Channel, Metadata } from '@grpc/grpc-js'
import type { BaseLogger } from 'pino'
import { LogUnavailableError } from '../event-log.ts'
import { within } from '../within.ts'
import { isNotLeader } from './errors.ts'
import { connectionString, type EventStoreDBSettings } from './settings.ts'
import { type Client, EventStoreDBClient, type StreamsClient, streamsClient } from './stubs.ts'

/** The client's members that are meant for its own methods. The package is pinned; a test holds them. */
interface ClientParts {
  getGRPCClient(kind: typeof streamsClient, name: string): Promise<StreamsClient>
  callArguments(
    options: { requiresLeader: boolean; credentials?: Credentials },
    call: CallOptions,
  ): [Metadata, CallOptions]
  handleError(client: StreamsClient, error: Error): Promise<void>
  getChannel(): Promise<Channel>
}

interface Credentials {
  username: string
  password: string
}

/** A client in use. */
export interface Live {
  readonly streams: StreamsClient
  /** What goes with a call. Without a deadline: those of this adapter are its own, by its own clock. */
  arguments(options: { leader: boolean }): [Metadata, CallOptions]
}

const PAUSE_MS = { first: 20, longest: 1_000 }
const CLOSE_MS = 2_000

export class Connection {
  readonly #settings: EventStoreDBSettings
  readonly #timeoutMs: number
  readonly #logger: BaseLogger | undefined
  #current: { client: Client; live: Promise<Live> } | null = null
  #pauseMs = 0
  #notBefore = 0
  #closed = false

  /** @param timeoutMs bound of connecting, discovery included */
  constructor(settings: EventStoreDBSettings, timeoutMs: number, logger: BaseLogger | undefined) {
    this.#settings = settings
    this.#timeoutMs = timeoutMs
    this.#logger = logger
  }

  /** The client in use, a new one after a failure. @throws LogUnavailableError and whatever discovery throws */
  async live(): Promise<Live> {
    if (this.#closed) throw new LogUnavailableError('the log is closed')
    if (this.#current) return this.#current.live
    const waitMs = this.#notBefore - performance.now()
    if (waitMs > 0) {
      await new Promise(resolve => setTimeout(resolve, waitMs))
      return this.live()
    }
    // The client prints its connection string where it is asked to debug: the password goes with the calls instead.
    const settings = { ...this.#settings, username: null, password: null }
    const client = EventStoreDBClient.connectionString(connectionString(settings))
    const current = { client, live: this.#opened(client, 'connecting') }
    this.#current = current
    current.live.catch(error => this.#discard(current, error))
    return current.live
  }

  /** Says that a call on it was answered. */
  worked(): void {
    if (this.#pauseMs > 0) this.#logger?.info('the log answers again')
    this.#pauseMs = 0
  }

  /** Says that a call on it failed; it is replaced, unless it has only to turn to another node. */
  async failed(live: Live, error: unknown): Promise<void> {
    const current = this.#current
    if (!current || (await current.live.catch(() => null)) !== live) return
    if (isNotLeader(error)) {
      await partsOf(current.client).handleError(live.streams, error as Error)
      current.live = this.#opened(current.client, 'turning to the leader')
      current.live.catch(cause => this.#discard(current, cause))
    } else this.#discard(current, error)
  }

  async close(): Promise<void> {
    this.#closed = true
    const current = this.#current
    this.#current = null
    if (current) await within(CLOSE_MS, dispose(current.client), 'closing').catch(() => {})
  }

  #opened(client: Client, what: string): Promise<Live> {
    const { username, password } = this.#settings
    const credentials = username !== null && password !== null ? { username, password } : null
    return within(this.#timeoutMs, open(client, credentials), what)
  }

  #discard(current: { client: Client }, error: unknown): void {
    if (this.#current !== current) return
    this.#current = null
    if (this.#pauseMs === 0 && !this.#closed)
      this.#logger?.warn({ err: error }, 'the connection to the log failed; making another')
    this.#pauseMs = Math.min(Math.max(this.#pauseMs * 2, PAUSE_MS.first), PAUSE_MS.longest)
    this.#notBefore = performance.now() + this.#pauseMs
    void dispose(current.client).catch(() => {})
  }
}

const partsOf = (client: Client): ClientParts => client as unknown as ClientParts

async function open(client: Client, credentials: Credentials | null): Promise<Live> {
  const parts = partsOf(client)
  const streams = await parts.getGRPCClient(streamsClient, 'streams')
  return {
    streams,
    arguments: ({ leader }) =>
      parts.callArguments(
        { requiresLeader: leader, ...(credentials && { credentials }) },
        { deadline: Number.POSITIVE_INFINITY },
      ),
  }
}

/** The client's own dispose leaves its channel open. */
async function dispose(client: Client): Promise<void> {
  await client.dispose()
  const channel = await partsOf(client).getChannel()
  channel.close()
}
