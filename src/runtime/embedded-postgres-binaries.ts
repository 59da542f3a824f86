/** Where the programs `initdb` and `postgres` of the npm package are, fit to be run. */

import {
  access,
  chmod,
  constants,
  copyFile,
  lstat,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  symlink,
} from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { type Account, canRead } from './embedded-postgres-account.ts'
import { EmbeddedPostgresError, isSystemError } from './embedded-postgres-error.ts'

/** A Postgres installation: a folder that holds bin, lib and share, and may be moved as a whole. */
export interface Binaries {
  root: string
  initdb: string
  postgres: string
  /** The version of the npm package, which begins with that of Postgres: `18.4.0-beta.17`. */
  version: string
}

/** What to tell a person whose installation cannot be run. */
export const REINSTALL =
  'Run "npm rebuild" (or "npm install --include=optional") in the folder where Rollcall is installed, or give ' +
  'Rollcall the url of a Postgres server of your own.'

/** Find the installation for this platform, complete it if need be, and make sure the account can read it. */
export async function findBinaries(account: Account | undefined): Promise<Binaries> {
  const binaries = await locate()
  await hydrate(binaries)
  if (account === undefined || (await isReadable(binaries, account))) return binaries
  return copyForAccount(binaries, account)
}

async function locate(): Promise<Binaries> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`
  try {
    // The platform's package is a dependency of embedded-postgres, not ours, so it is looked up from there.
    // embedded-postgres itself is never imported: its import alone installs exit and signal handlers.
    const outer = createRequire(import.meta.url).resolve('embedded-postgres')
    const entry = createRequire(outer).resolve(name)
    const { initdb, postgres }: { initdb: string; postgres: string } = await import(pathToFileURL(entry).href)
    const manifest = JSON.parse(await readFile(join(dirname(entry), '..', 'package.json'), 'utf8'))
    return { root: dirname(dirname(postgres)), initdb, postgres, version: manifest.version }
  } catch (cause) {
    throw new EmbeddedPostgresError(
      'binary_missing',
      `The Postgres programs for this platform (npm package ${name}) are not installed. ${REINSTALL}`,
      { cause },
    )
  }
}

/**
 * The package leaves its symlinks and modes to an install script, which `npm install --ignore-scripts` and some
 * package managers never run; then the programs do not find their libraries. It is little work, so it is done here.
 */
async function hydrate({ root, initdb, postgres }: Binaries): Promise<void> {
  try {
    const list = await readFile(join(root, 'pg-symlinks.json'), 'utf8').catch(() => '[]')
    for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
      const link = join(root, '..', target)
      if (await exists(link)) continue
      await symlink(basename(source), link).catch(error => {
        if (!isSystemError(error, 'EEXIST')) throw error // another process was faster
      })
    }
    for (const program of [initdb, postgres]) {
      await access(program, constants.X_OK).catch(() => chmod(program, 0o755))
    }
  } catch (cause) {
    throw new EmbeddedPostgresError(
      'binary_missing',
      `The Postgres programs in ${root} are not complete and could not be completed: ${(cause as Error).message}. ${REINSTALL}`,
      { cause },
    )
  }
}

/** A program and the two folders stand for all: an installation is readable as a whole, or not at all. */
function isReadable({ root, postgres }: Binaries, account: Account): Promise<boolean> {
  return canRead(account, [postgres, join(root, 'lib'), join(root, 'share')])
}

/**
 * Root's own folders (a clone in /root, a umask of 077) are closed to the account that Postgres must run under. Rather
 * than give that account the right to read every file of the machine, it gets a copy of these public files, made once
 * per version (60 MB, 0.1 s). /var/cache comes before the temporary folder, which is cleaned while the server runs.
 */
async function copyForAccount(binaries: Binaries, account: Account): Promise<Binaries> {
  const caches = [process.env.XDG_CACHE_HOME, '/var/cache', tmpdir()].filter(cache => cache !== undefined)
  for (const cache of caches) {
    const folder = join(cache, 'rollcall')
    const root = join(folder, `postgres-${binaries.version}-${process.platform}-${process.arch}`)
    const copy = { ...binaries, root, initdb: join(root, 'bin/initdb'), postgres: join(root, 'bin/postgres') }
    try {
      await mkdir(folder, { recursive: true, mode: 0o755 })
      if (!(await isOurs(folder))) continue
      await chmod(folder, 0o755)
      if (!(await exists(root))) await copyInto(root, binaries.root)
      if ((await isOurs(root)) && (await isReadable(copy, account))) return copy
    } catch (error) {
      if (!isSystemError(error, 'EACCES', 'EPERM', 'EROFS', 'ENOSPC', 'ENOTDIR', 'EEXIST')) throw error
    }
  }
  throw new EmbeddedPostgresError(
    'data_dir_unusable',
    `Postgres refuses to run as root, the user it runs under (id ${account.uid}) cannot read its programs in ` +
      `${binaries.root}, and they could not be copied into any of ${caches.join(', ')}. Install Rollcall in a folder ` +
      'that every user can read, or run it as an ordinary user.',
  )
}

/** The temporary folder is open to all: programs in a folder that somebody else made or may change are not run. */
async function isOurs(folder: string): Promise<boolean> {
  const found = await lstat(folder)
  return found.isDirectory() && found.uid === process.getuid?.() && (found.mode & 0o022) === 0
}

async function copyInto(root: string, from: string): Promise<void> {
  const unfinished = await mkdtemp(`${root}.`)
  try {
    await copyTree(from, unfinished)
    await rename(unfinished, root)
  } catch (error) {
    await rm(unfinished, { recursive: true, force: true })
    if (!isSystemError(error, 'EEXIST', 'ENOTEMPTY')) throw error // another process was faster
  }
}

/** `fs.cp` would keep the modes, and a umask of 077 is one of the two reasons for the copy. */
async function copyTree(from: string, to: string): Promise<void> {
  await mkdir(to, { recursive: true })
  await chmod(to, 0o755)
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)]
    if (entry.isDirectory()) await copyTree(source, target)
    else if (entry.isSymbolicLink()) await symlink(await readlink(source), target)
    else if (!entry.name.endsWith('.a')) {
      await copyFile(source, target, constants.COPYFILE_FICLONE)
      await chmod(target, 0o755)
    }
  }
}

async function exists(path: string): Promise<boolean> {
  return (await lstat(path).catch(() => undefined)) !== undefined
}
