/** One live Rollcall process per data folder. */

import { readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { run } from './embedded-postgres-account.ts'
import { EmbeddedPostgresError, isSystemError } from './embedded-postgres-error.ts'

const PREFIX = 'postgres.owner.'

/**
 * Claim a data folder for this process, or throw `data_dir_in_use`. Returns the release, safe to call twice.
 *
 * Each process first announces itself by a file whose name is its pid and identity, then looks for others that live.
 * Two that start in the same instant may both give way, but never both go on, and a file of a dead process may be
 * removed by anyone at any time since its name never comes back. (One lock file that is replaced when stale has a race:
 * two find it stale, and the slower removes the lock of the faster.) Processes of two containers do not see each
 * other: a folder shared by containers is not protected.
 */
export async function claimDataDir(dataDir: string, prefix = PREFIX): Promise<() => Promise<void>> {
  const mine = `${prefix}${process.pid}.${await processIdentity(process.pid)}`
  // A file that cannot be removed is harmless once this process has ended.
  const release = () => rm(join(dataDir, mine), { force: true }).catch(() => {})
  try {
    await writeFile(join(dataDir, mine), '', { flag: 'wx' })
  } catch (error) {
    if (isSystemError(error, 'EEXIST')) throw inUse(dataDir, process.pid)
    throw error
  }
  for (const name of await readdir(dataDir)) {
    if (!name.startsWith(prefix) || name === mine) continue
    const [pid, identity] = name.slice(prefix.length).split('.')
    if ((await processIdentity(Number(pid))) === identity) {
      await release()
      throw inUse(dataDir, Number(pid))
    }
    await rm(join(dataDir, name), { force: true })
  }
  return release
}

/** Tells a process from any other that has had, or will have, the same pid; `undefined` when it does not run. */
export async function processIdentity(pid: number): Promise<string | undefined> {
  if (process.platform !== 'linux') {
    const { code, output } = await run('ps', ['-o', 'lstart=', '-p', String(pid)])
    return code === 0 ? Buffer.from(output.trim()).toString('base64url') : undefined
  }
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  if (stat === undefined) return undefined
  // The second field, the command's name in brackets, may itself hold blanks and brackets.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const [state, startedAt] = [fields[0], fields[19]]
  if (state === 'Z' || state === 'X') return undefined
  const boot = await readFile('/proc/sys/kernel/random/boot_id', 'utf8')
  return `${boot.trim()}-${startedAt}`
}

function inUse(dataDir: string, pid: number) {
  return new EmbeddedPostgresError(
    'data_dir_in_use',
    `The data folder ${dataDir} is in use by ${pid === process.pid ? 'this process' : `the running process ${pid}`}. ` +
      'Stop that first, or use another data folder.',
  )
}
