import type { Pool, PoolClient } from 'pg'

/** What runs a statement: a pool, or one connection inside a transaction. */
export type Queryable = Pick<Pool, 'query'> | Pick<PoolClient, 'query'>

/** Runs `work` in one transaction; whatever it throws rolls everything back. */
export async function inTransaction<T>(pool: Pool, work: (client: PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect()
  // A connection that broke is not given to the next one who asks.
  let broken: Error | undefined
  // A checked-out client has no handler of the pool's (PITFALLS P11); the failing query reports it.
  const onError = (error: Error): void => {
    broken = error
  }
  client.on('error', onError)
  try {
    await client.query('BEGIN')
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

/** ISO 8601 for a timestamptz, null stays null. */
export const timestamp = (at: number | null): string | null =>
  at === null ? null : new Date(at).toISOString()
