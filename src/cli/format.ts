/** Text for people out of what the service answers. */
import type { TaskView } from '../api/schemas/tasks.ts'
import { spell } from '../domain/wording.ts'
import type { Colors } from './terminal.ts'

export { spell }

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
