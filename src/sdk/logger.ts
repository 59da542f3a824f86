/** Where the worker writes. The shape is pino's, so that a pino logger fits as it is. */

export type LogFields = Record<string, unknown>

export interface Logger {
  debug(fields: LogFields, message: string): void
  info(fields: LogFields, message: string): void
  warn(fields: LogFields, message: string): void
  error(fields: LogFields, message: string): void
}

const LEVELS = ['debug', 'info', 'warn', 'error'] as const

/** Warnings and errors as one line of JSON each on stderr. */
export function stderrLogger(): Logger {
  const write = (level: string) => (fields: LogFields, message: string) => {
    process.stderr.write(`${JSON.stringify({ level, at: new Date().toISOString(), message, ...fields })}\n`)
  }
  return { debug: () => {}, info: () => {}, warn: write('warn'), error: write('error') }
}

/** The same logger, but it never throws: a full disk or a cyclic field must not end a task. */
export function safeLogger(logger: Logger): Logger {
  return wrapped((level, fields, message) => {
    try {
      logger[level](fields, message)
    } catch {
      // There is nowhere left to say it.
    }
  })
}

/** A logger whose lines carry these fields. */
export function childLogger(logger: Logger, more: LogFields): Logger {
  return wrapped((level, fields, message) => logger[level]({ ...fields, ...more }, message))
}

type Write = (level: (typeof LEVELS)[number], fields: LogFields, message: string) => void

const wrapped = (write: Write): Logger => ({
  debug: (fields, message) => write('debug', fields, message),
  info: (fields, message) => write('info', fields, message),
  warn: (fields, message) => write('warn', fields, message),
  error: (fields, message) => write('error', fields, message),
})
