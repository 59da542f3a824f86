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
    destination ?? standardError(),
  )
}

/**
 * Lines are handed on as bytes: a destination that takes texts joins each line to those that wait, and measures all of
 * them anew for every line, which under load costs more than to make the lines.
 */
function standardError(): DestinationStream {
  // The types leave the mode out.
  const options = { dest: 2, sync: false, contentMode: 'buffer' } as Parameters<typeof pino.destination>[0]
  const destination = pino.destination(options)
  const write = destination.write as unknown as (line: Buffer) => boolean
  destination.write = line => write.call(destination, Buffer.from(line))
  return destination
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
