/** What lists and counts of tasks are asked, and how counts are answered. */
import { z } from 'zod'
import { STATUSES } from '../../domain/lifecycle.ts'
import { LIMITS } from '../../domain/limits.ts'
import { storableText } from '../../domain/text.ts'
import { secondsSchema, timeSchema } from './answer-fields.ts'
import { idSchema, nameSchema, pageLimit } from './common.ts'

export const LABELS_SEARCHED = 10
export const ERROR_SEARCHED_BYTES = 256
const LABEL = 'label.'

/** In a query labels stand as `label.project=demo`; the schema behind this has them gathered, as `label`. */
export const withLabels = <T extends z.ZodType>(schema: T) => z.preprocess(gatherLabels, schema)

function gatherLabels(query: unknown): unknown {
  if (typeof query !== 'object' || query === null) return query
  const fields: Record<string, unknown> = Object.create(null)
  const labels: Record<string, unknown> = Object.create(null)
  // A record passes over `__proto__` without a word; as a field of its own it is refused.
  for (const [name, value] of Object.entries(query))
    if (name.startsWith(LABEL) && name !== `${LABEL}__proto__`) labels[name.slice(LABEL.length)] = value
    else fields[name] = value
  if (Object.keys(labels).length > 0 && fields.label === undefined) fields.label = labels
  return fields
}

/** Made storable as the texts are that it is compared with. */
const searchedText = (bytes: number, least = 0) =>
  z
    .string()
    .min(least, 'must not be empty')
    .max(bytes, `must not exceed ${bytes} bytes`)
    .transform(storableText)
    .refine(text => Buffer.byteLength(text) <= bytes, `must not exceed ${bytes} bytes`)

export const labelQuerySchema = z
  .record(nameSchema, searchedText(LIMITS.labelBytes), 'is written as label.<name>=<value>')
  .refine(
    labels => Object.keys(labels).length <= LABELS_SEARCHED,
    `must not have more than ${LABELS_SEARCHED} labels`,
  )

/** One status, or several by repeating the parameter. */
export const statusQuerySchema = z
  .union([z.enum(STATUSES), z.array(z.enum(STATUSES)).min(1).max(STATUSES.length)])
  .transform(status => (Array.isArray(status) ? status : [status]))

const instantQuerySchema = z.iso
  .datetime({
    offset: true,
    error: 'must be ISO 8601 with Z or an offset; the + of an offset is written %2B',
  })
  // Nothing is older than 1970, and a database knows no year 0.
  .transform(text => new Date(Math.max(0, Date.parse(text))).toISOString())

const filterFields = {
  status: statusQuerySchema.optional(),
  type: nameSchema.optional(),
  tenant: nameSchema.optional(),
  label: labelQuerySchema.optional(),
  correlationId: idSchema.optional(),
  createdAfter: instantQuerySchema.optional().describe('Submitted from this time on.'),
  createdBefore: instantQuerySchema.optional().describe('Submitted before this time.'),
  error: searchedText(ERROR_SEARCHED_BYTES, 1)
    .optional()
    .describe('A part of the error message, whatever the case of A to Z, or the whole error code.'),
}
const filterSchema = z.strictObject(filterFields)
export type FilterQuery = z.output<typeof filterSchema>

export const LIST_LIMIT_MAX = 500
export const listQuerySchema = withLabels(
  filterSchema.extend({
    order: z.enum(['newest', 'oldest']).default('newest'),
    limit: pageLimit(LIST_LIMIT_MAX, 50),
    cursor: z.string().max(256).optional(),
  }),
)

export const countsQuerySchema = withLabels(filterSchema)

const countSchema = z
  .strictObject({
    count: z.int().min(0),
    exact: z.boolean().describe('False where there are more than were counted.'),
  })
  .meta({ id: 'Count' })

export const countsAnswerSchema = z
  .strictObject({
    counts: z.strictObject({
      PENDING: countSchema,
      PROCESSING: countSchema,
      RETRYING: countSchema,
      SUCCESS: countSchema,
      FAILED: countSchema,
      CANCELLED: countSchema,
    }),
    countedAt: timeSchema,
    lagSeconds: secondsSchema.describe('How far the read model was behind the log when it was asked.'),
  })
  .meta({ id: 'TaskCounts' })
export type CountsAnswer = z.output<typeof countsAnswerSchema>
