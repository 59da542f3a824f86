/** The process of the server: started, watched, stopped. */

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { type Account, CLEAN_ENVIRONMENT } from './embedded-postgres-account.ts'
import { type Binaries, REINSTALL } from './embedded-postgres-binaries.ts'
import { type Cluster, pathForServer } from './embedded-postgres-cluster.ts'
import { EmbeddedPostgresError } from './embedded-postgres-error.ts'
import { clusterName } from './embedded-postgres-leftovers.ts'
import type { Settings } from './embedded-postgres-settings.ts'
import { freePort, isFree } from './port.ts'

/** How the server's process ended. */
export interface ServerExit {
  code: number | null
  signal: string | null
}

/** A process of Postgres, whether it answers already or not. */
export interface Server {
  port: number
  pid: number
  exited: Promise<ServerExit>
  stop(): Promise<void>
}

/** What a server is started with. */
export interface ServerOptions {
  port: number | undefined
  settings: Settings
  startTimeoutMs: number
  log: (line: string) => void
}

interface Launched extends Server {
  exit: ServerExit | undefined
  logTail: string[]
  lastLineAt: number
}

const PORT_ATTEMPTS = 5
const LOG_TAIL_LINES = 25
const POLL_MS = 10

/** What `stop` does and how long it waits after each step; 4.7 s in all. */
const STOP_STEPS = [
  { signal: 'SIGINT', waitMs: 3_000 }, // fast shutdown: open transactions end, a checkpoint is written
  { signal: 'SIGQUIT', waitMs: 1_200 }, // immediate shutdown: the next start recovers from the write-ahead log
  { signal: 'SIGKILL', waitMs: 500 }, // its children notice and end by themselves
] as const

/** Start the server and wait until it answers; rejects with its last log lines, and then nothing runs. */
export async function startServer(
  cluster: Cluster,
  binaries: Binaries,
  options: ServerOptions,
): Promise<Server> {
  const path = await pathForServer(cluster.dir, cluster.account)
  const settings = { cluster_name: await clusterName(cluster.dir), ...options.settings }
  for (let attempt = 1; ; attempt++) {
    const port = options.port ?? (await freePort())
    const server = launch(cluster, binaries, ['-D', path, ...flags({ ...settings, port })], port, options.log)
    const outcome = await untilReady(server, cluster.dir, options.startTimeoutMs)
    if (outcome === 'ready') return server

    await server.stop()
    const taken = outcome === 'ended' && !(await isFree(port))
    if (!taken) throw startFailed(cluster.dir, server, outcome)
    if (options.port !== undefined) {
      throw new EmbeddedPostgresError(
        'port_in_use',
        `Port ${port} of 127.0.0.1, where the embedded Postgres was to listen, is in use by another process. ` +
          'Stop that, choose another port, or choose none to get a free one.',
      )
    }
    // Between our look and its start another process took the port.
    if (attempt === PORT_ATTEMPTS) throw startFailed(cluster.dir, server, outcome)
  }
}

function flags(settings: Record<string, string | number>): string[] {
  return Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
}

function launch(
  cluster: Cluster,
  binaries: Binaries,
  args: string[],
  port: number,
  log: (line: string) => void,
): Launched {
  const child = spawn(binaries.postgres, args, {
    ...cluster.account,
    cwd: cluster.dir,
    env: CLEAN_ENVIRONMENT,
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  let stopped: Promise<void> | undefined
  const server: Launched = {
    port,
    pid: child.pid ?? -1,
    exit: undefined,
    exited: watch(child, cluster.account).then(exit => {
      server.exit = exit
      return exit
    }),
    logTail: [],
    lastLineAt: performance.now(),
    stop: () => {
      stopped ??= stop(child, server)
      return stopped
    },
  }
  createInterface(child.stderr).on('line', line => {
    server.lastLineAt = performance.now()
    server.logTail = [...server.logTail.slice(1 - LOG_TAIL_LINES), line]
    log(line)
  })
  return server
}

/**
 * The end of the server. Until then a guard stands by: a shell that reads from us, and when nothing can come any more
 * because this process is gone, in whatever way, asks the server to shut down. It runs under the server's account, so
 * that it cannot reach a stranger's process even if it were late.
 */
function watch(child: ChildProcess, account: Account | undefined): Promise<ServerExit> {
  if (child.pid === undefined) {
    return once(child, 'error').then(() => ({ code: null, signal: null }))
  }
  const guard = spawn('/bin/sh', ['-c', 'read -r line; kill -INT "$1"', 'guard', String(child.pid)], {
    ...account,
    cwd: '/',
    env: CLEAN_ENVIRONMENT,
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  guard.on('error', () => {}) // the server can do without
  return new Promise(resolve => {
    child.once('exit', (code, signal) => {
      guard.kill('SIGKILL')
      resolve({ code, signal })
    })
  })
}

async function stop(child: ChildProcess, server: Launched): Promise<void> {
  for (const { signal, waitMs } of STOP_STEPS) {
    if (child.pid !== undefined) child.kill(signal)
    const waited = new AbortController()
    await Promise.race([server.exited, delay(waitMs, undefined, { signal: waited.signal }).catch(() => {})])
    waited.abort()
    if (server.exit) return
  }
  throw new EmbeddedPostgresError(
    'stop_failed',
    `The embedded Postgres (process ${server.pid}) did not end, not even when killed. Its disk may not be answering.`,
  )
}

async function untilReady(
  server: Launched,
  dir: string,
  timeoutMs: number,
): Promise<'ready' | 'ended' | 'silent'> {
  while (!server.exit) {
    // The pid file says so whatever the log is set to, and whatever language it speaks.
    const lines = (await readFile(join(dir, 'postmaster.pid'), 'utf8').catch(() => '')).split('\n')
    if (lines[0] === String(server.pid) && lines[7]?.trim() === 'ready') return 'ready'
    if (performance.now() - server.lastLineAt > timeoutMs) return 'silent'
    await delay(POLL_MS)
  }
  await delay(POLL_MS) // what it wrote last may still be on its way
  return 'ended'
}

function startFailed(dir: string, { exit, logTail }: Launched, outcome: string): EmbeddedPostgresError {
  const reason =
    outcome === 'silent'
      ? 'it was silent for too long and was stopped; if the machine is slow, raise startTimeoutMs'
      : `it ended with ${exit?.signal ?? `code ${exit?.code}`}`
  const log = logTail.length > 0 ? ` Last lines of its log:\n  ${logTail.join('\n  ')}` : ''
  // 127 is the loader's way to say that a library is missing; no code and no signal that it could not be run at all.
  if (exit?.code === 127 || (exit?.code === null && exit.signal === null)) {
    return new EmbeddedPostgresError('binary_missing', `Postgres cannot be run. ${REINSTALL}${log}`)
  }
  return new EmbeddedPostgresError('start_failed', `The Postgres of ${dir} did not start: ${reason}.${log}`)
}
