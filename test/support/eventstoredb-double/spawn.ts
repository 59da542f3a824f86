/** A double in a process of its own, for what is measured or killed: its work does not weigh on the caller's. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { z } from 'zod'
import { type DoubleCommand, type DoubleState, doubleAnswer } from './commands.ts'

const MAIN = fileURLToPath(new URL('main.ts', import.meta.url))
const START_MS = 20_000
const ANSWER_MS = 20_000
const END_MS = 5_000
const ready = z.strictObject({ ready: z.literal(true), port: z.int() })

interface Waiting {
  resolve: (line: string) => void
  reject: (error: Error) => void
}

export class SpawnedEventStoreDBDouble {
  readonly port: number
  readonly pid: number
  readonly #child: ChildProcess
  readonly #waiting: Waiting[]

  private constructor(child: ChildProcess, waiting: Waiting[], port: number) {
    this.#child = child
    this.#waiting = waiting
    this.port = port
    this.pid = child.pid!
  }

  /** @throws when the process ends or is not ready within 20 s */
  static async start({ port = 0 }: { port?: number } = {}): Promise<SpawnedEventStoreDBDouble> {
    const args = ['--import=tsx', MAIN, '--port', String(port)]
    const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] })
    const waiting: Waiting[] = []
    const fail = (message: string): void => {
      for (const one of waiting.splice(0)) one.reject(new Error(message))
    }
    child.once('error', error => fail(`the double could not be started: ${error.message}`))
    child.once('exit', (code, signal) => fail(`the double has ended: ${signal ?? code}`))
    child.stdin.on('error', () => {})
    createInterface({ input: child.stdout }).on('line', line => waiting.shift()?.resolve(line))
    try {
      const first = await answered(waiting, START_MS)
      return new SpawnedEventStoreDBDouble(child, waiting, ready.parse(JSON.parse(first)).port)
    } catch (error) {
      child.kill('SIGKILL')
      throw error
    }
  }

  get address(): string {
    return `esdb://127.0.0.1:${this.port}?tls=false`
  }

  /**
   * Carries out a fault and says how the double stands after it.
   *
   * @throws when it refuses the command, has ended or does not answer within 20 s
   */
  async order(command: DoubleCommand): Promise<DoubleState> {
    if (!this.running) throw new Error('the double has ended')
    const line = answered(this.#waiting, ANSWER_MS)
    this.#child.stdin!.write(`${JSON.stringify(command)}\n`)
    const answer = doubleAnswer.parse(JSON.parse(await line))
    if (!answer.ok) throw new Error(answer.error)
    return answer
  }

  get running(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null
  }

  /** As a crash: nothing is ended in order, and the log, which is in its memory, is gone. */
  async kill(): Promise<void> {
    await this.#end('SIGKILL')
  }

  /** Safe to call twice. */
  async stop(): Promise<void> {
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), END_MS)
    await this.#end('SIGTERM')
    clearTimeout(timer)
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    if (!this.running) return
    const ended = once(this.#child, 'exit')
    this.#child.kill(signal)
    await ended
  }
}

function answered(waiting: Waiting[], withinMs: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(
      () => reject(new Error(`the double did not answer within ${withinMs} ms`)),
      withinMs,
    )
    waiting.push({
      resolve: line => {
        clearTimeout(timer)
        resolve(line)
      },
      reject: error => {
        clearTimeout(timer)
        reject(error)
      },
    })
  })
}

/** Starts a double as a process; it ends with the test. */
export async function spawnEventStoreDBDouble(
  t: Test | null,
  options: { port?: number } = {},
): Promise<SpawnedEventStoreDBDouble> {
  const double = await SpawnedEventStoreDBDouble.start(options)
  t?.teardown(() => double.stop())
  return double
}
