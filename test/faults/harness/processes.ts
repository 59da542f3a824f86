/** Real processes that are killed, stopped and started again: Postgres, and programs of ours under a supervisor. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream, type WriteStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../../../src/runtime/embedded-postgres.ts'

const ROOT = fileURLToPath(new URL('../../..', import.meta.url))
const STOP_MS = 15_000
/** Between the end of a process that nobody killed and its next start. */
const RESTART_MS = 300

/** Node's arguments for a program of the tests. */
export const script = (path: string): readonly string[] => ['--import=tsx', path]

/**
 * A program of ours as a child process; it says by a line of JSON with `"ready":true` that it is ready.
 *
 * @param program Node's arguments before its own, see `script` and `ROLLCALL`
 */
export function spawnProgram(
  program: readonly string[],
  given: readonly string[],
  log?: WriteStream,
): ChildProcess {
  const child = spawn(process.execPath, [...program, ...given], {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', log ? 'pipe' : 'ignore'],
  })
  if (log) child.stderr?.pipe(log, { end: false })
  guard(child)
  return child
}

/** Ends the child when this process is gone, in whatever way: one that is stopped (SIGSTOP) would stay for ever. */
function guard(child: ChildProcess): void {
  const watch = spawn('/bin/sh', ['-c', 'read -r line; kill -KILL "$1"', 'guard', String(child.pid)], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  watch.on('error', () => {}) // it can do without
  child.once('exit', () => watch.kill('SIGKILL'))
}

/** What a process says when it is ready; null when it ends before that. */
export async function readyLine(child: ChildProcess): Promise<Record<string, unknown> | null> {
  for await (const line of createInterface({ input: child.stdout! }))
    if (line.includes('"ready":true')) return JSON.parse(line) as Record<string, unknown>
  return null
}

export async function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
}

export interface SupervisedOptions {
  name: string
  program: readonly string[]
  args: () => string[]
  logPath: string
  onReady?: (said: Record<string, unknown>) => void
  /** The process is no more, or not to be reached yet. */
  onGone?: () => void
  /** In which it is to end when it is asked to; 15 s otherwise. */
  stopMs?: number
  /** An end by itself that is part of what it was told to do. */
  isMeant?: (signal: string | null) => boolean
}

/** One process after another under one name, as a supervisor of an operating system keeps it. */
export class Supervised {
  readonly name: string
  readonly #options: SupervisedOptions
  readonly #log: WriteStream
  #child: ChildProcess | null = null
  #ready = false
  #killed = false
  #stopped = false
  #downUntil = 0
  #running: Promise<void> | null = null
  /** Ends that nobody asked for, of a process that was ready. */
  readonly crashes: string[] = []
  starts = 0

  constructor(options: SupervisedOptions) {
    this.name = options.name
    this.#options = options
    this.#log = createWriteStream(options.logPath, { flags: 'a' })
  }

  get ready(): boolean {
    return this.#ready
  }

  start(): void {
    this.#running ??= this.#run()
  }

  /** SIGKILL; the next one starts after the pause. */
  kill(pauseMs: number): void {
    this.#killed = true
    this.#downUntil = performance.now() + pauseMs
    this.#child?.kill('SIGKILL')
  }

  /** SIGSTOP and SIGCONT; false where there is no process just now. */
  freeze(): boolean {
    return this.#child?.kill('SIGSTOP') ?? false
  }

  thaw(): void {
    this.#child?.kill('SIGCONT')
  }

  /** SIGTERM. @returns whether it ended in time; by force otherwise */
  async stop(): Promise<boolean> {
    this.#stopped = true
    this.#child?.kill('SIGTERM')
    const inTime = await Promise.race([
      (this.#running ?? Promise.resolve()).then(() => true),
      sleep(this.#options.stopMs ?? STOP_MS, false, { ref: false }),
    ])
    this.#child?.kill('SIGKILL')
    await this.#running
    this.#log.end()
    return inTime
  }

  async #run(): Promise<void> {
    const { program, args, onReady, onGone } = this.#options
    while (!this.#stopped) {
      this.#killed = false
      this.starts++
      const child = spawnProgram(program, args(), this.#log)
      this.#child = child
      const said = readyLine(child).then(line => {
        if (!line || child.exitCode !== null || child.signalCode !== null) return
        this.#ready = true
        onReady?.(line)
      })
      await ended(child)
      await said
      this.#child = null
      if (this.#ready) this.#judge(child)
      this.#ready = false
      onGone?.()
      for (;;) {
        const leftMs = Math.max(RESTART_MS, this.#downUntil - performance.now())
        await sleep(Math.min(leftMs, RESTART_MS))
        if (this.#stopped || leftMs <= RESTART_MS) break
      }
    }
  }

  #judge({ exitCode, signalCode }: ChildProcess): void {
    if (this.#killed || this.#stopped || this.#options.isMeant?.(signalCode)) return
    this.crashes.push(`${this.name} ended by itself with ${signalCode ?? `code ${exitCode}`}`)
  }
}

/** The database server; its address changes with every start. */
export class Database {
  readonly #dataDir: string
  readonly #log: WriteStream
  readonly #onStarted: (port: number) => void
  #running: EmbeddedPostgres | null = null

  constructor(dataDir: string, logPath: string, onStarted: (port: number) => void) {
    this.#dataDir = dataDir
    this.#log = createWriteStream(logPath, { flags: 'a' })
    this.#onStarted = onStarted
  }

  get url(): string {
    if (!this.#running) throw new Error('bug: the database is not running')
    return this.#running.url
  }

  async start(): Promise<void> {
    this.#running = await startEmbeddedPostgres({
      dataDir: this.#dataDir,
      onLog: line => this.#log.write(`${line}\n`),
    })
    this.#onStarted(this.#running.port)
  }

  /** Ends the server: fast, at once by its own means, or by SIGKILL of the postmaster alone. */
  async end(how: 'fast' | 'SIGQUIT' | 'SIGKILL'): Promise<void> {
    const running = this.#running
    if (!running) return
    this.#running = null
    if (how === 'fast') return running.stop()
    process.kill(running.pid, how)
    await running.exited
  }

  async close(): Promise<void> {
    await this.end('fast')
    this.#log.end()
  }
}
