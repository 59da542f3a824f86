/** The settings the embedded server runs with. They are passed at each start, so a folder cannot carry stale ones. */

import { EmbeddedPostgresError } from './embedded-postgres-error.ts'

/** Name and value of each setting of Postgres that is given on its command line. */
export type Settings = Record<string, string>

const DEFAULTS: Settings = {
  // Room for the hot part of the log and of the read model; memory is taken as it is used.
  shared_buffers: '256MB',
  // The roles in one process hold a few dozen connections; the rest is for tests and a person with psql.
  max_connections: '100',
  // No replica and no archive hangs on an embedded server, so their part of the write-ahead log is not written.
  wal_level: 'minimal',
  max_wal_senders: '0',
  // Few checkpoints: each makes the next change of every page log the whole page. 2 GB bounds disk use and recovery.
  max_wal_size: '2GB',
  checkpoint_timeout: '15min',
  // One clock zone and one language in the log, whatever the machine's.
  log_timezone: 'UTC',
  timezone: 'UTC',
  lc_messages: 'C',
  // A client that stalls inside a transaction keeps its locks, the append lock among them, and holds vacuum back.
  idle_in_transaction_session_timeout: '60s',
  // Work tables (ready, offers, leases) turn over fully within minutes; the default of 1min lets them bloat.
  autovacuum_naptime: '10s',
  // Our statements are short: compiling one takes longer than running it.
  jit: 'off',
  // A recovery shows that it moves: see startTimeoutMs.
  log_startup_progress_interval: '5s',
}

/** What a caller may not change by `settings`: the promise that what was committed stays, and who can connect. */
const FIXED = {
  // Reachable from this machine only, by TCP: a socket's path is limited to 107 bytes, a data folder's is not.
  listen_addresses: '127.0.0.1',
  unix_socket_directories: '',
  // Postgres' own defaults, repeated so that no ALTER SYSTEM in the folder weakens them.
  fsync: 'on',
  full_page_writes: 'on',
  synchronous_commit: 'on',
}

const NOT_DURABLE = { fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off' }

/** Derived from the other options. */
const GIVEN_AT_LAUNCH = ['port', 'data_directory', 'cluster_name']

/** The defaults, the caller's additions and what is fixed; throws `invalid_settings` where these disagree. */
export function serverSettings(additions: Settings, durable: boolean): Settings {
  const settings = { ...DEFAULTS }
  for (const [key, value] of Object.entries(additions)) {
    const name = key.toLowerCase().replaceAll('-', '_') // Postgres takes both spellings
    if (name in FIXED || GIVEN_AT_LAUNCH.includes(name)) {
      throw new EmbeddedPostgresError(
        'invalid_settings',
        `The setting ${key} of the embedded Postgres is not free: use the options dataDir, port and durable.`,
      )
    }
    settings[name] = value
  }
  return { ...settings, ...FIXED, ...(durable ? {} : NOT_DURABLE) }
}
