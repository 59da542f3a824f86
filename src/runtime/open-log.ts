/** One setting says which log it is; whoever needs a log opens it here. */
import { X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createSecureContext } from 'node:tls'
import type { BaseLogger } from 'pino'
import type { EventLog } from '../eventlog/event-log.ts'
import {
  describeSettings,
  type EventStoreDBSettings,
  eventStoreDBSettings,
} from '../eventlog/eventstoredb/settings.ts'
import { openPostgresEventLog } from '../eventlog/postgres/postgres-event-log.ts'
import { ConfigError, POSTGRES_LOG } from './config.ts'

export interface OpenLogOptions {
  /** The database that `postgres` means. */
  databaseUrl: string
  appendTimeoutMs?: number
  /** For whoever copies another log into this one: appends although it is sealed. */
  pastSeal?: boolean
  logger?: BaseLogger
}

const POSTGRES_ADDRESS = /^postgres(ql)?:\/\//i

/**
 * Opens a log: `postgres` for the one in `databaseUrl`, a `postgres://` address for that of another migrated database, or
 * an `esdb://` address. The last is not reached for yet: its first call does.
 *
 * @throws LogUnavailableError when a Postgres cannot be reached
 * @throws LogAddressError, ConfigError for an address or a certificate that cannot be used
 */
export async function openLog(value: string, { databaseUrl, ...options }: OpenLogOptions): Promise<EventLog> {
  if (value === POSTGRES_LOG) return openPostgresEventLog({ connectionString: databaseUrl, ...options })
  if (POSTGRES_ADDRESS.test(value)) return openPostgresEventLog({ connectionString: value, ...options })
  const settings = eventStoreDBSettings(value)
  assertCertificates(settings)
  // A tenth of a second of loading that who has the log in Postgres is spared.
  const { openEventStoreDBEventLog } = await import('../eventlog/eventstoredb/eventstoredb-event-log.ts')
  return openEventStoreDBEventLog({ settings, ...options })
}

/** The address of a log for people and logs, without its password. */
export function describeLog(value: string): string {
  if (!POSTGRES_ADDRESS.test(value))
    return value === POSTGRES_LOG ? value : describeSettings(eventStoreDBSettings(value))
  if (!URL.canParse(value)) return 'postgres://…'
  const url = new URL(value)
  if (url.password) url.password = '***'
  // `?password=` is an address of Postgres, too.
  if (url.searchParams.has('password')) url.searchParams.set('password', '***')
  return url.href
}

/** The client reads them when it connects, and connects in the background; what is wrong with them is said at the start. */
function assertCertificates({ tlsCaFile, userCertFile, userKeyFile }: EventStoreDBSettings): void {
  usable('tlsCaFile', tlsCaFile, () => new X509Certificate(readFileSync(tlsCaFile!)))
  usable('userCertFile and userKeyFile', userCertFile, () =>
    createSecureContext({ cert: readFileSync(userCertFile!), key: readFileSync(userKeyFile!) }),
  )
}

function usable(what: string, path: string | null, use: () => unknown): void {
  if (path === null) return
  try {
    use()
  } catch (cause) {
    const why = (cause as Error).message
    throw new ConfigError(`${what} of the log's address cannot be used: ${path}: ${why}`, { cause })
  }
}
