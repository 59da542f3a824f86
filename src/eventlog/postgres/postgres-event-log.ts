/**
 * The log in Postgres: the embedded default. One function appends under a lock (migrations/0001), so
 * positions have no gaps and become visible in their order, and a follower needs only what lies after its own.
 */
import type { BaseLogger } from 'pino'
import { checkAppends } from '../check-append.ts'
import {
  type Append,
  type AppendResult,
  type Checkpoint,
  type EventLog,
  LogUnavailableError,
  type StoredEvent,
  type StreamSlice,
} from '../event-log.ts'
import { append } from './append.ts'
import { Connections, clientConfig } from './connections.ts'
import { asSealed } from './errors.ts'
import { follow } from './follow.ts'
import { countAfter, readHead, readLogId, readMovedTo, readStream, readStreams } from './read.ts'
import { Tail } from './tail.ts'
import { WakeUps } from './wake-ups.ts'

export interface PostgresEventLogOptions {
  /** Straight to the server: LISTEN and prepared statements do not pass a transaction pooler. */
  connectionString: string
  /** After this an append is answered with LogUnavailableError. */
  appendTimeoutMs?: number
  readTimeoutMs?: number
  /** Connections for reading; followers hold one only while they read. */
  readConnections?: number
  /** For whoever copies another log into this one: appends although it is sealed. */
  pastSeal?: boolean
  logger?: BaseLogger
}

/** One append at a time holds the lock; the second connection takes over when the first had to be destroyed. */
const APPEND_CONNECTIONS = 2

/**
 * Opens the log of a migrated database.
 *
 * @throws LogUnavailableError when the server cannot be reached
 */
export async function openPostgresEventLog(options: PostgresEventLogOptions): Promise<EventLog> {
  const { connectionString, appendTimeoutMs = 5_000, readTimeoutMs = 10_000, readConnections = 8 } = options
  const { logger } = options
  const appendConfig = clientConfig(connectionString, appendTimeoutMs)
  if (options.pastSeal) appendConfig.options += ' -c rollcall_log.past_seal=on'
  const appending = new Connections({ ...appendConfig, max: APPEND_CONNECTIONS }, appendTimeoutMs, logger)
  const readConfig = clientConfig(connectionString, readTimeoutMs)
  const reading = new Connections({ ...readConfig, max: readConnections }, readTimeoutMs, logger)
  try {
    const id = await readLogId(reading)
    return new PostgresEventLog(id, appending, reading, new WakeUps(reading, readConfig, logger), logger)
  } catch (error) {
    await Promise.all([appending.end(), reading.end()])
    throw error
  }
}

class PostgresEventLog implements EventLog {
  readonly id: string
  readonly #appending: Connections
  readonly #reading: Connections
  readonly #wakeUps: WakeUps
  readonly #logger: BaseLogger | undefined
  readonly #tail = new Tail()
  readonly #closed = new AbortController()
  #closing: Promise<void> | null = null

  constructor(
    id: string,
    appending: Connections,
    reading: Connections,
    wakeUps: WakeUps,
    logger: BaseLogger | undefined,
  ) {
    this.id = id
    this.#appending = appending
    this.#reading = reading
    this.#wakeUps = wakeUps
    this.#logger = logger
  }

  async appendMany(appends: readonly Append[]): Promise<AppendResult[]> {
    const results: (AppendResult | null)[] = checkAppends(appends)
    this.#assertOpen()
    const sound = appends.filter((_, index) => results[index] === null)
    if (sound.length === 0) return results as AppendResult[]
    const answers = await append(this.#appending, sound, this.#tail).catch(error => {
      this.#tail.clear()
      throw asSealed(error, this.id)
    })
    if (answers.some(({ kind }) => kind === 'appended')) this.#wakeUps.appended()
    const next = answers.values()
    return results.map(rejection => rejection ?? next.next().value!)
  }

  async readStream(stream: string, fromRevision: number, limit: number): Promise<StreamSlice> {
    this.#assertOpen()
    return readStream(this.#reading, stream, fromRevision, limit)
  }

  async readStreams(
    streams: readonly { stream: string; fromRevision: number }[],
  ): Promise<Map<string, StoredEvent[]>> {
    this.#assertOpen()
    return readStreams(this.#reading, streams)
  }

  async follow(
    from: Checkpoint | null,
    onBatch: (batch: readonly StoredEvent[]) => Promise<void>,
    signal: AbortSignal,
  ): Promise<void> {
    this.#assertOpen()
    const following = {
      logId: this.id,
      connections: this.#reading,
      wakeUps: this.#wakeUps,
      tail: this.#tail,
      logger: this.#logger,
    }
    const ended = AbortSignal.any([signal, this.#closed.signal])
    const unfollow = this.#tail.follow()
    return follow(following, from, onBatch, ended).finally(unfollow)
  }

  async head(): Promise<Checkpoint | null> {
    this.#assertOpen()
    const head = await readHead(this.#reading)
    return head && { logId: this.id, ...head }
  }

  async countAfter(from: Checkpoint | null, limit: number): Promise<number> {
    this.#assertOpen()
    return countAfter(this.#reading, this.id, from, limit)
  }

  async seal(movedTo: string | null): Promise<void> {
    this.#assertOpen()
    await this.#appending.run({ name: 'seal', text: 'SELECT rollcall_log.seal($1)', values: [movedTo] })
  }

  async sealedFor(): Promise<string | null> {
    this.#assertOpen()
    return readMovedTo(this.#reading)
  }

  close(): Promise<void> {
    this.#closing ??= this.#end()
    return this.#closing
  }

  async #end(): Promise<void> {
    this.#closed.abort()
    await this.#wakeUps.close()
    await Promise.all([this.#appending.end(), this.#reading.end()])
  }

  #assertOpen(): void {
    if (this.#closed.signal.aborted) throw new LogUnavailableError('the log is closed')
  }
}
