/** Dead letters as clients see them. Bytes are base64. */
import { z } from 'zod'
import { LIMITS } from '../../domain/limits.ts'
import { DEAD_LETTER_REASONS, type DeadLetterReason, LETTER_STATUSES } from '../../workers/dead-letters.ts'
import { CODES } from '../problems.ts'
import { countSchema, timeSchema, uuidSchema } from './answer-fields.ts'
import { pageLimit, taskIdSchema, textSchema } from './common.ts'

export const LETTERS_MAX = 100
export const LETTER_LIMIT_MAX = 200

const letterIdSchema = taskIdSchema
const REASONS = Object.keys(DEAD_LETTER_REASONS) as [DeadLetterReason, ...DeadLetterReason[]]

export const letterParamsSchema = z.strictObject({ id: letterIdSchema })
export const lettersQuerySchema = z.strictObject({
  status: z.enum(LETTER_STATUSES).default('waiting'),
  reason: z.enum(REASONS).optional(),
  taskId: taskIdSchema.optional(),
  limit: pageLimit(LETTER_LIMIT_MAX, 50),
  cursor: z
    .string()
    .regex(/^\d{1,18}$/, 'is not one that a list has given')
    .optional(),
})

const letterIds = z.array(letterIdSchema).min(1).max(LETTERS_MAX)
export const redriveSchema = z.strictObject({ letterIds }).meta({ id: 'Redrive' })
export const discardSchema = z
  .strictObject({
    letterIds,
    reason: textSchema(LIMITS.reasonBytes)
      .refine(text => text.trim().length > 0, 'must not be empty')
      .meta({ pattern: '\\S' }),
  })
  .meta({ id: 'Discard' })

const bytesSchema = z
  .string()
  .regex(/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/)
  .meta({ contentEncoding: 'base64' })

const deadLetterRowSchema = z
  .strictObject({
    letterId: uuidSchema,
    status: z.enum(LETTER_STATUSES),
    code: z.enum(REASONS).describe('Why the record cannot be handled.'),
    message: z.string().describe('What was wrong in this case.'),
    taskId: uuidSchema.nullable().describe('Where it could be read from the record.'),
    topic: z.string(),
    partition: countSchema,
    offset: z.string().regex(/^\d+$/),
    timestamp: z.number().describe('As the record has it, in milliseconds.'),
    key: bytesSchema.nullable(),
    value: bytesSchema.nullable(),
    valueBytes: countSchema.nullable().describe('Of the whole value.'),
    keptAt: timeSchema,
    redrives: countSchema.describe('How often it was handed in again.'),
    redrivenAt: timeSchema.nullable(),
    settledAt: timeSchema.nullable().describe('When it ceased to wait.'),
    settledBy: z.string().nullable(),
    settledBecause: z.string().nullable(),
  })
  .meta({ id: 'DeadLetterRow', description: 'In a list: key and value are cut to 1,024 bytes.' })
export type DeadLetterRow = z.output<typeof deadLetterRowSchema>

export const deadLetterSchema = deadLetterRowSchema
  .extend({
    headers: z
      .array(z.strictObject({ name: z.string(), value: bytesSchema }))
      .describe('In their order; a name may stand more than once.'),
  })
  .meta({ id: 'DeadLetter', description: 'One letter, whole.' })
export type DeadLetterView = z.output<typeof deadLetterSchema>

export const deadLetterListSchema = z
  .strictObject({
    letters: z.array(deadLetterRowSchema),
    waiting: countSchema.describe('How many wait for a person in all.'),
    nextCursor: z.string().nullable().describe('Give it back as cursor for the next page; null at the end.'),
  })
  .meta({ id: 'DeadLetterList' })
export type DeadLetterList = z.output<typeof deadLetterListSchema>

/** A letter that is no longer there, or waits no more. */
const refusedSchema = z.strictObject({
  letterId: uuidSchema,
  kind: z.literal('refused'),
  code: z.enum(['dead_letter_not_found', 'not_waiting']),
  message: z.string(),
})

export const redriveAnswerSchema = z
  .strictObject({
    results: z.array(
      z.discriminatedUnion('kind', [
        z.strictObject({
          letterId: uuidSchema,
          kind: z.literal('redriven'),
          answer: z.enum(['accepted', 'repeated', 'refused', 'signal']).describe('What it was answered.'),
          code: z.enum(CODES).nullable(),
          message: z.string().nullable(),
        }),
        z.strictObject({
          letterId: uuidSchema,
          kind: z.literal('kept').describe('It still cannot be handled, or not now.'),
          code: z.enum([...new Set([...REASONS, ...CODES])]),
          message: z.string(),
        }),
        refusedSchema,
      ]),
    ),
  })
  .meta({ id: 'RedriveAnswer', description: 'One result for each letter, in their order.' })
export type RedriveAnswer = z.output<typeof redriveAnswerSchema>
export type RedriveResult = RedriveAnswer['results'][number]

export const discardAnswerSchema = z
  .strictObject({
    results: z.array(
      z.discriminatedUnion('kind', [
        z.strictObject({ letterId: uuidSchema, kind: z.literal('discarded') }),
        refusedSchema,
      ]),
    ),
  })
  .meta({ id: 'DiscardAnswer', description: 'One result for each letter, in their order.' })
export type DiscardAnswer = z.output<typeof discardAnswerSchema>
export type DiscardResult = DiscardAnswer['results'][number]
