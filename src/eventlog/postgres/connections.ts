/**
 * Connections that neither kill the process nor hang it: every query has a bound that does not depend on the
 * server or the network, and a connection whose state is unknown is destroyed.
 */

import type { Socket } from 'node:net'
import pg from 'pg'
import type { BaseLogger } from 'pino'
import { LogUnavailableError } from '../event-log.ts'
import { within } from '../within.ts'
import { asLogError, isUnavailable } from './errors.ts'

/** A row as Postgres wrote it. Numbers are parsed where they are used: a position can exceed a double. */
export type Row = (string | null)[]

export interface Statement {
  /** Prepared once per connection under this name. */
  name: string
  text: string
  values: unknown[]
}

/** Every type as text: the driver's own parsers can be changed by anyone in the process. */
const AS_TEXT = { getTypeParser: () => (value: string) => value } as pg.CustomTypesConfig

/** The settings that every connection of the log needs. */
export function clientConfig(connectionString: string, timeoutMs: number): pg.ClientConfig {
  return {
    connectionString,
    application_name: 'rollcall-log',
    // A peer that vanished without a word is noticed by the system, not only by the next query.
    keepAlive: true,
    connectionTimeoutMillis: timeoutMs,
    // The server stops working on what nobody waits for any more, a wait for the append lock among it.
    statement_timeout: timeoutMs,
    // The append function is correct under this level only, whatever the database's default.
    options: '-c default_transaction_isolation=read\\ committed',
  }
}

const END_TIMEOUT_MS = 2_000

/** A pool, and the bound of every query on it. */
export class Connections {
  readonly #pool: pg.Pool
  readonly #timeoutMs: number
  readonly #clients = new Set<pg.PoolClient>()

  constructor(config: pg.PoolConfig, timeoutMs: number, logger: BaseLogger | undefined) {
    this.#pool = new pg.Pool(config)
    this.#timeoutMs = timeoutMs
    // Both are needed: an idle connection's error comes from the pool, a busy one's from the client; without a
    // listener either ends the process. What failed is reported by the query that needed it.
    this.#pool.on('error', error => logger?.debug({ err: error }, 'an idle connection to the log ended'))
    this.#pool.on('connect', client => {
      client.on('error', () => {})
      client.on('end', () => this.#clients.delete(client))
      this.#clients.add(client)
    })
  }

  /**
   * Runs one statement.
   *
   * @throws LogUnavailableError when it failed for a reason that may pass, or took longer than the bound
   */
  async run(statement: Statement): Promise<Row[]> {
    const query = { ...statement, rowMode: 'array' as const, types: AS_TEXT }
    let client: pg.PoolClient | undefined
    let late = false
    const answer = async (): Promise<Row[]> => {
      const connected = await this.#pool.connect()
      if (late) {
        connected.release()
        throw new LogUnavailableError('it was too late for the query')
      }
      client = connected
      return (await connected.query<Row>(query)).rows
    }
    try {
      const rows = await within(this.#timeoutMs, answer(), statement.name)
      client?.release()
      return rows
    } catch (error) {
      late = true
      // A refused value leaves the connection fit for use. After anything else its state is not known.
      client?.release(!(error instanceof pg.DatabaseError) || isUnavailable(error))
      throw asLogError(error, statement.name)
    }
  }

  /** Ends the connections when their queries are done, or by force when that takes too long. */
  async end(): Promise<void> {
    await within(END_TIMEOUT_MS, this.#pool.end(), 'end').catch(() => {})
    for (const client of this.#clients) destroy(client)
  }
}

/** Closes a connection's socket at once. A polite end waits for the server's, which may never come. */
export function destroy(client: pg.ClientBase): void {
  // The types leave out the connection, and the client has no other way to be closed at once.
  ;(client as unknown as { connection: { stream: Socket } }).connection.stream.destroy()
}
