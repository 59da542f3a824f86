/**
 * Brings a database up to date: the log and the read model, each in a schema of its own with its own table of
 * what was applied. Safe to repeat and to run from many processes at once.
 */
import { readdir } from 'node:fs/promises'
import { basename } from 'node:path'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import type { BaseLogger } from 'pino'

/** In this order. */
const SCHEMAS = [
  { schema: 'rollcall_log', folder: new URL('../eventlog/postgres/migrations', import.meta.url) },
  { schema: 'rollcall', folder: new URL('../projections/migrations', import.meta.url) },
] as const

const TABLE = 'migrations'
/** Whoever comes second waits for the first, and then finds nothing to do. */
const LOCK = '2718094455210683907'
const LOCK_TIMEOUT_MS = 60_000
const CONNECT_TIMEOUT_MS = 10_000

/**
 * Applies what is missing.
 *
 * @returns the names of what was applied, in order
 * @throws MigrationError saying which schema and why
 */
export async function migrate(connectionString: string, log?: BaseLogger): Promise<string[]> {
  const client = new pg.Client({
    connectionString,
    application_name: 'rollcall-migrate',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
  })
  // What fails is reported by the query that needed the connection.
  client.on('error', () => {})
  try {
    await client.connect()
    await client.query(`SET lock_timeout = ${LOCK_TIMEOUT_MS}`)
    await client.query(`SELECT pg_advisory_lock(${LOCK})`)
  } catch (error) {
    await client.end().catch(() => {})
    throw new MigrationError(
      `the database cannot be migrated: ${(error as Error).message || 'no connection'}`,
      { cause: error },
    )
  }
  try {
    const applied: string[] = []
    for (const { schema, folder } of SCHEMAS)
      applied.push(...(await migrateSchema(client, schema, fileURLToPath(folder), log)))
    return applied
  } finally {
    // Ends the lock with the session.
    await client.end().catch(() => {})
  }
}

/** A migration could not be applied; what it did was undone. */
export class MigrationError extends Error {
  readonly code = 'migration_failed'
}

async function migrateSchema(
  client: pg.Client,
  schema: string,
  folder: string,
  log: BaseLogger | undefined,
): Promise<string[]> {
  try {
    const files = await sqlFiles(folder)
    if (files.length === 0) return []
    if (await isUpToDate(client, schema, files)) return []
    // Loading it takes longer than a start with nothing to do.
    const { runner } = await import('node-pg-migrate')
    const run = await runner({
      dbClient: client,
      dir: folder,
      direction: 'up',
      schema,
      createSchema: true,
      migrationsTable: TABLE,
      migrationsSchema: schema,
      // Our own lock is held for both schemas together and with a bound.
      noLock: true,
      logger: runnerLogger(log),
    })
    const names = run.map(({ name }) => name)
    log?.info({ schema, applied: names }, 'the database was migrated')
    return names
  } catch (error) {
    throw new MigrationError(`schema ${schema} cannot be migrated: ${(error as Error).message}`, {
      cause: error,
    })
  } finally {
    await client.query('RESET search_path').catch(() => {})
  }
}

/** The migrations of a folder by name; none where the folder is missing. */
async function sqlFiles(folder: string): Promise<string[]> {
  const entries = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return []
    throw error
  })
  return entries.filter(name => name.endsWith('.sql')).map(name => basename(name, '.sql'))
}

/** Saves a start with nothing to do most of what the runner costs. */
async function isUpToDate(client: pg.Client, schema: string, names: readonly string[]): Promise<boolean> {
  const table = `${schema}.${TABLE}`
  const { rows: known } = await client.query('SELECT to_regclass($1) AS found', [table])
  if (known[0]?.found === null) return false
  const { rows } = await client.query(`SELECT name FROM ${table}`)
  const applied = new Set(rows.map(row => row.name))
  return names.length === applied.size && names.every(name => applied.has(name))
}

/** The runner prints by default; what it says is for debugging. */
function runnerLogger(log: BaseLogger | undefined) {
  const debug = (message: string) => log?.debug(message)
  return { debug, info: debug, warn: debug, error: (message: string) => log?.error(message) }
}
