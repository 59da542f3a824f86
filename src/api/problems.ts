/** The catalogue of API errors and their shape: application/problem+json (RFC 9457) with a stable code. */
import type { FastifyReply } from 'fastify'
import type { z } from 'zod'
import type { FieldProblem } from '../domain/fields.ts'
import { ALL_REFUSALS, type AnyRefusalCode } from '../engine/answer.ts'

/** What HTTP adds to the refusals. */
const HTTP_ERRORS = {
  invalid_request: { status: 400, title: 'The request does not fit its schema.' },
  invalid_json: { status: 400, title: 'The body is not JSON.' },
  json_too_deep: { status: 400, title: 'The body is nested too deep.' },
  number_not_exact: { status: 400, title: 'A number cannot be kept exactly.' },
  forbidden_key: { status: 400, title: 'A key is not accepted.' },
  unauthenticated: { status: 401, title: 'This takes an access key, and none that is valid was shown.' },
  missing_scope: { status: 403, title: 'The key lacks the scope that this takes.' },
  other_tenant: { status: 403, title: 'The key is of another tenant than the one that was named.' },
  whole_installation: { status: 403, title: "This is about all tenants, and the key is one tenant's." },
  key_not_found: { status: 404, title: 'No access key has this id.' },
  key_name_taken: { status: 409, title: 'A key of this name is in use.' },
  rate_limited: { status: 429, title: 'This caller sends more requests than it may; ask again later.' },
  unknown_type: {
    status: 422,
    title: 'The task type is not configured, and only configured ones are accepted.',
  },
  search_too_slow: {
    status: 422,
    title: 'The search took too long and was given up; ask for less.',
  },
  payload_mismatch: { status: 422, title: 'The payload does not fit the schema of its task type.' },
  dead_letter_not_found: { status: 404, title: 'No dead letter has this id.' },
  route_not_found: { status: 404, title: 'No such route.' },
  method_not_allowed: { status: 405, title: 'The route does not take this method.' },
  request_timeout: { status: 408, title: 'The request did not arrive in time.' },
  body_too_large: { status: 413, title: 'The body is larger than accepted.' },
  content_too_large: { status: 413, title: 'A field holds more bytes than it may.' },
  unsupported_media_type: { status: 415, title: 'The body must be application/json in UTF-8.' },
  headers_too_large: { status: 431, title: 'The headers are larger than accepted.' },
  too_many_waits: { status: 503, title: 'Too many requests wait in this process; ask again later.' },
  too_many_streams: { status: 503, title: 'Too many streams are open in this process; ask again later.' },
  read_model_rebuilding: {
    status: 503,
    title: 'The read model is being rebuilt; ask again once it has caught up.',
  },
  read_model_unavailable: { status: 503, title: 'The read model cannot be reached; ask again later.' },
} as const

const REFUSAL_STATUS: Partial<Record<AnyRefusalCode, number>> = {
  not_found: 404,
  revision_mismatch: 412,
  too_large: 413,
  idempotency_key_reused: 422,
  overloaded: 503,
  log_unavailable: 503,
  shutting_down: 503,
  set_aside: 500,
  internal_error: 500,
}

export type ProblemCode = keyof typeof HTTP_ERRORS | AnyRefusalCode

/** Every code with its HTTP status and what it means; `docs/errors.md` is held to it by a test. */
export const CATALOGUE: Record<ProblemCode, { status: number; title: string }> = {
  ...HTTP_ERRORS,
  ...(Object.fromEntries(
    Object.entries(ALL_REFUSALS).map(([code, title]) => [
      code,
      { status: REFUSAL_STATUS[code as AnyRefusalCode] ?? 409, title },
    ]),
  ) as Record<AnyRefusalCode, { status: number; title: string }>),
}

/** All codes, for schemas. */
export const CODES = Object.keys(CATALOGUE) as [ProblemCode, ...ProblemCode[]]

export interface FieldError {
  /** Where, as a path into the body or the query, such as `timeouts.queueMs`. */
  path: string
  message: string
}

const RETRY_AFTER_SECONDS = 1

/** An answer that is an error; thrown on the way, rendered in one place. */
export class Problem extends Error {
  readonly code: ProblemCode
  readonly errors: readonly FieldError[]

  constructor(code: ProblemCode, detail?: string, errors: readonly FieldError[] = []) {
    super(detail ?? CATALOGUE[code].title)
    this.code = code
    this.errors = errors
  }

  get status(): number {
    return CATALOGUE[this.code].status
  }

  body() {
    return {
      type: `urn:rollcall:problem:${this.code}`,
      title: CATALOGUE[this.code].title,
      status: this.status,
      code: this.code,
      detail: this.message,
      ...(this.errors.length > 0 ? { errors: this.errors } : {}),
    }
  }

  send(reply: FastifyReply): FastifyReply {
    if (this.status === 503 || this.status === 429) reply.header('retry-after', String(RETRY_AFTER_SECONDS))
    if (this.status === 401) reply.header('www-authenticate', 'Bearer realm="rollcall"')
    return reply.code(this.status).type('application/problem+json').send(this.body())
  }
}

/** The fields a schema refused, each with its place. */
export function fieldErrors(issues: readonly z.core.$ZodIssue[]): FieldError[] {
  return issues.flatMap(issue =>
    issue.code === 'unrecognized_keys'
      ? issue.keys.map(key => ({ path: [...issue.path, key].join('.'), message: 'is not a known field' }))
      : [{ path: issue.path.join('.'), message: issue.message }],
  )
}

/** A Problem from a failed parse: `invalid_request`, or the code that all its issues name. */
export function invalid(error: z.ZodError): Problem {
  const errors = fieldErrors(error.issues)
  const first = errors[0]
  const detail = first ? `${first.path || 'the request'}: ${first.message}` : undefined
  const codes = new Set(error.issues.map(problemOfIssue))
  const [code = 'invalid_request'] = codes.size === 1 ? codes : []
  return new Problem(code, detail, errors)
}

const problemOfIssue = (issue: z.core.$ZodIssue): ProblemCode =>
  (issue.code === 'custom' && (issue.params as Partial<FieldProblem> | undefined)?.problem) ||
  'invalid_request'
