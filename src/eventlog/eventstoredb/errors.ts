/** What errors of the client and of gRPC mean to the port. */
import { LogUnavailableError } from '../event-log.ts'

/** The part of gRPC's ServiceError that is looked at; the client wraps some errors and passes others on. */
interface Failure {
  code?: unknown
  details?: unknown
  metadata?: { get?: (key: string) => unknown[] }
}

const CANCELLED = 1
const UNKNOWN = 2
const INVALID_ARGUMENT = 3
const NOT_FOUND = 5
const PERMISSION_DENIED = 7
const UNAUTHENTICATED = 16

const named = (error: unknown): string => {
  const found = (error as Failure)?.metadata?.get?.('exception')?.[0]
  return found === undefined ? '' : String(found)
}
const code = (error: unknown): unknown => (error as Failure)?.code

/** The node is not the leader any more; the error names the one that is. */
export const isNotLeader = (error: unknown): boolean => named(error) === 'not-leader'
export const isStreamDeleted = (error: unknown): boolean => named(error) === 'stream-deleted'
export const isStreamNotFound = (error: unknown): boolean =>
  named(error) === 'stream-not-found' || (code(error) === NOT_FOUND && !isNotLeader(error))
/** Nothing begins at the position: a subscription is told so by one code, a read by another. */
export const isInvalidPosition = (error: unknown): boolean => {
  const details = String((error as Failure)?.details)
  return (
    (code(error) === INVALID_ARGUMENT && /position/i.test(details)) ||
    (code(error) === UNKNOWN && /InvalidPosition/.test(details))
  )
}
/** We ended the call ourselves. */
export const isCancelled = (error: unknown): boolean => code(error) === CANCELLED

const BUGS = [TypeError, RangeError, ReferenceError, SyntaxError]

/**
 * What the port throws for an error: LogUnavailableError for whatever the server, the network or the client's discovery
 * did; the language's own errors are bugs and stay what they are.
 */
export function asLogError(error: unknown, what: string): unknown {
  if (error instanceof LogUnavailableError || BUGS.some(bug => error instanceof bug)) return error
  const denied = code(error) === PERMISSION_DENIED || code(error) === UNAUTHENTICATED
  const why = denied
    ? 'EventStoreDB denies access; check the user, the password and what the user may do'
    : error instanceof Error && error.message
      ? error.message
      : String((error as Failure)?.details ?? error)
  return new LogUnavailableError(`the log is not available: ${what} failed: ${why}`, { cause: error })
}
