/** One exchange with the service: a request, and its JSON or a RollcallError. Retries are the callers'. */
import { type FieldError, isPassing, RollcallError } from './errors.ts'
import { defaultTransport, fetchTransport, type Transport, type TransportAnswer } from './transport.ts'

export interface HttpOptions {
  /** Where the service answers, for example `http://127.0.0.1:8080`; a path before `/v1` may follow. */
  url: string
  /** Sent with each request, for a proxy that wants them (authorization). */
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
}

/** Answers of a service that is restarting, busy, or behind a proxy that lost it. */
const RETRYABLE_STATUSES = new Set([408, 425, 429, 502, 503, 504])
const SHOWN_BODY_LENGTH = 200

export class Http {
  readonly #base: string
  readonly #headers: Record<string, string>
  readonly #transport: Transport

  /** Throws a TypeError for an address that cannot be meant. */
  constructor({ url, headers = {}, fetch }: HttpOptions) {
    this.#base = baseOf(url)
    this.#headers = { accept: 'application/json, application/problem+json', ...headers }
    this.#transport = fetch ? fetchTransport(fetch) : defaultTransport()
  }

  /** The JSON of a 2xx answer. Rejects with a RollcallError, or with the reason of an aborted signal. */
  async call<T extends object>(call: Call): Promise<T> {
    const { method, path, headers, body, timeoutMs, signal } = call
    signal?.throwIfAborted()
    const where = `${method} ${this.#base}${path}`
    const ending = new AbortController()
    let timedOut = false
    const timer = setTimeout(() => {
      timedOut = true
      ending.abort(new Error('timeout'))
    }, timeoutMs)
    const abort = () => ending.abort(signal?.reason)
    signal?.addEventListener('abort', abort, { once: true })
    try {
      // The race ends the wait even where a given fetch does not heed its signal.
      const answer = await Promise.race([
        this.#transport({
          method,
          url: this.#base + path,
          headers: {
            ...this.#headers,
            ...headers,
            ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          },
          body: body ?? null,
          signal: ending.signal,
        }),
        rejectOn(ending.signal),
      ])
      return read<T>(answer, where)
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
    throw new TypeError('url must not contain a user or password; give them as headers.authorization')
  if (url.search || url.hash) throw new TypeError('url must not contain a query or a fragment')
  return url.href.replace(/\/+$/, '')
}

function rejectOn(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
}

function read<T extends object>(answer: TransportAnswer, where: string): T {
  const body = parsed(answer.body)
  if (answer.status >= 200 && answer.status < 300) {
    if (isRecord(body)) return body as T
    throw new RollcallError(
      `${where} answered ${answer.status} with something that is not JSON of this service; ` +
        'does the url lead to Rollcall, or is a proxy in between?',
      { code: 'bad_answer', status: answer.status, detail: shown(answer.body), retryable: true },
    )
  }
  throw problem(answer, body, where)
}

function problem(answer: TransportAnswer, body: unknown, where: string): RollcallError {
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

/** fetch hides the system's code (ECONNREFUSED) in its cause, a failed dual-stack connect in an AggregateError. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if ('code' in error && typeof error.code === 'string') return error.code
  if (error.cause instanceof Error) return reasonOf(error.cause)
  return error.message || error.name
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function shown(body: string): string {
  const text = body.slice(0, SHOWN_BODY_LENGTH).replace(/\p{Cc}+/gu, ' ')
  return text.trim() || 'an empty body'
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const isFieldError = (value: unknown): value is FieldError =>
  isRecord(value) && typeof value.path === 'string' && typeof value.message === 'string'
