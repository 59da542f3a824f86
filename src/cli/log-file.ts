/**
 * Where the services of this command line write their log: a file that cannot grow for ever, and what needs a
 * person's attention also on stderr.
 */
import { closeSync, mkdirSync, openSync, renameSync, statSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { usageError } from './failures.ts'

const NAME = 'rollcall.log'
/** With the one file kept before it, twice this on disk. */
const MAX_BYTES = 10 * 1024 * 1024
/** Lines wait for each other this long at most, so that a burst is one write. */
const FLUSH_MS = 50
const FLUSH_BYTES = 64 * 1024
const ATTENTION = /^\{"level":(40|50|60),/
/** A failure that repeats itself must not bury the terminal; the file has every line. */
const SHOWN = { lines: 20, perMs: 10_000 }

export interface LogFileOptions {
  maxBytes?: number
  /** Receives warnings and errors as they come. */
  onAttention?: (line: string) => void
}

/** A destination for pino. It never throws: a full disk stops the log, not the service. */
export class LogFile {
  readonly path: string
  readonly #maxBytes: number
  #onAttention: (line: string) => void
  #fd: number
  #bytes: number
  #waiting = ''
  #timer: NodeJS.Timeout | null = null
  #broken = false

  /** @throws CliError when the file cannot be opened */
  constructor(folder: string, { maxBytes = MAX_BYTES, onAttention = () => {} }: LogFileOptions = {}) {
    this.path = join(folder, NAME)
    this.#maxBytes = maxBytes
    this.#onAttention = onAttention
    try {
      mkdirSync(folder, { recursive: true })
      this.#fd = openSync(this.path, 'a', 0o600)
      this.#bytes = statSync(this.path).size
    } catch (cause) {
      throw usageError(
        `The log ${this.path} cannot be written: ${(cause as Error).message}. Use another data folder.`,
        'data_dir_unusable',
        { cause },
      )
    }
  }

  write(line: string): void {
    if (this.#fd === -1) return
    this.#waiting += line
    if (ATTENTION.test(line)) this.#onAttention(line)
    if (this.#waiting.length >= FLUSH_BYTES) this.flush()
    else this.#timer ??= setTimeout(() => this.flush(), FLUSH_MS).unref()
  }

  /** From now on nobody is told of warnings and errors: the file alone has them. */
  hush(): void {
    this.#onAttention = () => {}
  }

  /** Writes what waits; also to be called where the process is about to end. */
  flush(): void {
    if (this.#timer) clearTimeout(this.#timer)
    this.#timer = null
    const text = this.#waiting
    this.#waiting = ''
    if (text === '' || this.#fd === -1) return
    try {
      if (this.#bytes > this.#maxBytes) this.#turnOver()
      this.#bytes += writeSync(this.#fd, text)
      this.#broken = false
    } catch (error) {
      // Said once, not for every line that follows.
      if (!this.#broken) this.#onAttention(lostLine(this.path, error))
      this.#broken = true
    }
  }

  close(): void {
    this.flush()
    if (this.#fd !== -1) closeSync(this.#fd)
    this.#fd = -1
  }

  #turnOver(): void {
    closeSync(this.#fd)
    renameSync(this.path, `${this.path}.1`)
    this.#fd = openSync(this.path, 'a', 0o600)
    this.#bytes = 0
  }
}

const lostLine = (path: string, error: unknown): string =>
  `${JSON.stringify({ level: 50, msg: `the log ${path} cannot be written: ${(error as Error).message}` })}\n`

/** Shows log lines that need attention: as JSON for programs, as a sentence for people, within a bound. */
export function attentionOnStderr(paint: {
  json: boolean
  yellow: (text: string) => string
  dim: (text: string) => string
}) {
  let since = Number.NEGATIVE_INFINITY
  let shown = 0
  return (line: string): void => {
    const now = performance.now()
    if (now - since > SHOWN.perMs) {
      since = now
      shown = 0
    }
    shown++
    if (shown > SHOWN.lines) return
    const more = shown === SHOWN.lines ? ' (more like this goes to the log only)' : ''
    process.stderr.write(
      paint.json ? line : `${paint.yellow('warning:')} ${sentenceOf(line)}${paint.dim(more)}\n`,
    )
  }
}

/** `the projector could not write: connection refused (part=projector taskId=…)`. */
function sentenceOf(line: string): string {
  const { level: _level, time: _time, msg, err, ...fields } = JSON.parse(line) as Record<string, unknown>
  const cause = (err as { message?: unknown } | undefined)?.message
  const rest = Object.entries(fields)
    .map(([key, value]) => `${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join(' ')
  return `${msg}${cause === undefined ? '' : `: ${cause}`}${rest === '' ? '' : ` (${rest})`}`
}
