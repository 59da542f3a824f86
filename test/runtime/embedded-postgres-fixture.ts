/** Data folders, servers and owners for the tests of the embedded Postgres. */

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath, pathToFileURL } from 'node:url'
import pg from 'pg'
import root, { type Test } from 'tap'
import {
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from '../../src/runtime/embedded-postgres.ts'
import type { Account } from '../../src/runtime/embedded-postgres-account.ts'

export const PROJECT = fileURLToPath(new URL('../../', import.meta.url))
export const isRoot = process.getuid?.() === 0
export const isLinux = process.platform === 'linux'

/** A data folder of its own, in a place any user can reach; gone at the end. */
export async function dataFolder(t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'rollcall-embedded-'))
  await chmod(folder, 0o755)
  t.teardown(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }))
  return folder
}

let template: Promise<string> | undefined

/** A data folder with a cluster in it: a copy of one, since making one takes a second or more. */
export async function madeFolder(t: Test): Promise<string> {
  template ??= dataFolder(root as Test).then(async dataDir => {
    await (await startEmbeddedPostgres({ dataDir, durable: false })).stop()
    return dataDir
  })
  const folder = await dataFolder(t)
  await once(spawn('cp', ['-a', join(await template, 'postgres'), folder]), 'exit')
  return folder
}

/** A server of this process, stopped at the end whatever happens. Not durable: the folder ends with the test. */
export async function start(t: Test, options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const server = await startEmbeddedPostgres({ durable: false, ...options })
  t.teardown(() => server.stop())
  return server
}

/** One connection, one statement. */
export async function query(url: string, sql: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client(url)
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query(sql)).rows
  } finally {
    await client.end()
  }
}

/** The program of a process that owns a server; it answers with one line, and ends the server when told `stop`. */
const OWNER = `
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'
const [source, dataDir] = process.argv.slice(2)
const { startEmbeddedPostgres } = await import(pathToFileURL(source).href)
try {
  const { url, port, pid, stop } = await startEmbeddedPostgres({ dataDir })
  console.log(JSON.stringify({ url, port, pid }))
  for await (const line of createInterface(process.stdin)) if (line === 'stop') break
  await stop()
} catch (error) {
  console.log(JSON.stringify({ code: error.code, message: error.message }))
}
process.exit()
`

/** A process that owns a server: what it answered, and its end, orderly or by a signal. */
export interface Owner {
  process: ChildProcess
  answer: Promise<{ url: string; port: number; pid: number; code?: string; message?: string }>
  end(signal?: NodeJS.Signals): Promise<void>
}

/** Which project's source it runs, as whom, and with which environment. */
export interface OwnerOptions {
  project?: string
  account?: Account
  env?: Record<string, string>
}

/** Another process that starts a server, with nothing in its environment but what is given. */
export async function owner(t: Test, dataDir: string, options: OwnerOptions = {}): Promise<Owner> {
  const { project = PROJECT, account, env = {} } = options
  const script = join(await dataFolder(t), 'owner.mjs')
  await writeFile(script, OWNER)
  const tsx = pathToFileURL(join(PROJECT, 'node_modules/tsx/dist/loader.mjs')).href
  const source = join(project, 'src/runtime/embedded-postgres.ts')
  const environment = Object.entries({ PATH: process.env.PATH, ...env }).map(
    ([name, value]) => `${name}=${value}`,
  )
  const command = [process.execPath, `--import=${tsx}`, script, source, dataDir]
  // By way of `env -i`, since tap adds variables of its own to the environment of any child.
  const child = spawn('/usr/bin/env', ['-i', ...environment, ...command], {
    ...account,
    cwd: '/',
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const ended = once(child, 'exit')
  const end = async (signal?: NodeJS.Signals) => {
    if (signal) child.kill(signal)
    else child.stdin.end('stop\n')
    await ended
  }
  child.stdin.on('error', () => {})
  t.teardown(() => end())
  const answer = Promise.race([
    once(createInterface(child.stdout), 'line').then(([line]) => JSON.parse(line)),
    ended.then(() => delay(100)).then(() => ({ code: 'owner ended without an answer' })),
  ])
  return { process: child, answer, end }
}

/** Wait for something that has no signal to wait for, such as the end of a process that is not our child. */
export async function until(what: string, condition: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 20_000
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`waited in vain until ${what}`)
    await delay(10)
  }
}

/** Linux: the processes with this property of theirs, a file or link below /proc/<pid>. */
export async function processesWhere(matches: (pid: number) => Promise<boolean>): Promise<number[]> {
  const pids = (await readdir('/proc')).map(Number).filter(pid => pid > 0)
  const found = await Promise.all(pids.map(pid => matches(pid).catch(() => false)))
  return pids.filter((_, index) => found[index])
}

/** Linux: what /proc/<pid>/stat tells after the name: state, parent, process group, session, … */
export const statFields = async (pid: number) =>
  (await readFile(`/proc/${pid}/stat`, 'utf8')).split(') ')[1]!.split(' ')
export const childrenOf = (parent: number) =>
  processesWhere(async pid => (await statFields(pid))[1] === String(parent))
