import pino, { type DestinationStream, type Logger } from 'pino'

export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const
export type LogLevel = (typeof LOG_LEVELS)[number]

/**
 * One JSON line per entry. What users wrote and what opens doors is never among the fields that are logged, so
 * nothing is redacted here: redaction would copy every transition's line.
 */
export function createLogger(level: LogLevel, destination?: DestinationStream): Logger {
  return pino(
    {
      level,
      base: null,
      timestamp: isoTime,
    },
    destination ?? pino.destination({ dest: 2, sync: false }),
  )
}

let latest = 0
let latestText = ''

/** As pino's own isoTime, written once a millisecond: a flight logs a thousand lines in a few. */
function isoTime(): string {
  const now = Date.now()
  if (now !== latest) {
    latest = now
    latestText = `,"time":"${new Date(now).toISOString()}"`
  }
  return latestText
}
