/** Where `rollcall keys` works: over the service, or in its database, where the first key has to be made. */
import type { Command } from 'commander'
import type { CreatedKey, KeyList, KeyView } from '../api/schemas/keys.ts'
import { keyOf, originHeaders, urlOf } from './connection.ts'
import { assertMigrated, databaseError } from './database.ts'
import { CliError, EXIT, SELF, usageError } from './failures.ts'

export interface KeyPlaceOptions {
  databaseUrl?: string
  dataDir?: string
}

export interface KeyCalls {
  create(key: { name: string; scopes: readonly string[]; tenant?: string | undefined }): Promise<CreatedKey>
  list(page: { limit: number; cursor?: string }): Promise<KeyList>
  /** @param key its id or its name */
  revoke(key: string): Promise<KeyView>
}

export interface KeyPlace {
  /** Runs one call, and closes what it needed. */
  within<T>(call: (keys: KeyCalls) => Promise<T>): Promise<T>
}

const CALL_MS = 10_000

export async function openKeyPlace(command: Command, options: KeyPlaceOptions): Promise<KeyPlace> {
  const url = await databaseOf(command, options)
  return url === null ? overService(command) : inDatabase(url)
}

/** The database that was meant; null where the service is to be asked. */
async function databaseOf(
  command: Command,
  { databaseUrl, dataDir }: KeyPlaceOptions,
): Promise<string | null> {
  if (databaseUrl !== undefined && dataDir !== undefined)
    throw usageError('Choose --database-url or --data-dir, not both.')
  if (dataDir !== undefined) return developmentDatabase(dataDir)
  const { url, key } = command.optsWithGlobals<{ url?: string; key?: string }>()
  const service = url ?? key ?? (process.env.ROLLCALL_URL || process.env.ROLLCALL_KEY || undefined)
  const meant = databaseUrl ?? (service === undefined ? process.env.ROLLCALL_DATABASE_URL || null : null)
  if (meant === null) return null
  const { serviceConfig } = await import('../runtime/config.ts')
  return serviceConfig({ databaseUrl: meant }).databaseUrl
}

async function developmentDatabase(dataDir: string): Promise<string> {
  const { runningEmbeddedPostgres } = await import('../runtime/embedded-postgres.ts')
  const url = await runningEmbeddedPostgres(dataDir)
  if (url !== null) return url
  throw new CliError(
    'database_unreachable',
    `No ${SELF} dev runs on the data folder ${dataDir}. Start it, then make the key.`,
    EXIT.unreachable,
  )
}

async function inDatabase(connectionString: string): Promise<KeyPlace> {
  await assertMigrated(connectionString)
  const [{ default: pg }, { PostgresKeys }, { keyView }, { newKeySchema, keyParamsSchema }] =
    await Promise.all([
      import('pg'),
      import('../api/postgres/postgres-keys.ts'),
      import('../api/keys.ts'),
      import('../api/schemas/keys.ts'),
    ])
  const pool = new pg.Pool({
    connectionString,
    max: 1,
    connectionTimeoutMillis: CALL_MS,
    query_timeout: CALL_MS,
  })
  pool.on('error', () => {})
  const keys = new PostgresKeys(pool)
  const by = originHeaders()['rollcall-actor']!
  const calls: KeyCalls = {
    create: async given => {
      const asked = newKeySchema.safeParse(given)
      if (!asked.success) throw usageError(asked.error.issues.map(problemText).join(' '))
      const { name, scopes, tenant } = asked.data
      const made = await keys.create({ name, scopes, tenant, createdBy: by })
      if (!made) throw new CliError('key_name_taken', `A key of the name ${name} is in use.`, EXIT.no)
      return { ...keyView(made.key), secret: made.secret }
    },
    list: async ({ limit, cursor = null }) => {
      if (cursor !== null && !/^\d{1,18}$/.test(cursor))
        throw usageError('--cursor is not one that a list has given.')
      const page = await keys.list({ before: cursor, limit })
      return { keys: page.keys.map(keyView), nextCursor: page.next }
    },
    revoke: async key => {
      const revoked = keyParamsSchema.safeParse({ id: key }).success ? await keys.revoke(key, by) : null
      if (!revoked)
        throw new CliError('key_not_found', 'No access key has this id, and no live one this name.', EXIT.no)
      return keyView(revoked)
    },
  }
  return {
    within: async call => {
      try {
        return await call(calls)
      } catch (error) {
        throw databaseError(error, connectionString)
      } finally {
        await pool.end()
      }
    },
  }
}

async function overService(command: Command): Promise<KeyPlace> {
  const [{ Http }, { nodeTransport }] = await Promise.all([
    import('../sdk/http.ts'),
    import('../sdk/node-transport.ts'),
  ])
  const options = { url: urlOf(command), key: keyOf(command), headers: originHeaders() }
  const http = new Http(options, nodeTransport)
  const post = <T extends object>(path: string, body: object) =>
    http.call<T>({ method: 'POST', path, body: JSON.stringify(body), timeoutMs: CALL_MS })
  const calls: KeyCalls = {
    create: given => post('/v1/keys', given),
    list: ({ limit, cursor }) => {
      const query = new URLSearchParams({ limit: String(limit), ...(cursor !== undefined && { cursor }) })
      return http.call({ method: 'GET', path: `/v1/keys?${query}`, timeoutMs: CALL_MS })
    },
    revoke: key => post(`/v1/keys/${encodeURIComponent(key)}/revoke`, {}),
  }
  return { within: call => call(calls) }
}

const problemText = ({ path, message }: { path: PropertyKey[]; message: string }): string =>
  `--${String(path[0])} ${message.toLowerCase()}.`
