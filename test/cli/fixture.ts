/** The command line as its users have it: a process of its own, on a real service with a real database. */
import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { ROLLCALL } from '../support/built-program.ts'

const SERVER = fileURLToPath(new URL('./command-server.ts', import.meta.url))
const TSX = import.meta.resolve('tsx')

export interface Ended {
  code: number | null
  stdout: string
  stderr: string
}

export interface Running {
  pid: number
  child: ChildProcess
  stdout: () => string
  stderr: () => string
  ended: Promise<Ended>
  /** Resolves when the output matches; rejects when the process ends before. */
  until(pattern: RegExp, stream?: 'stdout' | 'stderr'): Promise<RegExpMatchArray>
}

export interface SpawnOptions {
  input?: string
  env?: Record<string, string | undefined>
  cwd?: string
}

const cleanEnvironment = () =>
  Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^(ROLLCALL_|npm_|TAP|NO_COLOR|FORCE_COLOR)/.test(name)),
  )

/** Starts `rollcall …`. The environment has no settings but those that are given. */
export function startCommand(args: readonly string[], { input, env, cwd }: SpawnOptions = {}): Running {
  const child = spawn(process.execPath, [...ROLLCALL, ...args], {
    env: { ...cleanEnvironment(), ...env },
    ...(cwd !== undefined && { cwd }),
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', part => {
    stdout += part
  })
  child.stderr.on('data', part => {
    stderr += part
  })
  child.stdin.on('error', () => {})
  child.stdin.end(input)
  const ended = once(child, 'close').then(([code]) => ({ code, stdout, stderr }))
  const until: Running['until'] = (pattern, stream = 'stdout') =>
    new Promise((resolve, reject) => {
      const look = () => {
        const found = (stream === 'stdout' ? stdout : stderr).match(pattern)
        if (found) resolve(found)
      }
      look()
      child[stream].on('data', look)
      void ended.then(({ code }) =>
        reject(new Error(`ended with ${code} before ${pattern}: ${stdout}${stderr}`)),
      )
    })
  return { pid: child.pid ?? -1, child, stdout: () => stdout, stderr: () => stderr, ended, until }
}

/** Runs command lines in a process that is started once; only for commands that end by themselves. */
export function startCommands(t: Test, env: Record<string, string>): (...args: string[]) => Promise<Ended> {
  const child = fork(SERVER, { env: cleanEnvironment(), execArgv: [`--import=${TSX}`] })
  t.teardown(() => {
    child.disconnect()
    child.kill('SIGKILL')
  })
  const waiting = new Map<number, (ended: Ended) => void>()
  child.on('message', ({ id, ...ended }: Ended & { id: number }) => waiting.get(id)?.(ended))
  let asked = 0
  return (...args) =>
    new Promise(resolve => {
      waiting.set(++asked, resolve)
      child.send({ id: asked, args, env })
    })
}

/** Runs `rollcall …` to its end. */
export const rollcall = (args: readonly string[], options?: SpawnOptions): Promise<Ended> =>
  startCommand(args, options).ended

export interface Dev extends Running {
  url: string
  dataDir: string
}

/** Starts `rollcall dev` and waits until it is ready; killed when the test ends, if it still runs. */
export async function startDev(
  t: Test,
  { dataDir, port = 0, args = [] }: { dataDir?: string; port?: number; args?: string[] } = {},
): Promise<Dev> {
  const folder = dataDir ?? (await temporaryFolder(t))
  const running = startCommand(['dev', '--port', String(port), '--data-dir', folder, '--json', ...args])
  t.teardown(async () => {
    running.child.kill('SIGTERM')
    await running.ended
  })
  const [line] = await running.until(/^\{.*"ready":true.*\}$/m)
  const { url } = JSON.parse(line!) as { url: string }
  return { ...running, url, dataDir: folder }
}

export async function temporaryFolder(t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'rollcall-test-'))
  // As root the database runs as another user, who has to pass.
  await chmod(folder, 0o755)
  t.teardown(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }))
  return folder
}

export async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const address = probe.address()
  probe.close()
  if (address === null || typeof address === 'string') throw new TypeError('a TCP server has a port')
  return address.port
}

export function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

/** Of the database that runs on a data folder. */
export const postgresPid = async (dataDir: string): Promise<number> =>
  Number.parseInt(await readFile(join(dataDir, 'postgres', 'postmaster.pid'), 'utf8'), 10)

/** Waits for a condition, within a bound. */
export async function eventually(
  what: string,
  holds: () => boolean | Promise<boolean>,
  ms = 60_000,
): Promise<void> {
  const deadline = performance.now() + ms
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`not within ${ms} ms: ${what}`)
    await new Promise(resolve => setTimeout(resolve, 25))
  }
}
