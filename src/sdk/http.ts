/** One exchange with the service: a request, and its JSON, its stream or a RollcallError. Retries are the callers'. */
import { isPassing, RollcallError } from './errors.ts'
import { isFieldError, isRecord, parsed, reasonOf, shown } from './received.ts'
import {
  answerOf,
  FETCH_OPTIONS,
  fetchTransport,
  globalFetch,
  type Transport,
  type TransportAnswer,
} from './transport.ts'
import { TIMER_MAX_MS } from './waiting.ts'

export interface HttpOptions {
  /** Where the service answers, for example `http://127.0.0.1:8080`; a path before `/v1` may follow. */
  url: string
  /** An API key, sent as `authorization: Bearer …`. It never stands in an error. */
  key?: string | undefined
  /** Sent with each request, for a proxy that wants them. */
  headers?: Record<string, string>
  /** Another `fetch`, for tests and special networks; Node uses `node:http` without it, for speed. */
  fetch?: typeof fetch
}

export interface Call {
  method: 'GET' | 'POST'
  /** From `/v1` on, with its query. */
  path: string
  headers?: Record<string, string>
  /** JSON, written already: what is sent again is the same bytes. */
  body?: string
  timeoutMs: number
  signal?: AbortSignal | undefined
  /** The service is asked to wait before it answers. */
  waits?: boolean
}

/** The JSON of an answer, with what its headers say beside it. */
export interface Answer<T> {
  body: T
  etag: string | null
  preferenceApplied: string | null
}

/** Answers of a service that is restarting, busy, or behind a proxy that lost it. */
const RETRYABLE_STATUSES = new Set([408, 425, 429, 502, 503, 504])

export class Http {
  readonly #base: string
  readonly #headers: Record<string, string>
  readonly #fetch: typeof fetch
  readonly #transport: Transport

  /**
   * Throws a TypeError for options that cannot be meant.
   *
   * @param native what is used where no `fetch` is given
   */
  constructor({ url, key, headers = {}, fetch }: HttpOptions, native: () => Transport) {
    this.#base = baseOf(url)
    this.#headers = { ...checkedHeaders(headers), ...(key !== undefined && bearer(key, headers)) }
    this.#fetch = fetch ?? globalFetch
    this.#transport = fetch ? fetchTransport(fetch) : native()
  }

  /** The JSON of a 2xx answer. Rejects with a RollcallError, or with the reason of an aborted signal. */
  async call<T extends object>(call: Call): Promise<T> {
    return (await this.ask<T>(call)).body
  }

  /** As `call`, with the headers; null for 304, where the call has an `if-none-match`. */
  ask<T extends object>(call: Call & { headers: { 'if-none-match': string } }): Promise<Answer<T> | null>
  ask<T extends object>(call: Call): Promise<Answer<T>>
  async ask<T extends object>(call: Call): Promise<Answer<T> | null> {
    const { method, path, headers = {}, body, waits = false } = call
    const where = `${method} ${this.#base}${path}`
    const answer = await within(call, where, signal =>
      this.#transport({
        method,
        url: this.#base + path,
        headers: {
          accept: 'application/json, application/problem+json',
          ...this.#headers,
          ...headers,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        body: body ?? null,
        signal,
        waits,
      }),
    )
    if (answer.status === 304 && headers['if-none-match'] !== undefined) return null
    const { etag, preferenceApplied } = answer
    return { body: read<T>(answer, where), etag, preferenceApplied }
  }

  /**
   * Opens a stream of events; null where there is nothing more to come (204). `timeoutMs` counts until it is open; the
   * signal closes it whenever it is aborted.
   */
  async open(call: Omit<Call, 'method' | 'body'> & { signal: AbortSignal }): Promise<Response | null> {
    const { path, headers, signal } = call
    const where = `GET ${this.#base}${path}`
    return within(call, where, async () => {
      const response = await this.#fetch(this.#base + path, {
        headers: { accept: 'text/event-stream, application/problem+json', ...this.#headers, ...headers },
        signal,
        ...FETCH_OPTIONS,
      })
      if (response.status === 204) return null
      const contentType = response.headers.get('content-type') ?? ''
      if (response.status === 200 && contentType.startsWith('text/event-stream')) return response
      const answer = answerOf(response, await response.text())
      throw response.ok ? notOurs(answer, where) : problem(answer, where)
    })
  }
}

/**
 * Asks with a signal that is aborted when the time is up or the caller's signal is, and says which it was. The race ends
 * the wait even where a given fetch does not heed its signal.
 */
async function within<T>(
  { timeoutMs, signal }: Pick<Call, 'timeoutMs' | 'signal'>,
  where: string,
  ask: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted()
  const ending = new AbortController()
  let timedOut = false
  const timer = setTimeout(
    () => {
      timedOut = true
      ending.abort(new Error('timeout'))
    },
    Math.min(timeoutMs, TIMER_MAX_MS),
  )
  const abort = () => ending.abort(signal?.reason)
  signal?.addEventListener('abort', abort, { once: true })
  try {
    return await Promise.race([ask(ending.signal), rejectOn(ending.signal)])
  } catch (error) {
    if (error instanceof RollcallError) throw error
    if (timedOut) throw timeoutError(where, timeoutMs)
    signal?.throwIfAborted()
    throw unreachable(where, error)
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', abort)
  }
}

function baseOf(text: string): string {
  let url: URL
  try {
    url = new URL(text)
  } catch {
    throw new TypeError(`url must be an address such as http://127.0.0.1:8080, not ${JSON.stringify(text)}`)
  }
  if (url.protocol !== 'http:' && url.protocol !== 'https:')
    throw new TypeError(`url must begin with http:// or https://, not ${url.protocol}//`)
  if (url.username || url.password)
    throw new TypeError('url must not contain a user or password; give a key, or headers.authorization')
  if (url.search || url.hash) throw new TypeError('url must not contain a query or a fragment')
  return url.href.replace(/\/+$/, '')
}

/** Checked here: what a fetch says of a header that it cannot send repeats its value, which may be a secret. */
function checkedHeaders(headers: Record<string, string>): Record<string, string> {
  for (const [name, value] of Object.entries(headers))
    if (typeof value !== 'string' || !/^[\t\x20-\x7e\x80-\xff]*$/.test(value))
      throw new TypeError(`headers.${name} must be a text that a header can carry, on one line`)
  return headers
}

function bearer(key: string, headers: Record<string, string>): Record<string, string> {
  if (typeof key !== 'string' || !/^[\x21-\x7e]{1,1024}$/.test(key))
    throw new TypeError('key must be an API key: visible ASCII characters, without spaces or a line end')
  if (Object.keys(headers).some(name => name.toLowerCase() === 'authorization'))
    throw new TypeError('give key or headers.authorization, not both')
  return { authorization: `Bearer ${key}` }
}

function rejectOn(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
}

function read<T extends object>(answer: TransportAnswer, where: string): T {
  if (answer.status < 200 || answer.status >= 300) throw problem(answer, where)
  const body = parsed(answer.body)
  if (isRecord(body)) return body as T
  throw notOurs(answer, where)
}

const notOurs = ({ status, body }: TransportAnswer, where: string): RollcallError =>
  new RollcallError(
    `${where} answered ${status} with something that is not of this service; ` +
      'does the url lead to Rollcall, or is a proxy in between?',
    { code: 'bad_answer', status, detail: shown(body), retryable: true },
  )

function problem(answer: TransportAnswer, where: string): RollcallError {
  const body = parsed(answer.body)
  const said = isRecord(body) ? body : {}
  const code = typeof said.code === 'string' ? said.code : 'unexpected_status'
  const detail =
    [said.detail, said.title].find(text => typeof text === 'string' && text !== '') ?? shown(answer.body)
  const errors = Array.isArray(said.errors) ? said.errors.filter(isFieldError) : []
  const fields = errors.map(({ path, message }) => ` [${path}: ${message}]`).join('')
  return new RollcallError(`${where} was answered ${answer.status} (${code}): ${detail}${fields}`, {
    code,
    status: answer.status,
    detail: String(detail),
    errors,
    retryable: RETRYABLE_STATUSES.has(answer.status) || isPassing(code),
    retryAfterMs: retryAfterMs(answer.retryAfter),
  })
}

/** Seconds, as the service writes them; the header's other form, a date, is for proxies and not worth a clock. */
function retryAfterMs(header: string | null): number | null {
  return header !== null && /^\d{1,6}$/.test(header) ? Number(header) * 1_000 : null
}

const timeoutError = (where: string, timeoutMs: number) =>
  new RollcallError(
    `${where} was not answered within ${Math.round(timeoutMs)} ms; the service is slow or a connection hangs.`,
    { code: 'timeout', detail: 'No answer in time; whether it was carried out is unknown.', retryable: true },
  )

function unreachable(where: string, cause: unknown): RollcallError {
  const why = reasonOf(cause)
  return new RollcallError(
    `${where} was not answered (${why}); is the service running, and is the url right?`,
    {
      code: 'unreachable',
      detail: `The connection failed: ${why}.`,
      retryable: true,
      cause,
    },
  )
}
