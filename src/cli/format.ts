/** Text for people out of what the service answers. */
import type { TaskView } from '../api/schemas/tasks.ts'
import { countText, spell } from '../domain/wording.ts'
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

/** In one unit, as nobody knows it better: `40 s`, `2 min`, `3 h`, `5 d`. */
export function roughly(seconds: number): string {
  if (seconds < 90) return `${Math.ceil(seconds)} s`
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`
  if (seconds < 48 * 3_600) return `${Math.round(seconds / 3_600)} h`
  return `${Math.round(seconds / 86_400)} d`
}

/** `1st`, `2nd`, `3rd`, `11th`, `1,001st`. */
export function ordinal(rank: number): string {
  const teen = rank % 100 >= 11 && rank % 100 <= 13
  return `${countText(rank)}${(teen ? undefined : ['th', 'st', 'nd', 'rd'][rank % 10]) ?? 'th'}`
}

export function bar(fraction: number, width: number): string {
  const full = Math.round(Math.min(1, Math.max(0, fraction)) * width)
  return '█'.repeat(full) + '░'.repeat(width - full)
}
