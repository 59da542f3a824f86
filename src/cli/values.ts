/** Values of the command line, parsed strictly: what is not meant clearly is refused with what to write instead. */
import { InvalidArgumentError } from 'commander'

const UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const
const DURATION = /^(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)$/
const MAX_MS = 366 * UNITS.d

/** `500ms`, `10s`, `5m`, `1.5h`, `7d` in whole milliseconds. */
export function parseDuration(text: string): number {
  const found = DURATION.exec(text)
  if (!found) {
    if (/^\d+(\.\d+)?$/.test(text))
      throw new InvalidArgumentError(`It has no unit; write ${text}ms or ${text}s.`)
    throw new InvalidArgumentError('Write a number and a unit: 500ms, 10s, 5m, 2h or 7d.')
  }
  const ms = Number(found[1]) * UNITS[found[2] as keyof typeof UNITS]
  if (!Number.isInteger(ms)) throw new InvalidArgumentError('It must be whole milliseconds.')
  if (ms > MAX_MS) throw new InvalidArgumentError('It must be 366 days at most.')
  return ms
}

/** A parser of whole numbers within bounds. */
export const wholeNumber =
  (min: number, max: number) =>
  (text: string): number => {
    const value = /^-?\d{1,9}$/.test(text) ? Number(text) : Number.NaN
    if (value >= min && value <= max) return value
    throw new InvalidArgumentError(`It must be a whole number from ${min} to ${max}.`)
  }

export const parsePort = wholeNumber(0, 65_535)

/** ISO 8601 with an offset, so that nobody has to guess whose time it is. */
export function parseTime(text: string): string {
  if (/^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$/.test(text)) {
    const ms = Date.parse(text)
    if (!Number.isNaN(ms)) return new Date(ms).toISOString()
  }
  throw new InvalidArgumentError('Write a time as 2030-01-31T09:00:00Z or with an offset, +02:00.')
}

/** Collects `key=value` options into one object. */
export function collectLabels(text: string, labels: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf('=')
  if (at < 1) throw new InvalidArgumentError('Write it as key=value.')
  return { ...labels, [text.slice(0, at)]: text.slice(at + 1) }
}

/** Collects an option that may be repeated, or given once with commas. */
export const collect = (text: string, values: readonly string[] = []): string[] => [
  ...values,
  ...text
    .split(',')
    .map(part => part.trim())
    .filter(part => part !== ''),
]
