/** Dead letters as clients see them. Bytes are base64. */
import { z } from 'zod'
import { LIMITS } from '../../domain/limits.ts'
import { DEAD_LETTER_REASONS, LETTER_STATUSES, type LetterStatus } from '../../workers/dead-letters.ts'
import { taskIdSchema, textSchema } from './common.ts'

export const LETTERS_MAX = 100
export const LETTER_LIMIT_MAX = 200

const letterIdSchema = taskIdSchema
const REASONS = Object.keys(DEAD_LETTER_REASONS) as [string, ...string[]]

export const letterParamsSchema = z.strictObject({ id: letterIdSchema })
export const lettersQuerySchema = z.strictObject({
  status: z.enum(LETTER_STATUSES).default('waiting'),
  reason: z.enum(REASONS).optional(),
  taskId: taskIdSchema.optional(),
  limit: z
    .string()
    .regex(/^[1-9]\d{0,2}$/, `must be 1 to ${LETTER_LIMIT_MAX}`)
    .transform(Number)
    .pipe(z.int().max(LETTER_LIMIT_MAX))
    .default(50),
  cursor: z
    .string()
    .regex(/^\d{1,18}$/, 'is not one that a list has given')
    .optional(),
})

const letterIds = z.array(letterIdSchema).min(1).max(LETTERS_MAX)
export const redriveSchema = z.strictObject({ letterIds })
export const discardSchema = z.strictObject({
  letterIds,
  reason: textSchema(LIMITS.reasonBytes).refine(text => text.trim().length > 0, 'must not be empty'),
})

/** In a list. Key and value are cut to 1,024 bytes; `valueBytes` is the length of the whole value. */
export interface DeadLetterRow {
  letterId: string
  status: LetterStatus
  /** Why the record cannot be handled; stable. */
  code: string
  /** What was wrong in this case. */
  message: string
  /** Where it could be read from the record. */
  taskId: string | null
  topic: string
  partition: number
  /** Decimal. */
  offset: string
  /** As the record has it, in milliseconds. */
  timestamp: number
  key: string | null
  value: string | null
  valueBytes: number | null
  keptAt: string
  /** How often it was redriven. */
  redrives: number
  redrivenAt: string | null
  /** When it ceased to wait, by whom and why. */
  settledAt: string | null
  settledBy: string | null
  settledBecause: string | null
}

/** One letter, whole. */
export interface DeadLetterView extends DeadLetterRow {
  /** In their order; a name may stand more than once. */
  headers: { name: string; value: string }[]
}

export interface DeadLetterList {
  letters: DeadLetterRow[]
  /** How many wait for a person in all. */
  waiting: number
  /** Give it back as `cursor` for the next page; null at the end. */
  nextCursor: string | null
}

export type RedriveResult =
  | { letterId: string; kind: 'redriven'; answer: string; code: string | null; message: string | null }
  | { letterId: string; kind: 'kept' | 'refused'; code: string; message: string }

export interface RedriveAnswer {
  results: RedriveResult[]
}

export type DiscardResult =
  | { letterId: string; kind: 'discarded' }
  | { letterId: string; kind: 'refused'; code: string; message: string }

export interface DiscardAnswer {
  results: DiscardResult[]
}
