/**
 * Real Postgres for tests. One server per test process, without durability and so fast, and a database of its
 * own for every test, cloned from a migrated one. Nothing is left behind, also when a test fails.
 *
 * `ROLLCALL_TEST_POSTGRES_URL` takes a server that runs already instead; its role must be allowed to create
 * databases.
 */
import { randomBytes } from 'node:crypto'
import { chmod, mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import root, { type Test } from 'tap'
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../../src/runtime/embedded-postgres.ts'
import { migrate } from '../../src/runtime/migrate.ts'

/** Names of this process, in case several share a server. */
const PREFIX = `rollcall_test_${process.pid}_${randomBytes(4).toString('hex')}`
let databases = 0
let server: Promise<{ url: string; template: string }> | null = null

/** A fresh database, migrated unless told otherwise; dropped when the test ends. */
export async function testDatabase(
  t: Test,
  options: { migrated?: boolean } = {},
): Promise<{ url: string; name: string }> {
  server ??= startServer()
  const { url, template } = await server
  const name = `${PREFIX}_${++databases}`
  await execute(
    url,
    `CREATE DATABASE ${name} TEMPLATE ${options.migrated === false ? 'template0' : template}`,
  )
  t.teardown(() => execute(url, `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`))
  const own = urlOf(url, name)
  // A copy is the same log; tests need different ones.
  if (options.migrated !== false)
    await execute(own, 'UPDATE rollcall_log.log_identity SET id = gen_random_uuid()')
  return { url: own, name }
}

/** A server of one's own, to be ill-treated: durable, with its database `rollcall` migrated. */
export async function testServer(t: Test): Promise<EmbeddedPostgres & { restart(): Promise<void> }> {
  const dataDir = await temporaryFolder()
  let running = await startEmbeddedPostgres({ dataDir, durable: true })
  const { port, url } = running
  t.teardown(async () => {
    await running.stop()
    await rm(dataDir, { recursive: true, force: true })
  })
  await migrate(url)
  return {
    url,
    port,
    get pid() {
      return running.pid
    },
    get exited() {
      return running.exited
    },
    stop: () => running.stop(),
    /** At the same address. */
    restart: async () => {
      running = await startEmbeddedPostgres({ dataDir, durable: true, port })
    },
  }
}

/** Runs one statement on a connection of its own. */
export async function execute(
  url: string,
  sql: string,
  values: unknown[] = [],
): Promise<pg.QueryResultRow[]> {
  const client = new pg.Client(url)
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query(sql, values)).rows
  } finally {
    await client.end()
  }
}

async function startServer(): Promise<{ url: string; template: string }> {
  const template = `${PREFIX}_template`
  const given = process.env.ROLLCALL_TEST_POSTGRES_URL
  const url = given ?? (await startOwnServer())
  await execute(url, `CREATE DATABASE ${template}`)
  if (given) root.teardown(() => execute(url, `DROP DATABASE IF EXISTS ${template} WITH (FORCE)`))
  await migrate(urlOf(url, template))
  return { url, template }
}

async function startOwnServer(): Promise<string> {
  const dataDir = await temporaryFolder()
  const started = await startEmbeddedPostgres({ dataDir, durable: false })
  root.teardown(async () => {
    await started.stop()
    await rm(dataDir, { recursive: true, force: true })
  })
  return started.url
}

const FOLDER = /^rollcall-test-(\d+)-/

/** Gone with the process, at the latest when the next one needs such a folder. */
export async function temporaryFolder(): Promise<string> {
  await removeLeftovers()
  const folder = await mkdtemp(join(tmpdir(), `rollcall-test-${process.pid}-`))
  // As root the server runs as another user, who has to pass.
  await chmod(folder, 0o755)
  return folder
}

/** A test process that was killed cannot clean up; the next one does it. Its server ended with it. */
async function removeLeftovers(): Promise<void> {
  for (const name of await readdir(tmpdir())) {
    const pid = Number(FOLDER.exec(name)?.[1])
    if (!pid || isAlive(pid)) continue
    await rm(join(tmpdir(), name), { recursive: true, force: true }).catch(() => {})
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH'
  }
}

function urlOf(url: string, database: string): string {
  const changed = new URL(url)
  changed.pathname = `/${database}`
  return changed.href
}
