/** Words for what people are told: instants, durations, attempts, what others wrote. */
import type { Instant } from './events.ts'
import type { Task } from './task.ts'
import { cutText } from './text.ts'

/** A sentence quotes the beginning; the whole text has a field of its own. */
const QUOTED_BYTES = 500

/** In UTC to the millisecond. */
export const instantText = (at: Instant): string => new Date(at).toISOString()

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

/** `1,000` */
export const countText = (count: number): string => String(count).replace(/\B(?=(\d{3})+$)/g, ',')

/**
 * `attempt 2 of 3`. Attempts that were not charged, and those of earlier runs, make the number and the budget
 * differ: `attempt 5 (2 of 3 in its budget)`.
 *
 * @param attempt that runs or comes next, so that it is the one after those that were charged
 */
export function attemptText(task: Task, attempt: number): string {
  const place = task.attemptsCharged + 1
  const { maxAttempts } = task.retry
  return attempt === place
    ? `attempt ${attempt} of ${maxAttempts}`
    : `attempt ${attempt} (${place} of ${maxAttempts} in its budget)`
}

/** What somebody wrote, on one line and not too long for a sentence. */
export const quoted = (text: string): string => cutText(text.replace(/\s+/g, ' ').trim(), QUOTED_BYTES)
