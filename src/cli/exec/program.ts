/**
 * One run of a program: input on stdin, output and the end of its stderr kept within bounds, and an end that is
 * certain. It runs in a process group of its own, so that a Ctrl-C meant for the worker does not reach it and a
 * kill reaches all of it.
 *
 *   running ──exits──> ended
 *      └──terminate──> SIGTERM ──grace over──> SIGKILL ──> ended
 */
import { type ChildProcess, spawn } from 'node:child_process'

/** What a program may write as its result: the service takes no more. */
export const OUTPUT_MAX_BYTES = 256 * 1024
/** The end of stderr says why a program failed. */
const STDERR_TAIL_BYTES = 8 * 1024
/** A child of the program that holds its pipes open is given this long after its end. */
const PIPES_MS = 500

export interface ProgramRun {
  command: string
  input: string
  env: Record<string, string>
  /** Between SIGTERM and SIGKILL. */
  graceMs: number
}

export interface ProgramEnd {
  /** Null where a signal ended it. */
  code: number | null
  signal: NodeJS.Signals | null
  stdout: Buffer
  /** The last part of stderr. */
  stderr: string
  /** It was asked to end before it did; what it says then, exit code 0 included, is no result. */
  terminated: boolean
  /** It wrote more than `OUTPUT_MAX_BYTES` and was killed for it. */
  tooLarge: boolean
}

/** A program that runs. */
export class Program {
  /** Resolves when it has ended. Rejects where it could not be started at all. */
  readonly ended: Promise<ProgramEnd>
  readonly #child: ChildProcess
  readonly #graceMs: number
  readonly #stdout: Buffer[] = []
  #stdoutBytes = 0
  #stderr: Buffer = Buffer.alloc(0)
  #tooLarge = false
  #killTimer: NodeJS.Timeout | null = null

  constructor({ command, input, env, graceMs }: ProgramRun) {
    this.#graceMs = graceMs
    this.#child = spawn('/bin/sh', ['-c', command], {
      detached: true,
      env: { ...process.env, ...env },
      stdio: ['pipe', 'pipe', 'pipe'],
    })
    this.ended = this.#watch()
    const { stdin, stdout, stderr } = this.#child
    // A program need not read its input.
    stdin?.on('error', () => {})
    stdin?.end(input)
    stdout?.on('data', (part: Buffer) => this.#keepOutput(part))
    stderr?.on('data', (part: Buffer) => {
      this.#stderr = tail(Buffer.concat([this.#stderr, part]))
    })
  }

  /** Asks it to end, and sees to it after the grace. */
  terminate(graceMs = this.#graceMs): void {
    if (this.#killTimer) return
    this.#signal('SIGTERM')
    this.#killTimer = setTimeout(() => this.kill(), graceMs)
  }

  kill(): void {
    this.#signal('SIGKILL')
  }

  #keepOutput(part: Buffer): void {
    if (this.#tooLarge) return
    this.#stdoutBytes += part.length
    if (this.#stdoutBytes <= OUTPUT_MAX_BYTES) {
      this.#stdout.push(part)
      return
    }
    this.#tooLarge = true
    this.#stdout.length = 0
    this.kill()
  }

  #watch(): Promise<ProgramEnd> {
    const child = this.#child
    return new Promise((resolve, reject) => {
      child.once('error', reject)
      child.once('exit', (code, signal) => {
        const terminated = this.#killTimer !== null
        if (this.#killTimer) clearTimeout(this.#killTimer)
        const end = () => {
          clearTimeout(timer)
          // What it left running belongs to no task any more.
          this.kill()
          for (const stream of [child.stdout, child.stderr]) stream?.destroy()
          const stdout = Buffer.concat(this.#stdout)
          const stderr = this.#stderr.toString('utf8')
          resolve({ code, signal, stdout, stderr, terminated, tooLarge: this.#tooLarge })
        }
        const timer = setTimeout(end, PIPES_MS)
        child.once('close', end)
      })
    })
  }

  /** To the whole group, which may be gone. */
  #signal(signal: NodeJS.Signals): void {
    if (this.#child.pid === undefined) return
    try {
      process.kill(-this.#child.pid, signal)
    } catch {
      // Nothing of it is left.
    }
  }
}

/** The last part, from the beginning of a line where that can be. */
function tail(bytes: Buffer): Buffer {
  if (bytes.length <= STDERR_TAIL_BYTES) return bytes
  const end = bytes.subarray(bytes.length - STDERR_TAIL_BYTES)
  const line = end.indexOf(0x0a)
  return line === -1 || line === end.length - 1 ? end : end.subarray(line + 1)
}
