/** Text for people out of what the service answers. */
import type { TaskView } from '../api/schemas/tasks.ts'
import type { Colors } from './terminal.ts'

type Status = TaskView['status']

/** Wide enough for the longest status. */
export const STATUS_WIDTH = 10

/**
 * Text that others wrote, safe to print: a terminal obeys control characters, and bidirectional ones can make
 * a line read as something else.
 */
export function printable(text: string): string {
  return text
    .replace(/\r?\n/g, ' ')
    .replace(/\t/g, ' ')
    .replace(
      /[\p{Cc}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu,
      character => `\\u${character.codePointAt(0)!.toString(16).padStart(4, '0')}`,
    )
}

export const cut = (text: string, length: number): string =>
  text.length <= length ? text : `${text.slice(0, Math.max(0, length - 1))}…`

/** Compact JSON on one line. */
export const shortJson = (value: unknown, length: number): string =>
  cut(printable(JSON.stringify(value) ?? 'null'), length)

export function paintStatus(status: Status, colors: Colors, width = 0): string {
  const paint = {
    PENDING: colors.yellow,
    PROCESSING: colors.cyan,
    RETRYING: colors.magenta,
    SUCCESS: colors.green,
    FAILED: colors.red,
    CANCELLED: colors.gray,
  }[status]
  return paint(status.padEnd(width))
}

/** `850 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`. */
export function spell(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 9_950) return `${(ms / 1_000).toFixed(1)} s`
  const seconds = Math.round(ms / 1_000)
  if (seconds < 60) return `${seconds} s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 60) return pair(minutes, 'min', seconds % 60, 's')
  const hours = Math.floor(minutes / 60)
  if (hours < 48) return pair(hours, 'h', minutes % 60, 'min')
  return pair(Math.floor(hours / 24), 'd', hours % 24, 'h')
}

const pair = (large: number, largeUnit: string, small: number, smallUnit: string): string =>
  small === 0 ? `${large} ${largeUnit}` : `${large} ${largeUnit} ${small} ${smallUnit}`

/** `12 s ago`, `in 3 min`; clocks of two machines may disagree by a little. */
export function relative(iso: string, now = Date.now()): string {
  const ms = Date.parse(iso) - now
  if (Math.abs(ms) < 1_000) return 'now'
  return ms < 0 ? `${spell(-ms)} ago` : `in ${spell(ms)}`
}

/** In UTC to the second: `2030-01-31 09:00:00Z`. */
export const clockTime = (iso: string): string => `${iso.slice(0, 10)} ${iso.slice(11, 19)}Z`

export function bar(fraction: number, width: number): string {
  const full = Math.round(Math.min(1, Math.max(0, fraction)) * width)
  return '█'.repeat(full) + '░'.repeat(width - full)
}
