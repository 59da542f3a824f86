/** The demo's worker processes: started, killed, replaced, and none left at the end. */
import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

export interface FleetOptions {
  url: string
  /** Where tasks come from; if none, from the service. */
  kafkaBrokers: readonly string[]
  folder: string
  picturesUrl: string
  concurrency: number
  /** Receives what the workers write on stderr. */
  logPath: string
}

interface Member {
  name: string
  child: ChildProcess
  exited: Promise<void>
}

/** Beyond the worker's own drain. */
const STOP_MS = 4_000

export class Fleet {
  readonly #options: FleetOptions
  readonly #logFd: number
  readonly #members = new Map<string, Member>()
  #started = 0
  #stopped: Promise<void> | null = null

  constructor(options: FleetOptions) {
    this.#options = options
    this.#logFd = openSync(options.logPath, 'a', 0o600)
  }

  get names(): string[] {
    return [...this.#members.keys()]
  }

  /** @returns the new worker's name */
  start(): string {
    const { url, kafkaBrokers, folder, picturesUrl, concurrency } = this.#options
    const name = `painter-${++this.#started}`
    const args = [
      ...['demo-worker', '--url', url, '--concurrency', String(concurrency)],
      ...['--name', name, '--folder', folder, '--pictures-url', picturesUrl],
      ...(kafkaBrokers.length > 0 ? ['--kafka-brokers', kafkaBrokers.join(',')] : []),
    ]
    const child = spawn(process.execPath, [...process.execArgv, program(), ...args], {
      stdio: ['pipe', 'ignore', this.#logFd],
    })
    // Its end is noticed by `exited`; a start that failed has none.
    const exited = new Promise<void>(resolve => {
      child.once('exit', () => resolve())
      child.once('error', () => resolve())
    }).then(() => {
      this.#members.delete(name)
    })
    child.stdin?.on('error', () => {})
    this.#members.set(name, { name, child, exited })
    return name
  }

  /** SIGKILL: no farewell, no report. */
  async kill(name: string): Promise<void> {
    const member = this.#members.get(name)
    member?.child.kill('SIGKILL')
    await member?.exited
  }

  /** Lets them finish, for a while; then none is left. Safe to call twice. */
  stop(): Promise<void> {
    this.#stopped ??= this.#stop()
    return this.#stopped
  }

  async #stop(): Promise<void> {
    const members = [...this.#members.values()]
    for (const { child } of members) child.kill('SIGTERM')
    const all = Promise.all(members.map(({ exited }) => exited))
    const waited = new AbortController()
    await Promise.race([all, delay(STOP_MS, undefined, { signal: waited.signal }).catch(() => {})])
    waited.abort()
    await this.killAll()
    closeSync(this.#logFd)
  }

  async killAll(): Promise<void> {
    const members = [...this.#members.values()]
    for (const { child } of members) child.kill('SIGKILL')
    await Promise.all(members.map(({ exited }) => exited))
  }
}

/** This command's own entry, built or not. */
const program = (): string =>
  fileURLToPath(new URL(import.meta.url.endsWith('.ts') ? '../main.ts' : '../main.js', import.meta.url))
