/**
 * The account Postgres runs under. Postgres refuses to run as root, so a Rollcall that runs as root hands it to an
 * unprivileged one; any other Rollcall runs it as itself (no account: `undefined`).
 */

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { stat } from 'node:fs/promises'
import { EmbeddedPostgresError } from './embedded-postgres-error.ts'

/** A user and group that a child process is given; spread into the options of `spawn`. */
export interface Account {
  uid: number
  gid: number
}

/** How a helper program is run; `input` goes to its stdin. */
export interface RunOptions {
  account?: Account | undefined
  cwd?: string
  /** {@link CLEAN_ENVIRONMENT} by default. */
  env?: NodeJS.ProcessEnv
  input?: string
  timeoutMs?: number
}

/**
 * The whole environment of our child processes. Passing ours on would let LANG, LC_* or PGDATA of whoever types the
 * command decide how a cluster is made.
 */
export const CLEAN_ENVIRONMENT = {
  PATH: `${process.env.PATH ?? ''}:/usr/sbin:/usr/bin:/sbin:/bin`,
  LC_ALL: 'C',
  TZ: 'UTC',
}

/**
 * The account for the cluster in `clusterDir`: whoever owns it already, so that a project used by a person and then
 * once by root keeps working for the person; for a new one `postgres` (made if missing), else `nobody`.
 */
export async function serverAccount(
  clusterDir: string,
  log: (line: string) => void,
): Promise<Account | undefined> {
  if (process.getuid?.() !== 0) return undefined
  const candidates = [
    () => ownerOf(clusterDir),
    () => lookUp('postgres'),
    () => createAccount(log),
    () => lookUp('nobody'),
  ]
  for (const candidate of candidates) {
    const account = await candidate()
    if (account && (await isUsable(account))) return account
  }
  throw new EmbeddedPostgresError(
    'no_account',
    'Postgres refuses to run as root, and there is no other account it could use: "postgres" and "nobody" are missing ' +
      'or not to be had. Create one (useradd --system postgres), or run Rollcall as an ordinary user.',
  )
}

/** Whether the account (or, without one, this process) can read all these files and folders by their paths. */
export async function canRead(account: Account | undefined, paths: string[]): Promise<boolean> {
  // Asking the kernel as that user is the only check that knows of access lists and mounts.
  const script = 'for path; do test -r "$path" || exit 1; done'
  const { code } = await run('/bin/sh', ['-c', script, 'sh', ...paths], { account, cwd: '/' })
  return code === 0
}

/** Run a helper program to its end, or to ours, bounded in time; its code is a value, not to be able to run it throws. */
export async function run(command: string, args: string[], options: RunOptions = {}) {
  const { account, cwd, env = CLEAN_ENVIRONMENT, input = '', timeoutMs = 10_000 } = options
  const child = spawn(command, args, {
    ...account,
    ...(cwd === undefined ? {} : { cwd }),
    env,
    // A session of its own: no Ctrl-C from the terminal, and one signal ends the program with its children.
    detached: true,
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', text => {
      output += text
    })
  }
  child.stdin.on('error', () => {}) // it may end without having read its input
  child.stdin.end(input)
  const kill = (): void => {
    try {
      if (child.pid !== undefined) process.kill(-child.pid, 'SIGKILL')
    } catch {} // it ended at this very moment
  }
  const timer = setTimeout(kill, timeoutMs)
  process.once('exit', kill)
  try {
    const [code] = await once(child, 'close')
    return { code: code as number | null, output }
  } finally {
    clearTimeout(timer)
    process.off('exit', kill)
  }
}

async function ownerOf(dir: string): Promise<Account | undefined> {
  const owner = await stat(dir).catch(() => undefined)
  return owner && owner.uid !== 0 ? { uid: owner.uid, gid: owner.gid } : undefined
}

async function lookUp(name: string): Promise<Account | undefined> {
  const [user, group] = await Promise.all([run('id', ['-u', name]), run('id', ['-g', name])])
  if (user.code !== 0 || group.code !== 0) return undefined
  return { uid: Number(user.output), gid: Number(group.output) }
}

async function createAccount(log: (line: string) => void): Promise<Account | undefined> {
  const flags = ['--system', '--user-group', '--home-dir', '/nonexistent', '--shell', '/usr/sbin/nologin']
  const created = await run('useradd', [...flags, 'postgres']).catch(() => undefined)
  if (created?.code !== 0) return undefined
  log('created the system account "postgres", since Postgres refuses to run as root')
  return lookUp('postgres')
}

/** In a container that maps root alone, other accounts exist by name only. */
async function isUsable(account: Account): Promise<boolean> {
  return run('/bin/sh', ['-c', ':'], { account, cwd: '/' }).then(
    ({ code }) => code === 0,
    () => false,
  )
}
