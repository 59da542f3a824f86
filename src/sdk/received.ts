/** What came from elsewhere, looked at with care: it may be an answer of anything. */
import type { FieldError } from './errors.ts'

const SHOWN_LENGTH = 200

/** The JSON of a text; undefined where it is none. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

export const isFieldError = (value: unknown): value is FieldError =>
  isRecord(value) && typeof value.path === 'string' && typeof value.message === 'string'

/** The beginning of a body, fit to stand in a message. */
export function shown(body: string): string {
  const text = body.slice(0, SHOWN_LENGTH).replace(/\p{Cc}+/gu, ' ')
  return text.trim() || 'an empty body'
}

/** fetch hides the system's code (ECONNREFUSED) in its cause, a failed dual-stack connect in an AggregateError. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if ('code' in error && typeof error.code === 'string') return error.code
  if (error.cause instanceof Error) return reasonOf(error.cause)
  return error.message || error.name
}
