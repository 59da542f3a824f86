/** From what a handler returned or threw to what is reported. Nothing here throws, whatever the handler did. */
import type { ReportRequest } from '../api/schemas/workers.ts'
import { PermanentError, RetryLater } from './errors.ts'

/** The service's limits; what is over them is failed here, with a message that says what to do. */
const RESULT_MAX_BYTES = 256 * 1024
const CONTEXT_MAX_BYTES = 16 * 1024
const JSON_MAX_DEPTH = 64
const URL_MAX_LENGTH = 2_048
/** Users read the message and operators the detail; a report of 1,000 failures must stay sendable. */
const MESSAGE_MAX_LENGTH = 4_000
const DETAIL_MAX_LENGTH = 16_000
const CAUSES_SHOWN = 4
const CODE_PATTERN = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/
const RETRY_AFTER_MAX_MS = 366 * 24 * 60 * 60 * 1_000

/** What becomes of an attempt. `result` is JSON text. */
export type Outcome =
  | { kind: 'succeeded'; result: string; resultUrl: string | null }
  | { kind: 'failed'; error: TaskFailure; retryable: boolean; retryAfterMs: number | null }

export type TaskFailure = Extract<ReportRequest, { trigger: 'FAIL' }>['error']

/** A result together with the address where the rest of it lies; see `done`. */
class Done {
  readonly result: unknown
  readonly resultUrl: string | null
  constructor(result: unknown, resultUrl: string | null) {
    this.result = result
    this.resultUrl = resultUrl
  }
}

/** Returned by a handler that has an address to tell: `return done({ width: 512 }, { resultUrl })`. */
export function done(result: unknown, { resultUrl }: { resultUrl?: string | URL | null } = {}): unknown {
  return new Done(result, resultUrl == null ? null : String(resultUrl))
}

/** JSON of a value, or why there is none. */
export type Encoded = { text: string } | { code: 'not_json' | 'too_large' | 'too_deep'; why: string }

/** undefined becomes null; a function, a symbol, a BigInt or a cycle is no JSON. */
export function encodeJson(value: unknown, maxBytes: number): Encoded {
  let text: string | undefined
  try {
    text = JSON.stringify(value === undefined ? null : value)
  } catch (error) {
    return { code: 'not_json', why: `it is not JSON: ${messageOf(error)}` }
  }
  if (text === undefined) return { code: 'not_json', why: `it is not JSON: it is a ${typeof value}` }
  const bytes = Buffer.byteLength(text)
  if (bytes > maxBytes)
    return { code: 'too_large', why: `it is ${bytes} bytes of JSON and the limit is ${maxBytes}` }
  if (depthOf(text) > JSON_MAX_DEPTH)
    return { code: 'too_deep', why: `it is nested more than ${JSON_MAX_DEPTH} levels deep` }
  return { text }
}

export const encodeContext = (value: unknown): Encoded => encodeJson(value, CONTEXT_MAX_BYTES)

/** The outcome of a handler that returned. A result that cannot be stored fails the task instead of hanging it. */
export function outcomeOfReturn(returned: unknown): Outcome {
  const { result, resultUrl } = returned instanceof Done ? returned : new Done(returned, null)
  const encoded = encodeJson(result, RESULT_MAX_BYTES)
  if ('code' in encoded) {
    const advice =
      encoded.code === 'too_large' ? ' Store it elsewhere and return done(summary, { resultUrl }).' : ''
    // The same code would make the same result again, so another attempt is not worth its price.
    return permanent(
      `result_${encoded.code}`,
      `The handler's result cannot be stored: ${encoded.why}.${advice}`,
    )
  }
  if (resultUrl !== null && !isWebAddress(resultUrl))
    return permanent(
      'result_url_invalid',
      `The handler's resultUrl is not an http(s) address: ${cut(resultUrl, 200)}`,
    )
  return { kind: 'succeeded', result: encoded.text, resultUrl }
}

/** The outcome of a handler that threw, whatever it threw. */
export function outcomeOfThrow(thrown: unknown): Outcome {
  try {
    const error = { code: codeOf(thrown), message: messageOf(thrown), ...detailOf(thrown) }
    const retryAfterMs = thrown instanceof RetryLater ? wholeMs(thrown.afterMs) : null
    return { kind: 'failed', error, retryable: !(thrown instanceof PermanentError), retryAfterMs }
  } catch {
    // A getter or a proxy of the thrown value threw in its turn.
    const error = { code: 'handler_error', message: 'The handler threw something that cannot be read.' }
    return { kind: 'failed', error, retryable: true, retryAfterMs: null }
  }
}

/** Whether a handler says by its error what is to become of the task, instead of just having been stopped. */
export function isDeliberate(thrown: unknown): boolean {
  try {
    return thrown instanceof PermanentError || thrown instanceof RetryLater
  } catch {
    return false
  }
}

/** A failure that another attempt cannot mend. */
export function permanent(code: string, message: string): Outcome {
  return {
    kind: 'failed',
    error: { code, message: clean(message, MESSAGE_MAX_LENGTH) },
    retryable: false,
    retryAfterMs: null,
  }
}

/** One sentence for people out of anything thrown. */
export function messageOf(thrown: unknown): string {
  if (thrown instanceof Error) return clean(thrown.message || thrown.name, MESSAGE_MAX_LENGTH)
  if (typeof thrown === 'string' && thrown.trim() !== '') return clean(thrown, MESSAGE_MAX_LENGTH)
  if (isRecord(thrown) && typeof thrown.message === 'string' && thrown.message !== '')
    return clean(thrown.message, MESSAGE_MAX_LENGTH)
  const text = thrown === undefined || typeof thrown === 'symbol' ? String(thrown) : shownJson(thrown)
  return clean(`The handler threw ${text}, which is not an Error.`, MESSAGE_MAX_LENGTH)
}

/** An error's own code where it has one (ECONNREFUSED, a PermanentError's), otherwise its class by name. */
function codeOf(thrown: unknown): string {
  if (!isRecord(thrown)) return 'handler_error'
  if (typeof thrown.code === 'string' && CODE_PATTERN.test(thrown.code)) return thrown.code
  const { name } = thrown
  const plain = ['Error', 'PermanentError', 'RetryLater']
  return typeof name === 'string' && CODE_PATTERN.test(name) && !plain.includes(name) ? name : 'handler_error'
}

/** The stack and those of its causes. Other properties stay out: errors of HTTP clients carry credentials. */
function detailOf(thrown: unknown): { detail?: string } {
  const stacks: string[] = []
  for (let error = thrown; error instanceof Error && stacks.length < CAUSES_SHOWN; error = error.cause)
    stacks.push(error.stack ?? `${error.name}: ${error.message}`)
  return stacks.length === 0 ? {} : { detail: clean(stacks.join('\nCaused by: '), DETAIL_MAX_LENGTH) }
}

/** Without control characters (colours, bells, NUL) except line ends and tabs, without lone surrogates, cut. */
function clean(text: string, maxLength: number): string {
  const plain = text
    .slice(0, maxLength * 2)
    .replace(/\p{Cc}\[[0-9;]*m/gu, '')
    .replace(/[^\P{Cc}\n\t]/gu, ' ')
  return cut(plain, maxLength).replace(/\p{Surrogate}/gu, '\uFFFD')
}

const cut = (text: string, maxLength: number): string =>
  text.length <= maxLength ? text : `${text.slice(0, maxLength - 1)}…`

function shownJson(value: unknown): string {
  const encoded = encodeJson(value, 1_000)
  return 'text' in encoded ? encoded.text : `a ${typeof value}`
}

/** Levels of nesting in JSON text; brackets inside strings do not count. A plain loop: the text may be long. */
function depthOf(text: string): number {
  let depth = 0
  let deepest = 0
  let quoted = false
  for (let index = 0; index < text.length; index++) {
    const character = text[index]
    if (quoted) {
      if (character === '\\') index++
      else if (character === '"') quoted = false
    } else if (character === '"') quoted = true
    else if (character === '{' || character === '[') deepest = Math.max(deepest, ++depth)
    else if (character === '}' || character === ']') depth--
  }
  return deepest
}

function isWebAddress(text: string): boolean {
  try {
    return text.length <= URL_MAX_LENGTH && /^https?:$/.test(new URL(text).protocol)
  } catch {
    return false
  }
}

const wholeMs = (ms: number): number | null =>
  Number.isFinite(ms) ? Math.min(RETRY_AFTER_MAX_MS, Math.max(1, Math.round(ms))) : null

const isRecord = (value: unknown): value is Record<string, unknown> =>
  (typeof value === 'object' && value !== null) || typeof value === 'function'
