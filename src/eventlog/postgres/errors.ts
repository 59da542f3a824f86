/** Which failures of Postgres mean what. Codes are matched, never texts. */
import pg from 'pg'
import { LogSealedError, LogUnavailableError } from '../event-log.ts'

/**
 * SQLSTATEs, or their classes, after which the same call may succeed: the server is away, busy, out of
 * something, or its answer did not come in time.
 */
const UNAVAILABLE = [
  '08', // connection exception
  '40', // transaction rollback: deadlock, serialization failure
  '53', // insufficient resources: connections, disk, memory
  '57', // operator intervention: shutdown, crash, starting up, statement timeout
  '58', // system error: input or output
  '23505', // unique_violation: someone wrote without the append lock; the next try sees their event
  '25006', // read_only_sql_transaction: connected to a standby during a failover
  '25P03', // idle_in_transaction_session_timeout
  '25P04', // transaction_timeout
  '55P03', // lock_not_available
] as const

/** Classes that are about the values of a call: data exceptions and broken constraints. */
const BAD_VALUE = ['22', '23'] as const

const matches = (code: string | undefined, codes: readonly string[]): boolean =>
  code !== undefined && codes.some(prefix => code.startsWith(prefix))

/**
 * Whether the log could not be reached or did not answer. What is not Postgres' own error comes from the
 * driver or the socket, often without a code; the language's own errors are bugs.
 */
export function isUnavailable(error: unknown): boolean {
  if (error instanceof LogUnavailableError) return true
  if (error instanceof pg.DatabaseError) return matches(error.code, UNAVAILABLE)
  return error instanceof Error && !BUGS.some(bug => error instanceof bug)
}

const BUGS = [TypeError, RangeError, ReferenceError, SyntaxError]

/** Whether Postgres refuses a value of the call, so that the same call can never succeed. */
export const isBadValue = (error: unknown): boolean =>
  error instanceof pg.DatabaseError && !isUnavailable(error) && matches(error.code, BAD_VALUE)

/** Ours: the log takes no appends; the detail is the log that has taken its place. */
const SEALED = 'RC002'

/** LogSealedError where Postgres says that the log is sealed, the error itself otherwise. */
export const asSealed = (error: unknown, logId: string): unknown =>
  error instanceof pg.DatabaseError && error.code === SEALED
    ? new LogSealedError(logId, error.detail ?? 'unknown')
    : error

/** What the port throws for an error: LogUnavailableError where it is one, the error itself otherwise. */
export function asLogError(error: unknown, what: string): unknown {
  if (error instanceof LogUnavailableError || !isUnavailable(error)) return error
  return new LogUnavailableError(`the log is not available: ${what} failed`, { cause: error })
}
