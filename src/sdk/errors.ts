/** Errors that the SDK throws, and those a handler may throw to say more than "it failed". */

/** What a problem+json answer says of one field. */
export interface FieldError {
  path: string
  message: string
}

/** Everything a RollcallError carries besides its message. */
export interface RollcallErrorInfo {
  code: string
  status?: number
  detail?: string
  errors?: readonly FieldError[]
  retryable?: boolean
  retryAfterMs?: number | null
  cause?: unknown
}

/**
 * The service refused, or could not be asked. Match on `code`, never on the message: it is a code of the
 * service's catalogue, or one of the SDK's own: `unreachable`, `timeout`, `bad_answer`, `not_json`.
 */
export class RollcallError extends Error {
  override readonly name = 'RollcallError'
  readonly code: string
  /** The HTTP status; 0 where no answer came. */
  readonly status: number
  /** What was wrong in this case, without the address. */
  readonly detail: string
  /** The fields at fault, where the request was. */
  readonly errors: readonly FieldError[]
  /** Whether the same request may do better later. */
  readonly retryable: boolean
  /** How long the service asks to wait before that, in milliseconds; null where it did not say. */
  readonly retryAfterMs: number | null

  constructor(message: string, info: RollcallErrorInfo) {
    super(message, info.cause === undefined ? undefined : { cause: info.cause })
    this.code = info.code
    this.status = info.status ?? 0
    this.detail = info.detail ?? message
    this.errors = info.errors ?? []
    this.retryable = info.retryable ?? false
    this.retryAfterMs = info.retryAfterMs ?? null
  }
}

/** What a thrown failure may carry along. */
export interface FailureOptions {
  /** Stable name of the failure, shown beside the message: letters, digits, dot, dash, underscore. */
  code?: string
  cause?: unknown
}

/** Thrown by a handler: trying again cannot help, so the task fails now, whatever attempts are left. */
export class PermanentError extends Error {
  override readonly name = 'PermanentError'
  readonly code: string | undefined

  constructor(message: string, options: FailureOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.code = options.code
  }
}

/** Thrown by a handler: try again, but not before `afterMs` (a rate limit, a file that is not there yet). */
export class RetryLater extends Error {
  override readonly name = 'RetryLater'
  readonly code: string | undefined
  readonly afterMs: number

  constructor(message: string, options: FailureOptions & { afterMs: number }) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.code = options.code
    this.afterMs = options.afterMs
  }
}

/** Why a handler's signal was aborted: someone cancelled the task. Nothing is reported for it any more. */
export class CancelledError extends Error {
  override readonly name = 'CancelledError'
  /** What was given as the reason of the cancellation. */
  readonly reason: string | null

  constructor(reason: string | null) {
    super(reason ? `The task was cancelled: ${reason}` : 'The task was cancelled.')
    this.reason = reason
  }
}

/** Why a handler's signal was aborted: the attempt is over or another worker's. Nothing is reported for it. */
export class LeaseLostError extends Error {
  override readonly name = 'LeaseLostError'

  constructor(reason: string | null) {
    super(
      reason ? `The lease is lost: ${reason}` : 'The lease is lost; the attempt is over or in other hands.',
    )
  }
}

/** Why a handler's signal was aborted: the worker shuts down and hands the task back. */
export class ShutdownError extends Error {
  override readonly name = 'ShutdownError'

  constructor() {
    super('The worker is shutting down; the task goes back to the queue.')
  }
}

const AWAY_CODES = new Set(['overloaded', 'log_unavailable', 'shutting_down'])
const PASSING_CODES = new Set(['conflict', 'internal_error'])

/** Refusals that blame the service, not the request: asked again with the same ids, they pass once it is back. */
export const isServiceAway = (code: string | null): boolean => code !== null && AWAY_CODES.has(code)

/** Refusals that may pass when the same is asked again. */
export const isPassing = (code: string | null): boolean =>
  isServiceAway(code) || (code !== null && PASSING_CODES.has(code))
