/**
 * How a command fails: what it says, where, and with which exit code. Programs match on the exit code, and with
 * `--json` on the `code` of the problem on stderr.
 */
import type { FieldError, RollcallError } from '../sdk/errors.ts'

/** Documented in `rollcall --help`; scripts depend on them. */
export const EXIT = {
  ok: 0,
  /** The answer is no: refused, not found, failed. */
  no: 1,
  /** The command line, a file or a setting cannot be used. */
  usage: 2,
  /** The service, or the database it needs, does not answer. */
  unreachable: 3,
  /** Ctrl-C, as shells count it. */
  interrupted: 130,
} as const

/** How whoever reads this can call the command: npx and npm scripts run it where it is on no path. */
export const SELF = process.env.npm_execpath ? 'npx rollcall' : 'rollcall'

/** A failure with its exit code. The message says what is wrong and what to do about it. */
export class CliError extends Error {
  readonly code: string
  readonly exitCode: number

  constructor(code: string, message: string, exitCode: number, options?: ErrorOptions) {
    super(message, options)
    this.code = code
    this.exitCode = exitCode
  }
}

export const usageError = (message: string, code = 'usage', options?: ErrorOptions): CliError =>
  new CliError(code, message, EXIT.usage, options)

/** What is shown of a failure, and printed as problem+json with `--json`. */
export interface Failure {
  code: string
  exitCode: number
  /** HTTP status, 0 where no answer came. */
  status?: number
  detail: string
  errors?: readonly FieldError[]
  /** A failure that was not foreseen: its stack helps whoever mends it. */
  stack?: string
}

/** Any thrown value as a failure. `url`: the service that was asked. */
export function failureOf(thrown: unknown, url: string): Failure {
  if (thrown instanceof CliError) {
    const { code, exitCode, message } = thrown
    return { code, exitCode, detail: message }
  }
  if (!(thrown instanceof Error)) return { code: 'failed', exitCode: EXIT.no, detail: String(thrown) }
  if (isRollcallError(thrown)) return refusalOf(thrown, url)
  const code = 'code' in thrown && typeof thrown.code === 'string' ? thrown.code : 'internal_error'
  const exitCode = EXIT_BY_CODE[code]
  if (exitCode !== undefined) return { code, exitCode, detail: thrown.message }
  return {
    code,
    exitCode: EXIT.no,
    detail: thrown.message,
    ...(thrown.stack && { stack: thrown.stack }),
  }
}

/** By codes, so that the modules which throw these are loaded only by the commands that use them. */
const EXIT_BY_CODE: Record<string, number> = {
  config: EXIT.usage,
  not_durable: EXIT.usage,
  migration_failed: EXIT.no,
  log_unavailable: EXIT.unreachable,
  log_went_backwards: EXIT.no,
  copy_refused: EXIT.usage,
  copy_conflict: EXIT.no,
  copy_differs: EXIT.no,
  binary_missing: EXIT.no,
  data_dir_in_use: EXIT.usage,
  data_dir_not_ours: EXIT.usage,
  data_dir_unusable: EXIT.usage,
  init_failed: EXIT.no,
  invalid_settings: EXIT.usage,
  no_account: EXIT.usage,
  platform_unsupported: EXIT.usage,
  port_in_use: EXIT.usage,
  start_failed: EXIT.no,
  stop_failed: EXIT.no,
  version_mismatch: EXIT.usage,
}

const isRollcallError = (error: Error): error is RollcallError => error.name === 'RollcallError'

function refusalOf({ code, status, detail, errors }: RollcallError, url: string): Failure {
  if (code === 'not_json') return { code, exitCode: EXIT.usage, detail }
  if (status === 0) {
    const told = `No service answers at ${url}. ${detail}${code === 'unreachable' ? ` ${START_HINT}` : ''}`
    return { code, exitCode: EXIT.unreachable, status, detail: told }
  }
  const failure = { code, status, detail, ...(errors.length > 0 && { errors }) }
  if (status === 400) return { ...failure, exitCode: EXIT.usage }
  if (status >= 502) return { ...failure, exitCode: EXIT.unreachable }
  if (code === 'bad_answer' || code === 'unexpected_status') {
    const told = `What answers at ${url} is not Rollcall: ${detail}`
    return { ...failure, detail: told, exitCode: EXIT.unreachable }
  }
  // The usual reason is that another service was meant.
  if (code === 'not_found') return { ...failure, detail: `${detail} ${url} was asked.`, exitCode: EXIT.no }
  return { ...failure, exitCode: EXIT.no }
}

const START_HINT = `Start one with "${SELF} dev", or say where it is with --url or ROLLCALL_URL.`
