/** The folder of the cluster: made once and completely, recognised as ours, and never destroyed. */

import { randomBytes } from 'node:crypto'
import { chmod, chown, mkdtemp, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type Account, canRead, run } from './embedded-postgres-account.ts'
import { type Binaries, REINSTALL } from './embedded-postgres-binaries.ts'
import { EmbeddedPostgresError, isSystemError } from './embedded-postgres-error.ts'

/** The one role of the cluster, its superuser. */
export const USER = 'rollcall'

/** Both files lie inside the cluster's folder, so that they come and go with it. */
const PASSWORD_FILE = 'rollcall.password'
const NOT_DURABLE_FILE = 'rollcall.not-durable'

const UNFINISHED = 'postgres.initializing-'
const INIT_TIMEOUT_MS = 120_000

/** A cluster that is ready to be served. */
export interface Cluster {
  dir: string
  account: Account | undefined
  password: string
}

/** Where the cluster is, who may touch it, and with which programs. */
export interface ClusterPlace {
  dataDir: string
  dir: string
  account: Account | undefined
  binaries: Binaries
}

/** Open the cluster, or make it where there is none; throws when what is there is not ours or cannot be used. */
export async function openCluster(place: ClusterPlace, durable: boolean): Promise<Cluster> {
  for (const name of await readdir(place.dataDir)) {
    // Left by a start that was killed. An initdb that still runs may be writing to it: hence the retries.
    if (name.startsWith(UNFINISHED)) {
      await rm(join(place.dataDir, name), { recursive: true, force: true, maxRetries: 5 })
    }
  }
  if (!(await isMade(place))) await makeCluster(place, durable)
  await takeOver(place)
  await keepDurability(place, durable)
  return { dir: place.dir, account: place.account, password: await passwordOf(place.dir) }
}

/** What opens the cluster, kept beside its data. */
export const passwordOf = async (dir: string): Promise<string> =>
  (await readFile(join(dir, PASSWORD_FILE), 'utf8')).trim()

/**
 * The name of the folder for a process of the account that starts with it as its working folder. Below a folder closed
 * to that account (a project in /root) the path leads nowhere for it, while its own working folder, entered before the
 * account was changed, is always open.
 */
export async function pathForServer(dir: string, account: Account | undefined): Promise<string> {
  if (account === undefined || (await canRead(account, [dir]))) return dir
  if (process.platform === 'linux') return '/proc/self/cwd'
  throw new EmbeddedPostgresError(
    'data_dir_unusable',
    `Postgres refuses to run as root, and the user it runs under (id ${account.uid}) cannot reach ${dir}. ` +
      'Use a data folder that every user can reach, or run Rollcall as an ordinary user.',
  )
}

async function isMade({ dir, binaries }: ClusterPlace): Promise<boolean> {
  const names = await readdir(dir).catch((error): string[] => {
    if (isSystemError(error, 'ENOENT')) return []
    if (isSystemError(error, 'ENOTDIR')) throw notOurs(dir, 'it is a file')
    if (isSystemError(error, 'EACCES'))
      throw notOurs(dir, 'it is closed to this user, so another one (root?) made it')
    throw error
  })
  if (names.length === 0) return false
  if (!names.includes('PG_VERSION')) throw notOurs(dir, 'it holds something that is not a Postgres cluster')
  if (!names.includes(PASSWORD_FILE)) throw notOurs(dir, 'its Postgres cluster was not made by Rollcall')

  const found = (await readFile(join(dir, 'PG_VERSION'), 'utf8')).trim()
  const carried = binaries.version.split('.')[0]
  if (found !== carried) {
    throw new EmbeddedPostgresError(
      'version_mismatch',
      `The data in ${dir} belongs to Postgres ${found}, and this Rollcall carries Postgres ${carried}. ` +
        'Run the Rollcall that made it, or move the folder away to begin with an empty one.',
    )
  }
  return true
}

/** initdb works on a sibling that is renamed when it is complete, so that a killed one leaves no half of a cluster. */
async function makeCluster(place: ClusterPlace, durable: boolean): Promise<void> {
  const { dataDir, dir, account } = place
  const unfinished = await mkdtemp(join(dataDir, UNFINISHED))
  if (account) await chown(unfinished, account.uid, account.gid)
  const password = randomBytes(24).toString('base64url')
  const flags = [
    // Independent of LANG: by default a machine without it would get an SQL_ASCII database.
    '--encoding=UTF8',
    '--locale=C',
    '--auth=scram-sha-256',
    `--username=${USER}`,
    // Without a terminal (our children never have one) the prompt reads stdin: no file for the account to read.
    '--pwprompt',
    ...(durable ? [] : ['--no-sync']),
  ]
  try {
    await initdb({ ...place, dir: unfinished }, flags, `${password}\n${password}\n`)
    const passwordFile = join(unfinished, PASSWORD_FILE)
    await writeFile(passwordFile, `${password}\n`, { mode: 0o600 })
    if (account) await chown(passwordFile, account.uid, account.gid)
    if (durable) for (const path of [passwordFile, unfinished]) await sync(path)
    await rename(unfinished, dir)
    if (durable) await sync(dataDir)
  } catch (error) {
    await rm(unfinished, { recursive: true, force: true })
    throw error
  }
}

async function initdb({ dir, account, binaries }: ClusterPlace, flags: string[], input = ''): Promise<void> {
  const args = ['-D', await pathForServer(dir, account), ...flags]
  const { code, output } = await run(binaries.initdb, args, {
    account,
    cwd: dir,
    input,
    timeoutMs: INIT_TIMEOUT_MS,
  }).catch(cause => {
    throw new EmbeddedPostgresError('binary_missing', `${binaries.initdb} cannot be run. ${REINSTALL}`, {
      cause,
    })
  })
  if (code === 0) return
  // 127 is the loader's way to say that a library is missing.
  if (code === 127) throw new EmbeddedPostgresError('binary_missing', `${output.trim()}\n${REINSTALL}`)
  const outcome = code === null ? 'did not end in time' : `ended with code ${code}`
  throw new EmbeddedPostgresError('init_failed', `initdb for ${dir} ${outcome}:\n${output.trim()}`)
}

/** A folder that was copied by hand or by root has other owners and modes than the ones Postgres insists on. */
async function takeOver({ dir, account }: ClusterPlace): Promise<void> {
  const { uid, mode } = await stat(dir)
  const us = account?.uid ?? process.getuid?.()
  if (account && uid !== us)
    await run('chown', ['-R', `${account.uid}:${account.gid}`, dir], { timeoutMs: 60_000 })
  else if (uid !== us) throw notOurs(dir, `it belongs to another user (id ${uid})`)
  if ((mode & 0o777) !== 0o700) await chmod(dir, 0o700)
}

/**
 * A cluster that ran with fsync off may have unwritten pages that Postgres believes to be on disk. It carries a mark,
 * and the next durable start writes everything first.
 */
async function keepDurability(place: ClusterPlace, durable: boolean): Promise<void> {
  const mark = join(place.dir, NOT_DURABLE_FILE)
  if (!durable) return writeFile(mark, '')
  if ((await stat(mark).catch(() => undefined)) === undefined) return
  await initdb(place, ['--sync-only'])
  await rm(mark)
}

/** Write a file, or the names in a folder, to the disk. */
async function sync(path: string): Promise<void> {
  const handle = await open(path)
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

function notOurs(dir: string, reason: string) {
  return new EmbeddedPostgresError(
    'data_dir_not_ours',
    `${dir} cannot be used for the embedded Postgres: ${reason}. It is left as it is; use another data folder.`,
  )
}
