/**
 * Fields that requests and worker events share. A schema here is the only check between the wire, of whichever
 * transport, and the domain.
 */
import { z } from 'zod'
import type { Json } from './events.ts'
import { LIMITS, NAME_PATTERN } from './limits.ts'
import { cutText, storableText } from './text.ts'

/** What a schema's refinement says by its `params`, to be answered with a code of its own. */
export type FieldProblem = { problem: 'content_too_large' | 'json_too_deep' }

const tooLarge: FieldProblem = { problem: 'content_too_large' }
const tooDeep: FieldProblem = { problem: 'json_too_deep' }

/** Lower case as printed; upper case is accepted and folded, braces and other spellings are not (S49). */
export const taskIdSchema = z
  .string()
  .regex(/^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$/, 'must be a UUID')
  .transform(id => id.toLowerCase())

export const nameSchema = z.string().regex(NAME_PATTERN, 'must match [a-z0-9][a-z0-9._-]{0,63}')

/** Any JSON value; depth and numbers were checked while the body was parsed. */
export const jsonSchema = z.custom<Json>(value => value !== undefined, 'must be JSON')

/** JSON of a bounded size and depth; the body was bounded before, so walking it ends soon. */
export const boundedJson = (bytes: number) =>
  jsonSchema
    .refine(value => !isDeeper(value, LIMITS.jsonDepth), {
      error: `must not be nested deeper than ${LIMITS.jsonDepth} levels`,
      params: tooDeep,
    })
    .refine(value => !exceeds(value, bytes), {
      error: `must not exceed ${bytes} bytes of JSON`,
      params: tooLarge,
    })
    .describe(
      `Any JSON of at most ${bytes} bytes and ${LIMITS.jsonDepth} levels, with numbers that a double keeps exactly.`,
    )

function isDeeper(value: Json, levels: number): boolean {
  if (value === null || typeof value !== 'object') return false
  if (levels === 0) return true
  for (const inner of Object.values(value)) if (isDeeper(inner, levels - 1)) return true
  return false
}

function exceeds(value: Json, bytes: number): boolean {
  return Buffer.byteLength(JSON.stringify(value)) > bytes
}

/** Text for people: made storable, refused where it is longer than the limit. */
export const textSchema = (bytes: number) =>
  z
    .string()
    .transform(storableText)
    .refine(text => Buffer.byteLength(text) <= bytes, {
      error: `must not exceed ${bytes} bytes`,
      params: tooLarge,
    })
    .meta({ maxLength: bytes, description: `At most ${bytes} bytes.` })

/** Text of an error: cut instead of refused, for a failure report must never bounce for its length (S38). */
export const cutTextSchema = (bytes: number) =>
  z
    .string()
    .transform(text => cutText(storableText(text), bytes))
    .describe(`Cut to ${bytes} bytes.`)

export const workerSchema = z
  .string()
  .min(1)
  .max(LIMITS.workerLength)
  // A worker's name is shown at terminals and in logs: printable, no control characters.
  .regex(/^[\p{L}\p{N}\p{P}\p{S} ]+$/u, 'must be printable text')

export const leaseTokenSchema = z
  .string()
  .regex(/^[\x21-\x7e]{16,128}$/, 'must be 16 to 128 visible ASCII characters')

/** A command id or a correlation id: visible ASCII. */
export const idSchema = z.string().regex(/^[\x21-\x7e]{1,128}$/, 'must be 1 to 128 visible ASCII characters')

export const millisecondsSchema = z
  .int()
  .min(LIMITS.timeoutMs.min, `must be at least ${LIMITS.timeoutMs.min} ms; leave it out for the default`)
  .max(LIMITS.timeoutMs.max, `must be at most ${LIMITS.timeoutMs.max} ms (366 days)`)

/** A wait; 0 is none. */
export const delaySchema = z
  .int()
  .min(0)
  .max(LIMITS.timeoutMs.max, `must be at most ${LIMITS.timeoutMs.max} ms (366 days)`)

/** An error's code is made one (`[A-Za-z0-9][A-Za-z0-9._-]{0,63}`), for the same reason that its texts are cut. */
function errorCode(text: string): string {
  const code = text.replace(/[^A-Za-z0-9._-]+/g, '_').replace(/^[^A-Za-z0-9]+/, '')
  return code.slice(0, LIMITS.errorCodeLength) || 'error'
}

export const errorInputSchema = z.strictObject({
  code: z
    .string()
    .transform(errorCode)
    .default('error')
    .describe('Made [A-Za-z0-9][A-Za-z0-9._-]{0,63} where it is none.'),
  message: cutTextSchema(LIMITS.contentBytes / 4),
  detail: cutTextSchema(LIMITS.contentBytes / 2).optional(),
})

export const contextSchema = boundedJson(LIMITS.contextBytes)
export const resultUrlSchema = z
  .url({ protocol: /^https?$/ })
  .max(LIMITS.urlLength)
  // What parses addresses escapes these and hands the text on as it was; Postgres does not take it.
  .refine(url => !/[\p{Cc}\p{Cs}]/u.test(url), 'must not hold control characters')
  .meta({ pattern: '^[hH][tT][tT][pP][sS]?:', description: 'An http or https address.' })
