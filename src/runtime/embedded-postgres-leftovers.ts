/**
 * A server that outlived its Rollcall process (kill -9 of both it and the guard, an out-of-memory kill) is stopped
 * before a new one starts on the same folder. Only to be called by the owner of the data folder.
 */

import { readdir, readFile, readlink, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { run } from './embedded-postgres-account.ts'
import { EmbeddedPostgresError, isSystemError } from './embedded-postgres-error.ts'

/** Stop whatever server still runs on this cluster, bounded in time, and clear a pid file that misleads the next. */
export async function stopLeftovers(clusterDir: string, log: (line: string) => void): Promise<void> {
  const postmaster = await postmasterPid(clusterDir)
  let left = await serversOf(clusterDir, postmaster)
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
  if (postmaster !== undefined && isAlive(postmaster))
    await rm(join(clusterDir, 'postmaster.pid'), { force: true })
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
    still = await serversOf(clusterDir, await postmasterPid(clusterDir))
  }
  return still
}

async function postmasterPid(clusterDir: string): Promise<number | undefined> {
  const file = await readFile(join(clusterDir, 'postmaster.pid'), 'utf8').catch(() => '')
  const pid = Number.parseInt(file, 10)
  return pid > 0 ? pid : undefined
}

/**
 * The Postgres processes that run on this cluster. On Linux they are known by name and working folder, which also finds
 * the children of a postmaster that is dead. Elsewhere the command line of the pid file's process has to do.
 */
async function serversOf(clusterDir: string, postmaster: number | undefined): Promise<number[]> {
  if (process.platform !== 'linux') {
    if (postmaster === undefined) return []
    const { output } = await run('ps', ['-o', 'command=', '-p', String(postmaster)])
    return output.includes('postgres') && output.includes(clusterDir) ? [postmaster] : []
  }
  const pids = (await readdir('/proc')).map(Number).filter(pid => pid > 0)
  const found = await Promise.all(
    pids.map(async pid => {
      const folder = await readlink(`/proc/${pid}/cwd`).catch(() => undefined)
      if (folder !== clusterDir) return false
      return (await readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '')).trim() === 'postgres'
    }),
  )
  return pids.filter((_, index) => found[index])
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return isSystemError(error, 'EPERM')
  }
}
