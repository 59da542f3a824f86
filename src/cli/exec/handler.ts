/**
 * A program as the handler of tasks: the payload goes to its stdin, its stdout is the result, its exit code
 * decides.
 */
import { parseJsonBody } from '../../api/json-body.ts'
import { type HandlerContext, PermanentError, type Task } from '../../sdk/worker.ts'
import { commandFault } from './check-command.ts'
import { OUTPUT_MAX_BYTES, Program, type ProgramEnd } from './program.ts'

/** With this exit code a program says that no other attempt can help. */
export const PERMANENT_EXIT_CODE = 100
/** The shell's way to say that a program is missing or may not be executed. */
const NOT_RUNNABLE = [126, 127]
const MESSAGE_LINES = 5
const MESSAGE_LENGTH = 1_000

/** What became of a run, for whoever watches the worker. */
export interface Ran {
  taskId: string
  type: string
  attempt: number
  outcome: 'succeeded' | 'failed' | 'stopped'
  durationMs: number
  message: string | null
}

export interface ExecOptions {
  command: string
  graceMs: number
  onRan: (ran: Ran) => void
  /** The program is not there any more; the worker is to stop. */
  onGone: (why: string) => void
}

/** A failed run; the end of its stderr is the detail. */
class ProgramError extends Error {
  readonly code: string

  constructor(code: string, message: string, stderr: string) {
    super(message)
    this.code = code
    this.stack = stderr
  }
}

/** Runs the program for every task it is given, and ends what runs when the worker does. */
export class ExecHandler {
  readonly #options: ExecOptions
  readonly #running = new Set<Program>()

  constructor(options: ExecOptions) {
    this.#options = options
  }

  readonly handle = async (task: Task<unknown>, context: HandlerContext): Promise<unknown> => {
    const since = performance.now()
    const tell = (outcome: Ran['outcome'], message: string | null) => {
      const { taskId, type, attempt } = task
      this.#options.onRan({ taskId, type, attempt, outcome, durationMs: performance.now() - since, message })
    }
    const end = await this.#run(task, context.signal)
    if (end.terminated) {
      tell('stopped', context.signal.aborted ? (context.signal.reason as Error).message : 'The worker stops.')
      return untilAborted(context.signal)
    }
    try {
      const result = await this.#resultOf(end, context.signal)
      tell('succeeded', null)
      return result
    } catch (error) {
      tell(context.signal.aborted ? 'stopped' : 'failed', (error as Error).message)
      throw error
    }
  }

  /** Asks what runs to end; resolves when nothing runs any more. */
  async endAll(graceMs: number): Promise<void> {
    for (const program of this.#running) program.terminate(graceMs)
    await Promise.allSettled([...this.#running].map(program => program.ended))
  }

  killAll(): void {
    for (const program of this.#running) program.kill()
  }

  async #run(task: Task<unknown>, signal: AbortSignal): Promise<ProgramEnd> {
    const program = new Program({
      command: this.#options.command,
      input: `${JSON.stringify(task.payload)}\n`,
      env: environmentOf(task),
      graceMs: this.#options.graceMs,
    })
    this.#running.add(program)
    const stop = () => program.terminate()
    if (signal.aborted) stop()
    signal.addEventListener('abort', stop, { once: true })
    try {
      return await program.ended
    } finally {
      signal.removeEventListener('abort', stop)
      this.#running.delete(program)
    }
  }

  async #resultOf(end: ProgramEnd, signal: AbortSignal): Promise<unknown> {
    const { code, stderr, stdout, tooLarge } = end
    if (tooLarge)
      throw new PermanentError(
        `The program wrote more than ${OUTPUT_MAX_BYTES} bytes; it should store them and write their address.`,
        { code: 'result_too_large' },
      )
    if (code === 0) return resultOf(stdout)
    const said = lastLines(stderr)
    if (code === PERMANENT_EXIT_CODE) {
      const error = new PermanentError(said || 'The program says that no other attempt can help.', {
        code: 'permanent',
      })
      error.stack = stderr
      throw error
    }
    if (code !== null && NOT_RUNNABLE.includes(code)) await this.#refuseWhenGone(signal)
    const how = code === null ? `signal_${end.signal}` : `exit_${code}`
    const ended = code === null ? `was ended by ${end.signal}` : `ended with exit code ${code}`
    throw new ProgramError(how, said || `The program ${ended} and wrote nothing on stderr.`, stderr)
  }

  /** Where the program has gone since the start, tasks go back to the queue instead of failing one by one. */
  async #refuseWhenGone(signal: AbortSignal): Promise<void> {
    const fault = await commandFault(this.#options.command)
    if (fault === null) return
    this.#options.onGone(fault)
    await untilAborted(signal)
  }
}

function environmentOf({ taskId, type, attempt, context }: Task<unknown>): Record<string, string> {
  return {
    ROLLCALL_TASK_ID: taskId,
    ROLLCALL_TYPE: type,
    ROLLCALL_ATTEMPT: String(attempt),
    // Never that of a worker which itself runs as a task.
    ROLLCALL_CONTEXT: context === null ? '' : JSON.stringify(context),
  }
}

/** JSON if it is JSON that can be kept exactly, otherwise the text itself; nothing is null. */
function resultOf(stdout: Buffer): unknown {
  const text = stdout.toString('utf8').replace(/\r?\n$/, '')
  if (text.trim() === '') return null
  try {
    return parseJsonBody(stdout)
  } catch {
    return text
  }
}

/** The end of what a program wrote on stderr, for people. */
function lastLines(stderr: string): string {
  const lines = stderr.split('\n').filter(line => line.trim() !== '')
  return lines.slice(-MESSAGE_LINES).join('\n').slice(-MESSAGE_LENGTH)
}

/** Rejects once the signal is aborted: the worker then hands the task back, or forgets it. */
function untilAborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason)
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
}
