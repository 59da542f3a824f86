/** Where a command writes: text for people with colours at a terminal, JSON for programs. */
import pc from 'picocolors'
import { EXIT, type Failure, failureOf } from './failures.ts'

export type Colors = ReturnType<typeof pc.createColors>

/** Lines that do not fit a terminal are cut; in a file or a pipe nothing is. */
const UNLIMITED = 10_000

export class Terminal {
  /** One JSON value on stdout, failures as JSON on stderr. */
  readonly json: boolean
  /** For stdout; `errorColors` for stderr. */
  readonly colors: Colors
  readonly errorColors: Colors

  constructor(json: boolean) {
    this.json = json
    this.colors = pc.createColors(!json && isColorful(process.stdout))
    this.errorColors = pc.createColors(!json && isColorful(process.stderr))
  }

  get width(): number {
    return process.stdout.isTTY ? (process.stdout.columns ?? 80) : UNLIMITED
  }

  /** The outcome of a command: `value` for programs, `text` for people. */
  result(value: unknown, text: () => string): void {
    this.line(this.json ? JSON.stringify(value) : text())
  }

  line(text: string): void {
    process.stdout.write(`${text}\n`)
  }

  /** Beside the outcome, on stderr: progress and hints. Programs are spared them. */
  aside(text: string): void {
    if (!this.json) process.stderr.write(`${text}\n`)
  }

  /** An aside that makes sense at a terminal only. */
  hint(text: string): void {
    if (process.stderr.isTTY) this.aside(this.errorColors.dim(text))
  }

  /**
   * Says why a command failed.
   *
   * @param url the service that was asked
   * @returns the exit code
   */
  fail(thrown: unknown, url: string): number {
    const failure = failureOf(thrown, url)
    process.stderr.write(this.json ? `${JSON.stringify(problemOf(failure))}\n` : this.#told(failure))
    return failure.exitCode
  }

  #told({ code, detail, errors = [], stack }: Failure): string {
    const { red, bold, dim } = this.errorColors
    const fields = errors
      .filter(({ path, message }) => !detail.includes(`${path}: ${message}`))
      .map(({ path, message }) => `\n  ${path}: ${message}`)
    const trace = stack === undefined ? '' : `\n${dim(stack)}`
    return `${red(bold('error:'))} ${detail}${fields.join('')} ${dim(`(${code})`)}${trace}\n`
  }
}

const problemOf = ({ code, status = 0, detail, errors }: Failure) => ({
  type: `urn:rollcall:problem:${code}`,
  status,
  code,
  detail,
  ...(errors && { errors }),
})

/** NO_COLOR counts when it is set to anything but nothing (no-color.org). */
function isColorful(stream: NodeJS.WriteStream): boolean {
  return stream.isTTY === true && !process.env.NO_COLOR && process.env.TERM !== 'dumb'
}

/**
 * A reader that has seen enough (`| head`) or a terminal that was closed is no failure: the command ends, unless
 * others depend on it (a service), then it only falls silent.
 */
export function endWithReader(): void {
  for (const stream of [process.stdout, process.stderr])
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (othersDepend) return
      if (!isReaderGone(error)) process.exitCode = EXIT.no
      process.exit()
    })
}

let othersDepend = false

/** This process goes on when nobody reads what it prints. */
export function outliveReader(): void {
  othersDepend = true
}

const isReaderGone = ({ code }: NodeJS.ErrnoException): boolean =>
  code === 'EPIPE' || code === 'EIO' || code === 'ERR_STREAM_DESTROYED'
