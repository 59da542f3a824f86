/**
 * A stream of task messages over as many connections as it takes. Each goes on behind the last message that had an id.
 *
 *   closed ──next──> connecting ──open──> reading ──lost, shutting down──> pausing ──> connecting
 *   reading ──final──> ended        any ──return, signal, refused, away for too long──> ended
 */
import type { EventSourceMessage } from 'eventsource-parser'
import { positiveMs } from './checks.ts'
import { RollcallError } from './errors.ts'
import { readEvents } from './event-source.ts'
import type { Http } from './http.ts'
import { labelFields, query, taskPath } from './paths.ts'
import { isRecord, parsed, reasonOf } from './received.ts'
import { isPassingFailure, RETRY_BACKOFF } from './retries.ts'
import type {
  ResyncMessage,
  StreamFilter,
  StreamMessage,
  StreamOptions,
  TaskMessage,
  TaskStream,
} from './stream-api.ts'
import { backoffMs, monotonicMs, sleep } from './waiting.ts'

export interface StreamSettings {
  signal: AbortSignal | undefined
  lastEventId: string | null
  outageMs: number
  idleMs: number
  onError: (error: unknown) => void
  /** For a connection to open; the first has to within this time and so many retries, like any call. */
  timeoutMs: number
  retries: number
}

const DEFAULT_OUTAGE_MS = 300_000
const DEFAULT_IDLE_MS = 45_000
/** How soon to connect again where the service does not say, and the bounds of what it may say. */
const RETRY_MS = { default: 1_000, min: 250, max: 60_000 }
const PAUSE_MAX_MS = 10_000

/** The options, checked and complete. Throws a TypeError that names the one at fault. */
export function settingsOf(
  {
    signal,
    lastEventId,
    outageMs = DEFAULT_OUTAGE_MS,
    idleMs = DEFAULT_IDLE_MS,
    onError = () => {},
  }: StreamOptions = {},
  call: { timeoutMs: number; retries: number },
): StreamSettings {
  // Anything else a header cannot carry, or the service has not given.
  if (lastEventId !== undefined && !/^[\x21-\x7e]{1,1024}$/.test(lastEventId))
    throw new TypeError('lastEventId must be the id of a message of a stream')
  return {
    ...call,
    signal,
    lastEventId: lastEventId ?? null,
    outageMs: outageMs === Number.POSITIVE_INFINITY ? outageMs : positiveMs('outageMs', outageMs),
    idleMs: positiveMs('idleMs', idleMs),
    onError: error => {
      try {
        onError(error)
      } catch {
        // A hook that fails must not end the stream.
      }
    },
  }
}

/** Where the events of a task, or of all that match, are streamed. */
export function pathOf(what: string | StreamFilter): string {
  if (typeof what === 'string') return `${taskPath(what)}/events`
  const { type, status, labels, tenant } = what
  return `/v1/events${query({ type, status, tenant, ...labelFields(labels) })}`
}

export function openStream(http: Http, path: string, settings: StreamSettings): TaskStream {
  const closing = new AbortController()
  const messages = new Feed(http, path, settings, closing).messages()
  return {
    next: () => messages.next(),
    // A generator answers `return` only after the `next` before it, which may wait for long: that is ended first.
    return: async () => {
      closing.abort(CLOSED)
      await messages.return(undefined)
      return { done: true, value: undefined }
    },
    [Symbol.asyncIterator]() {
      return this
    },
  }
}

const CLOSED = Symbol('closed')

class Feed {
  readonly #http: Http
  readonly #path: string
  readonly #settings: StreamSettings
  readonly #closing: AbortController
  #lastEventId: string | null
  #retryMs = RETRY_MS.default
  #opened = false
  /** In a row, and since when. */
  #failures = 0
  #awaySince: number | null = null

  constructor(http: Http, path: string, settings: StreamSettings, closing: AbortController) {
    this.#http = http
    this.#path = path
    this.#settings = settings
    this.#closing = closing
    this.#lastEventId = settings.lastEventId
  }

  async *messages(): AsyncGenerator<StreamMessage, undefined, undefined> {
    const { signal } = this.#settings
    const { signal: closed } = this.#closing
    const abort = () => this.#closing.abort(signal?.reason)
    signal?.addEventListener('abort', abort, { once: true })
    try {
      signal?.throwIfAborted()
      while (!closed.aborted) {
        let pauseMs: number
        try {
          if ((yield* this.#connection()) === 'over') return
          pauseMs = this.#retryMs
        } catch (error) {
          if (closed.aborted) break
          pauseMs = this.#survive(error)
        }
        await sleep(pauseMs, closed)
      }
      signal?.throwIfAborted()
    } finally {
      signal?.removeEventListener('abort', abort)
    }
  }

  /** The messages of one connection, and whether the stream is over with it or goes on with another. */
  async *#connection(): AsyncGenerator<StreamMessage, 'over' | 'again', undefined> {
    const connection = new AbortController()
    const close = () => connection.abort(this.#closing.signal.reason)
    this.#closing.signal.addEventListener('abort', close, { once: true })
    this.#awaySince ??= monotonicMs()
    const { timeoutMs, retries } = this.#settings
    try {
      const response = await this.#http.open({
        path: this.#path,
        headers: this.#lastEventId === null ? {} : { 'last-event-id': this.#lastEventId },
        timeoutMs: retries === 0 ? timeoutMs : timeoutMs / 2,
        signal: connection.signal,
      })
      if (response === null) return 'over'
      this.#opened = true
      const events = readEvents(response.body!, {
        idleMs: this.#settings.idleMs,
        signal: connection.signal,
        onAlive: () => {
          this.#failures = 0
          this.#awaySince = null
        },
        onRetry: ms => {
          this.#retryMs = Math.max(RETRY_MS.min, Math.min(RETRY_MS.max, ms))
        },
      })
      for await (const event of events) {
        // What was read before the stream was closed is not wanted any more.
        connection.signal.throwIfAborted()
        if (event.id) this.#lastEventId = event.id
        if (event.event === 'end') return reasonIn(event) === 'final' ? 'over' : 'again'
        // More came than was taken: all of it is told again behind the last id.
        if (event.event === 'resync' && reasonIn(event) === 'slow') return 'again'
        const message = this.#messageOf(event)
        if (message) yield message
      }
      throw new RollcallError('The connection of the stream ended.', { code: 'unreachable', retryable: true })
    } finally {
      this.#closing.signal.removeEventListener('abort', close)
      connection.abort(CLOSED)
    }
  }

  /** What a consumer gets of an event; null for what a later service may send besides. */
  #messageOf(event: EventSourceMessage): StreamMessage | null {
    const id = this.#lastEventId
    if (event.event === 'resync')
      return { kind: 'resync', reason: reasonIn(event) as ResyncMessage['reason'], id }
    if (event.event !== 'task') return null
    const data = parsed(event.data)
    if (!isRecord(data) || !isRecord(data.task) || typeof data.task.taskId !== 'string')
      throw new RollcallError('The stream has a message that is not of this service.', { code: 'bad_answer' })
    const { event: what, task } = data as unknown as Pick<TaskMessage, 'event' | 'task'>
    return { kind: 'task', event: what, task, id }
  }

  /** How long to wait after this failure; throws it where it is not to be survived. */
  #survive(thrown: unknown): number {
    const { outageMs, timeoutMs, retries, onError } = this.#settings
    const error = asRollcallError(thrown)
    this.#failures++
    this.#awaySince ??= monotonicMs()
    const backoff = this.#opened
      ? { initialMs: this.#retryMs, maxMs: Math.max(this.#retryMs, PAUSE_MAX_MS) }
      : RETRY_BACKOFF
    const pauseMs = Math.max(backoffMs(backoff, this.#failures), error.retryAfterMs ?? 0)
    const endsAt = this.#awaySince + (this.#opened ? outageMs : timeoutMs)
    const tooOften = !this.#opened && this.#failures > retries
    if (!isPassingFailure(error) || tooOften || monotonicMs() + pauseMs >= endsAt) throw error
    onError(error)
    return pauseMs
  }
}

/** A connection that breaks while it is read rejects with whatever the fetch of the place throws. */
function asRollcallError(error: unknown): RollcallError {
  if (error instanceof RollcallError) return error
  const why = reasonOf(error)
  return new RollcallError(`The connection of the stream was lost (${why}).`, {
    code: 'unreachable',
    retryable: true,
    cause: error,
  })
}

function reasonIn({ data }: EventSourceMessage): string {
  const said = parsed(data)
  return isRecord(said) && typeof said.reason === 'string' ? said.reason : 'unknown'
}
