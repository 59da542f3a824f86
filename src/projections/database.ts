import pg, { type Pool, type PoolClient } from 'pg'

/** What runs a statement: a pool, or one connection inside a transaction. */
export type Queryable = Pick<Pool, 'query'> | Pick<PoolClient, 'query'>

/**
 * Whether rows themselves are at fault, so that writing them again cannot succeed: the database refuses a value
 * (classes 22 and 23), or it could not even be written down (a date out of range).
 */
export const isUnfit = (error: unknown): boolean =>
  error instanceof RangeError || (error instanceof pg.DatabaseError && /^2[23]/.test(error.code ?? ''))

/**
 * Runs `work` in one transaction; whatever it throws rolls everything back.
 *
 * @param idleMs the server ends the transaction of a process that stops for longer in the middle of it, and with it
 *   the locks that others wait for; null leaves that to the server's settings
 */
export async function inTransaction<T>(
  pool: Pool,
  work: (client: PoolClient) => Promise<T>,
  idleMs: number | null = null,
): Promise<T> {
  const client = await pool.connect()
  // A connection that broke is not given to the next one who asks.
  let broken: Error | undefined
  // A checked-out client has no handler of the pool's (PITFALLS P11); the failing query reports it.
  const onError = (error: Error): void => {
    broken = error
  }
  client.on('error', onError)
  try {
    await client.query(
      idleMs === null
        ? 'BEGIN'
        : `BEGIN; SET LOCAL idle_in_transaction_session_timeout = ${Math.ceil(idleMs)}`,
    )
    const result = await work(client)
    await client.query('COMMIT')
    return result
  } catch (error) {
    await client.query('ROLLBACK').catch(failure => {
      broken = failure as Error
    })
    throw error
  } finally {
    client.off('error', onError)
    client.release(broken)
  }
}

const WRITTEN_MAX = 4_096
const written = new Map<number, string>()

/**
 * ISO 8601 for a timestamptz, null stays null. Tasks that move together share most of their instants, and writing
 * one costs more than looking it up.
 */
export function timestamp(at: number | null): string | null {
  if (at === null) return null
  const known = written.get(at)
  if (known !== undefined) return known
  if (written.size >= WRITTEN_MAX) written.clear()
  const text = new Date(at).toISOString()
  written.set(at, text)
  return text
}
