/**
 * The port to the append-only log. Adapters keep bytes, order and expectations; they know nothing of tasks.
 * One conformance suite holds every adapter to what is written here.
 */

/** An event's bytes, made once per decision: a repeated append sends the same ones. */
export interface EncodedEvent {
  /** UUID. */
  id: string
  type: string
  /** Schema version of the data. */
  version: number
  /** What JSON.stringify wrote: a fixed point of parse and stringify. */
  data: string
  metadata: string
}

export interface StoredEvent extends EncodedEvent {
  stream: string
  /** Number in its stream, from 0 without gaps. */
  revision: number
  /** Place in the whole log; opaque outside the adapter, meaningful only with the log's id. */
  position: string
}

/** What the stream's last revision must be for an append to happen. */
export type Expected = number | 'no_stream' | 'any'

export interface Append {
  stream: string
  expected: Expected
  /** At least one; all of them are stored or none. */
  events: readonly EncodedEvent[]
}

/**
 * - `appended`: durable; also when the same ids already stand at these revisions. `revision` and `position`
 *   are those of the append's last event.
 * - `conflict`: the stream is elsewhere; `actual` is its last revision, null where it does not exist.
 * - `rejected`: this member can never be stored; the others of the call are not affected.
 */
export type AppendResult =
  | { kind: 'appended'; revision: number; position: string }
  | { kind: 'conflict'; actual: number | null }
  | { kind: 'rejected'; reason: 'invalid_event' | 'too_large'; message: string }

/** Where a follower stands: the last event it has handled, and in which log. */
export interface Checkpoint {
  logId: string
  position: string
  eventId: string
}

export interface StreamSlice {
  events: StoredEvent[]
  /** Revision to go on from, null at the stream's end. */
  next: number | null
}

export interface EventLog {
  /**
   * Identity of this log, made when it was created; a restored older copy keeps it and is noticed by event ids.
   *
   * @throws LogUnavailableError while a log that is opened without being reached has not been reached yet; after
   *   any call that was answered it is known
   */
  readonly id: string

  /**
   * Appends to many streams in one go; each member is atomic with its expectation, members are independent.
   * The results stand in the order of the members.
   *
   * @throws LogContractError when the call breaks `APPEND_LIMITS` or names a stream twice: nothing was stored
   * @throws LogUnavailableError when the outcome is not known; the same call may be repeated
   */
  appendMany(appends: readonly Append[]): Promise<AppendResult[]>

  /**
   * Reads a stream from a revision, in pages bounded by count and bytes (`READ_LIMITS`). A stream that does
   * not exist is an empty slice.
   */
  readStream(stream: string, fromRevision: number, limit: number): Promise<StreamSlice>

  /** Reads many streams, each from its own revision to its end; absent streams are absent from the map. */
  readStreams(
    streams: readonly { stream: string; fromRevision: number }[],
  ): Promise<Map<string, StoredEvent[]>>

  /**
   * Delivers every event after the checkpoint in the order of positions, one batch at a time, and waits for
   * `onBatch` before the next. At the log's end it waits for more, and calls `onBatch` with an empty batch at
   * least every `FOLLOW_IDLE_MS`. Resolves when the signal is aborted; rejects when `onBatch` does.
   *
   * @param from null begins at the start of the log
   * @throws LogWentBackwardsError when the checkpoint's event is not where it was
   */
  follow(
    from: Checkpoint | null,
    onBatch: (batch: readonly StoredEvent[]) => Promise<void>,
    signal: AbortSignal,
  ): Promise<void>

  /** The newest event, null in an empty log. */
  head(): Promise<Checkpoint | null>

  /**
   * How many events lie after a place, counted up to `limit`: what a follower has before it.
   *
   * @param from null counts from the start of the log
   * @throws LogWentBackwardsError when the checkpoint's event is not where it was
   */
  countAfter(from: Checkpoint | null, limit: number): Promise<number>

  /**
   * Seals the log because another takes its place, or opens it again with null. Once it resolves no process
   * appends to it any more, so that its head is its last: every append throws LogSealedError. Reading goes on.
   *
   * @param movedTo id of the log that takes its place
   * @throws LogUnavailableError when the outcome is not known; it may be asked again
   */
  seal(movedTo: string | null): Promise<void>

  /** Id of the log that has taken this one's place, null while this one takes appends. */
  sealedFor(): Promise<string | null>

  /** Ends connections and followers; safe to call twice. */
  close(): Promise<void>
}

export const APPEND_LIMITS = { appends: 1_000, events: 4_000, bytes: 8 * 1024 * 1024 } as const
/**
 * One event: content of 256 KiB each for at most two fields, and what stands around it. The events of one append
 * together, too: EventStoreDB takes 1 MiB an append, and what one adapter takes the others take.
 */
export const EVENT_BYTES_MAX = 900 * 1024
export const READ_LIMITS = { events: 1_000, bytes: 8 * 1024 * 1024 } as const
export const FOLLOW_IDLE_MS = 500

/** The caller broke the port's contract: a bug in the caller. */
export class LogContractError extends Error {
  readonly code = 'log_contract'
}

/** The log did not answer in time or could not be reached. An append may or may not have happened. */
export class LogUnavailableError extends Error {
  readonly code = 'log_unavailable'
}

/** The log was moved to another one and takes no appends any more; nothing of the call was stored. */
export class LogSealedError extends LogUnavailableError {
  readonly movedTo: string

  constructor(id: string, movedTo: string) {
    super(`log ${id} is sealed: it was moved to log ${movedTo}; run the service on that one`)
    this.movedTo = movedTo
  }
}

/** The log no longer holds what a follower had handled: restored from an older copy, or another log. */
export class LogWentBackwardsError extends Error {
  readonly code = 'log_went_backwards'
}
