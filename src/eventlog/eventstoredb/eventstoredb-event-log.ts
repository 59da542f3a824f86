/**
 * The log in EventStoreDB: the production shape. Streams, expected revisions and the order of `$all` are the server's; this
 * adapter sees to the bad hours (PITFALLS E1 to E18): every call has a time of its own, a connection that failed is
 * replaced, and what a conflict may hide is looked at before it is reported.
 */
import type { BaseLogger } from 'pino'
import { checkAppends } from '../check-append.ts'
import {
  type Append,
  type AppendResult,
  type Checkpoint,
  type EventLog,
  LogUnavailableError,
  LogWentBackwardsError,
  type StoredEvent,
  type StreamSlice,
} from '../event-log.ts'
import { BatchAppender, type Outcome } from './batch-append.ts'
import { Connection } from './connection.ts'
import { assertOurs, follow } from './follow.ts'
import { Identity } from './identity.ts'
import { Names, positionOf } from './names.ts'
import { inParallel, Reader } from './read.ts'
import type { EventStoreDBSettings } from './settings.ts'

export interface EventStoreDBEventLogOptions {
  settings: EventStoreDBSettings
  /** After this an append is answered with LogUnavailableError. */
  appendTimeoutMs?: number
  readTimeoutMs?: number
  /** How long a process appends before it looks again whether the log was sealed; sealing takes longer than this. */
  sealFreshMs?: number
  /** For whoever copies another log into this one: appends although it is sealed. */
  pastSeal?: boolean
  /** After so much silence a follower looks whether it is still one. */
  silenceMs?: number
  logger?: BaseLogger
}

/** An append that expects anything is tried so often on a stream that others append to. */
const ANY_TRIES = 10

/**
 * Opens the log without reaching for the server: the first call does, and until one was answered calls reject with
 * LogUnavailableError. A service may so start before its log.
 */
export function openEventStoreDBEventLog(options: EventStoreDBEventLogOptions): EventLog {
  return new EventStoreDBEventLog(options)
}

class EventStoreDBEventLog implements EventLog {
  readonly #connection: Connection
  readonly #appender: BatchAppender
  readonly #ownAppender: BatchAppender
  readonly #reader: Reader
  readonly #identity: Identity
  readonly #logger: BaseLogger | undefined
  readonly #silenceMs: number | undefined
  readonly #closed = new AbortController()
  #closing: Promise<void> | null = null

  constructor(options: EventStoreDBEventLogOptions) {
    const { settings, appendTimeoutMs = 5_000, readTimeoutMs = 10_000, sealFreshMs = 3_000 } = options
    const names = new Names(settings.namespace)
    this.#logger = options.logger
    this.#silenceMs = options.silenceMs
    this.#connection = new Connection(settings, Math.min(appendTimeoutMs, readTimeoutMs), options.logger)
    this.#appender = new BatchAppender(this.#connection, stream => names.there(stream), appendTimeoutMs)
    this.#ownAppender = new BatchAppender(this.#connection, name => name, appendTimeoutMs)
    this.#reader = new Reader(this.#connection, names, readTimeoutMs)
    this.#identity = new Identity({
      reader: this.#reader,
      append: async append => (await this.#ownAppender.append([append]))[0]!,
      freshMs: sealFreshMs,
      appendTimeoutMs,
      pastSeal: options.pastSeal ?? false,
    })
  }

  get id(): string {
    return this.#identity.id
  }

  async appendMany(appends: readonly Append[]): Promise<AppendResult[]> {
    const results: (AppendResult | null)[] = checkAppends(appends)
    this.#assertOpen()
    const sound = appends.flatMap((append, index) => (results[index] === null ? [{ append, index }] : []))
    if (sound.length === 0) return results as AppendResult[]
    const known = sound.filter(({ append }) => append.expected !== 'any')
    const outcomes = known.length > 0 ? await this.#append(known.map(({ append }) => append)) : []
    const doubtful: { append: Append; index: number }[] = sound.filter(
      ({ append }) => append.expected === 'any',
    )
    for (const [number, one] of known.entries()) {
      const result = resultOf(outcomes[number]!)
      if (result) results[one.index] = result
      else doubtful.push(one)
    }
    await inParallel(doubtful, async ({ append, index }) => {
      results[index] = append.expected === 'any' ? await this.#appendAny(append) : await this.#settle(append)
    })
    return results as AppendResult[]
  }

  async readStream(stream: string, fromRevision: number, limit: number): Promise<StreamSlice> {
    this.#assertOpen()
    return this.#reader.stream(stream, fromRevision, limit)
  }

  async readStreams(
    streams: readonly { stream: string; fromRevision: number }[],
  ): Promise<Map<string, StoredEvent[]>> {
    this.#assertOpen()
    return this.#reader.streams(streams)
  }

  async follow(
    from: Checkpoint | null,
    onBatch: (batch: readonly StoredEvent[]) => Promise<void>,
    signal: AbortSignal,
  ): Promise<void> {
    this.#assertOpen()
    await follow(
      {
        connection: this.#connection,
        reader: this.#reader,
        identity: this.#identity,
        logger: this.#logger,
        ...(this.#silenceMs === undefined ? {} : { silenceMs: this.#silenceMs }),
      },
      from,
      onBatch,
      AbortSignal.any([signal, this.#closed.signal]),
    )
  }

  async head(): Promise<Checkpoint | null> {
    this.#assertOpen()
    const [logId, head] = await Promise.all([this.#identity.known(), this.#reader.head()])
    return head && { logId, position: head.position, eventId: head.id }
  }

  async countAfter(from: Checkpoint | null, limit: number): Promise<number> {
    this.#assertOpen()
    const logId = await this.#identity.known()
    if (from) assertOurs(logId, from)
    return this.#reader.countAfter(from, limit)
  }

  async seal(movedTo: string | null): Promise<void> {
    this.#assertOpen()
    await this.#identity.seal(movedTo)
  }

  async sealedFor(): Promise<string | null> {
    this.#assertOpen()
    return this.#identity.sealedFor()
  }

  close(): Promise<void> {
    this.#closing ??= (async () => {
      this.#closed.abort()
      this.#appender.close()
      this.#ownAppender.close()
      await this.#connection.close()
    })()
    return this.#closing
  }

  /** @returns until when an answer counts. @throws LogSealedError, LogUnavailableError */
  #mayAppend(): Promise<number> {
    return this.#identity.assertOpen().catch(error => {
      if (!(error instanceof LogWentBackwardsError)) throw error
      // To who appends it is a log that does not take it; followers say that it went backwards.
      throw new LogUnavailableError(error.message, { cause: error })
    })
  }

  /** Appends while the log is known to be open. */
  async #append(appends: readonly Append[]): Promise<Outcome[]> {
    const countsUntil = await this.#mayAppend()
    const outcomes = await this.#appender.append(appends)
    // A process that stood still in between may have sent this after the log was sealed, copied and compared.
    if (performance.now() > countsUntil)
      throw new LogUnavailableError('an append took so long that the log may have been sealed before it')
    return outcomes
  }

  /**
   * What an append came to that was not simply stored. The server recognises a repetition; where it says conflict
   * all the same, or does not know the place, the stream tells (PITFALLS E6).
   */
  async #settle(append: Append): Promise<AppendResult> {
    const from = append.expected === 'no_stream' ? 0 : (append.expected as number) + 1
    const [{ events }, last] = await Promise.all([
      this.#reader.stream(append.stream, from, append.events.length),
      this.#reader.last(append.stream),
    ])
    return repetition(append, events) ?? { kind: 'conflict', actual: last?.revision ?? null }
  }

  /** The server recognises a repeated append that expects anything only for as long as it remembers; the stream is read. */
  async #appendAny(append: Append): Promise<AppendResult> {
    // A repetition is found without an append, and refused on a sealed log all the same.
    await this.#mayAppend()
    for (let tries = 0; tries < ANY_TRIES; tries++) {
      const stored =
        (await this.#reader.streams([{ stream: append.stream, fromRevision: 0 }])).get(append.stream) ?? []
      const at = stored.findLastIndex(({ id }) => id === append.events[0]?.id)
      const last = stored.at(-1)?.revision ?? null
      if (at >= 0)
        return (
          repetition(append, stored.slice(at, at + append.events.length)) ?? {
            kind: 'conflict',
            actual: last,
          }
        )
      const [outcome] = await this.#append([{ ...append, expected: last ?? 'no_stream' }])
      const result = resultOf(outcome!)
      if (result) return result
    }
    throw new LogUnavailableError(`stream ${append.stream} is appended to by too many at once; ask again`)
  }

  #assertOpen(): void {
    if (this.#closed.signal.aborted) throw new LogUnavailableError('the log is closed')
  }
}

/** The port's result where the outcome says all; null where the stream has to be looked at. */
function resultOf(outcome: Outcome): AppendResult | null {
  if (outcome.kind === 'rejected') return outcome
  if (outcome.kind === 'conflict' || outcome.place === null) return null
  return { kind: 'appended', revision: outcome.revision, position: positionOf(outcome.place) }
}

/** The answer to an append whose events stand where it would put them; null where they do not. */
function repetition({ events }: Append, stored: readonly StoredEvent[]): AppendResult | null {
  const last = stored[events.length - 1]
  if (!last || events.some(({ id }, index) => stored[index]?.id !== id)) return null
  return { kind: 'appended', revision: last.revision, position: last.position }
}
