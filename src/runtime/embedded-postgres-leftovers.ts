/**
 * A server that outlived its Rollcall process (kill -9 of both it and the guard, an out-of-memory kill) is stopped
 * before a new one starts on the same folder. Only to be called by the owner of the data folder.
 */

import { readdir, readFile, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { run } from './embedded-postgres-account.ts'
import { EmbeddedPostgresError, isSystemError } from './embedded-postgres-error.ts'

/**
 * The name the server of this folder runs under, shown in the title of each of its processes. Device and inode tell the
 * folder from any other that has or had the same path, in another container too.
 */
export async function clusterName(clusterDir: string): Promise<string> {
  const { dev, ino } = await stat(clusterDir, { bigint: true })
  return `rollcall-${dev}-${ino}`
}

/** Stop whatever server still runs on this cluster, bounded in time, and clear a pid file that misleads the next. */
export async function stopLeftovers(clusterDir: string, log: (line: string) => void): Promise<void> {
  if (!(await stat(clusterDir).catch(() => undefined))) return
  const postmaster = await postmasterPid(clusterDir)
  let left = await serversOf(clusterDir)
  if (left.length > 0) log(`stopping a Postgres that outlived its owner (process ${left.join(', ')})`)

  // The fast shutdown is asked of the postmaster alone: to its children the same signal means other things.
  const asked = postmaster !== undefined && left.includes(postmaster) ? [postmaster] : []
  left = await signalAndWait(clusterDir, asked, 'SIGINT', left, 3_000)
  left = await signalAndWait(clusterDir, left, 'SIGQUIT', left, 1_500)
  left = await signalAndWait(clusterDir, left, 'SIGKILL', left, 1_500)
  if (left.length > 0) {
    throw new EmbeddedPostgresError(
      'start_failed',
      `A Postgres from before still runs on ${clusterDir} and cannot be stopped. End process ${left.join(', ')}.`,
    )
  }

  // The pid in a left-over file may belong to somebody else by now. Postgres would take that for a running server and
  // refuse; where no such process runs it clears up by itself, after checks of its own.
  if (postmaster !== undefined && isAlive(postmaster)) {
    await rm(join(clusterDir, 'postmaster.pid'), { force: true })
  }
}

async function signalAndWait(
  clusterDir: string,
  pids: number[],
  signal: NodeJS.Signals,
  left: number[],
  timeoutMs: number,
): Promise<number[]> {
  for (const pid of pids) {
    try {
      process.kill(pid, signal)
    } catch {} // gone already, or not ours to end: the wait will tell
  }
  const deadline = performance.now() + timeoutMs
  let still = left
  while (still.length > 0 && performance.now() < deadline) {
    await delay(20)
    still = await serversOf(clusterDir)
  }
  return still
}

async function postmasterPid(clusterDir: string): Promise<number | undefined> {
  const file = await readFile(join(clusterDir, 'postmaster.pid'), 'utf8').catch(() => '')
  const pid = Number.parseInt(file, 10)
  return pid > 0 ? pid : undefined
}

/**
 * The Postgres processes that serve this folder, the children of a dead postmaster among them. They are known by the
 * cluster's name in their command line or title. (Their working folder would say the same, but in a container even root
 * may not see that of another account's process.)
 */
async function serversOf(clusterDir: string): Promise<number[]> {
  const name = await clusterName(clusterDir)
  const isPostmaster = (line: string) =>
    line.includes('/postgres -D ') && line.includes(` cluster_name=${name} `)
  const isChild = (line: string) => line.startsWith(`postgres: ${name}: `)
  const all = await commandLines()
  return all.filter(({ line }) => isPostmaster(line) || isChild(line)).map(({ pid }) => pid)
}

async function commandLines(): Promise<{ pid: number; line: string }[]> {
  if (process.platform !== 'linux') {
    const { output } = await run('ps', ['-axww', '-o', 'pid=,command='])
    return output.split('\n').map(row => {
      const [, pid, line] = /^ *(\d+) (.*)$/.exec(row) ?? []
      return { pid: Number(pid), line: `${line} ` }
    })
  }
  const pids = (await readdir('/proc')).map(Number).filter(pid => pid > 0)
  return Promise.all(
    pids.map(async pid => {
      const line = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')
      return { pid, line: line.replaceAll('\0', ' ') }
    }),
  )
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return isSystemError(error, 'EPERM')
  }
}
