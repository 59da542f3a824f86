/** What a command asks of a database before it works on it. */
import { CliError, EXIT, SELF } from './failures.ts'

const CONNECT_TIMEOUT_MS = 10_000

/** @throws CliError when the database does not answer, or was not migrated */
export async function assertMigrated(connectionString: string): Promise<void> {
  const { default: pg } = await import('pg')
  const client = new pg.Client({
    connectionString,
    application_name: 'rollcall',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    query_timeout: CONNECT_TIMEOUT_MS,
  })
  // What fails is reported by the query that needed the connection.
  client.on('error', () => {})
  try {
    await client.connect()
    const { rows } = await client.query(
      `SELECT to_regclass('rollcall_log.migrations') IS NOT NULL
          AND to_regclass('rollcall.migrations') IS NOT NULL AS migrated`,
    )
    if (!rows[0]?.migrated)
      throw new CliError(
        'not_migrated',
        `The database ${placeOf(connectionString)} was not prepared for Rollcall. Run ${SELF} migrate with the same --database-url.`,
        EXIT.usage,
      )
  } catch (error) {
    throw databaseError(error, connectionString)
  } finally {
    await client.end().catch(() => {})
  }
}

/** A failure of the connection says where it led, without the password. */
export function databaseError(error: unknown, connectionString: string): unknown {
  if (error instanceof CliError) return error
  const { code, message } = rootOf(error)
  const where = placeOf(connectionString)
  if (/^(28|3D)/.test(code))
    return new CliError('database_refused', `The database ${where} refuses: ${message}.`, EXIT.usage, {
      cause: error,
    })
  // A table that a later version brought.
  if (code === '42P01')
    return new CliError(
      'not_migrated',
      `The database ${where} is older than this Rollcall: ${message}. Run ${SELF} migrate with the same --database-url.`,
      EXIT.usage,
      { cause: error },
    )
  if (/^(E[A-Z]+|57P03|53300|08.*)$/.test(code) || /timeout|terminated/i.test(message))
    return new CliError(
      'database_unreachable',
      `The database ${where} does not answer: ${message || code}. Is it running, and is --database-url right?`,
      EXIT.unreachable,
      { cause: error },
    )
  return error
}

/** The first error of a chain that carries a system's or a server's code; a failed dual-stack connect has many. */
function rootOf(error: unknown): { code: string; message: string } {
  if (error instanceof AggregateError && error.errors.length > 0) return rootOf(error.errors[0])
  if (!(error instanceof Error)) return { code: '', message: String(error) }
  const code = 'code' in error && typeof error.code === 'string' ? error.code : ''
  if (error.cause !== undefined && !/^[0-9A-Z]{5}$|^E[A-Z]+$/.test(code)) return rootOf(error.cause)
  return { code, message: error.message.replace(/\.$/, '') }
}

function placeOf(connectionString: string): string {
  const { hostname, port, pathname } = new URL(connectionString)
  return `${hostname}${port && `:${port}`}${pathname}`
}
