/** Requests and answers about tasks, as clients see them. */
import { z } from 'zod'
import { EVENT_SCHEMAS, timeoutsSchema } from '../../domain/events.ts'
import { TIMERS } from '../../domain/lifecycle.ts'
import { LIMITS } from '../../domain/limits.ts'
import { retryPolicySchema } from '../../domain/retry-policy.ts'
import { AHEAD_MAX } from '../../domain/signals.ts'
import { CODES } from '../problems.ts'
import {
  actorSchema,
  anyJsonSchema,
  attemptSchema,
  commandIdSchema,
  countSchema,
  fieldErrorSchema,
  hashSchema,
  labelsSchema,
  revisionSchema,
  runSchema,
  secondsSchema,
  sourceSchema,
  statusSchema,
  timeSchema,
  typeSchema,
  uuidSchema,
} from './answer-fields.ts'
import {
  boundedJson,
  delaySchema,
  idSchema,
  millisecondsSchema,
  nameSchema,
  pageLimit,
  shownAs,
  taskIdSchema,
  textSchema,
} from './common.ts'

export const submitSchema = z
  .strictObject({
    type: nameSchema,
    payload: boundedJson(LIMITS.contentBytes).default(null),
    priority: z
      .int()
      .min(LIMITS.priority.min)
      .max(LIMITS.priority.max)
      .optional()
      .describe('Higher is claimed first.'),
    runAt: z.iso
      .datetime({ offset: true })
      .transform(text => Date.parse(text))
      // As far as delayMs goes: the deadlines that follow must stay dates that a database can hold (S61).
      .refine(at => at <= Date.now() + LIMITS.timeoutMs.max, 'must be at most 366 days from now')
      .optional()
      .describe(
        'Not before this time, at most 366 days from now; exclusive with delayMs. The past is at once.',
      ),
    delayMs: delaySchema.optional().describe('Not before so many milliseconds from now.'),
    timeouts: z
      .strictObject({
        queueMs: millisecondsSchema,
        executionMs: millisecondsSchema,
        leaseMs: millisecondsSchema,
        totalMs: millisecondsSchema,
      })
      .partial()
      .optional(),
    retry: retryPolicySchema.partial().optional(),
    labels: z
      .record(nameSchema, textSchema(LIMITS.labelBytes))
      .refine(
        labels => Object.keys(labels).length <= LIMITS.labels,
        `must not have more than ${LIMITS.labels} labels`,
      )
      .meta({ maxProperties: LIMITS.labels })
      .optional(),
    correlationId: idSchema.optional(),
    tenant: nameSchema
      .optional()
      .describe(
        'Whose task it is. A caller that is bound to a tenant need not say so, and may say no other.',
      ),
  })
  .refine(task => task.runAt === undefined || task.delayMs === undefined, {
    message: 'give runAt or delayMs, not both',
    path: ['delayMs'],
  })
  .meta({
    id: 'Submit',
    not: { required: ['runAt', 'delayMs'] },
    examples: [
      { type: 'image.generate', payload: { prompt: 'a fox' }, priority: 5, labels: { project: 'demo' } },
    ],
  })
export type SubmitRequest = z.input<typeof submitSchema>
export type Submit = z.output<typeof submitSchema>

/** Visible ASCII; a comma is what two headers joined to one look like, so it is refused (S56). */
export const idempotencyKeySchema = z
  .string()
  .regex(/^[\x21-\x2b\x2d-\x7e]{1,255}$/, 'must be 1 to 255 visible ASCII characters without a comma')

export const BATCH_MAX = 1_000

/** Members are checked one by one, so that a bad one is refused alone. */
export const batchSchema = z
  .strictObject({ tasks: z.array(shownAs('BatchMember')).min(1).max(BATCH_MAX) })
  .meta({ id: 'Batch' })
export const batchMemberSchema = submitSchema
  .safeExtend({ idempotencyKey: idempotencyKeySchema.optional() })
  .meta({ id: 'BatchMember', not: { required: ['runAt', 'delayMs'] } })

export const taskParamsSchema = z.strictObject({ id: taskIdSchema })

const commandFields = { commandId: idSchema.optional() }
export const reasonCommandSchema = z
  .strictObject({ reason: textSchema(LIMITS.reasonBytes).optional(), ...commandFields })
  .meta({ id: 'Command' })
  // Fastify says null where there is no body: a command without options.
  .nullable()
  .transform(body => body ?? {})
export const noteSchema = z
  .strictObject({
    note: textSchema(LIMITS.noteBytes)
      .refine(text => text.length > 0, 'must not be empty')
      .meta({ minLength: 1 }),
    ...commandFields,
  })
  .meta({ id: 'Note' })

export const HISTORY_LIMIT_MAX = 1_000
export const historyQuerySchema = z.strictObject({
  from: z
    .string()
    .regex(/^\d{1,9}$/, 'must be a revision')
    .transform(Number)
    .default(0)
    .meta({ type: 'integer', minimum: 0, maximum: 999_999_999 }),
  limit: pageLimit(HISTORY_LIMIT_MAX, 100),
})

const nextDeadlineSchema = z
  .strictObject({
    timer: z.enum([...TIMERS, 'not_before']).describe('not_before is the date of a delayed task.'),
    at: timeSchema,
    to: statusSchema
      .nullable()
      .describe('The status the task will be in then; null where its lifecycle cannot be read.'),
    effect: z.string().nullable().describe('What happens, in words.'),
  })
  .meta({ id: 'NextDeadline' })
export type NextDeadline = z.output<typeof nextDeadlineSchema>

const positionSchema = z
  .strictObject({
    rank: z
      .int()
      .min(1)
      .max(AHEAD_MAX + 1)
      .describe('1 is claimed next.'),
    exact: z.boolean().describe('Whether that is its rank; otherwise its rank is higher.'),
  })
  .meta({ id: 'Position' })

const estimateSchema = z
  .strictObject({
    p50: secondsSchema.describe('As likely sooner as later.'),
    p90: secondsSchema.describe('Sooner in nine of ten cases.'),
  })
  .meta({ id: 'Estimate' })

/** One task as clients see it; null where there is none. */
export const taskViewSchema = z
  .strictObject({
    taskId: uuidSchema,
    type: typeSchema,
    status: statusSchema,
    step: z.string().nullable().describe('The sub-state of a running task.'),
    progress: z
      .number()
      .min(0)
      .max(1)
      .nullable()
      .describe('0 to 1, as the worker last said; null where it never did.'),
    attempt: attemptSchema,
    maxAttempts: z.int().min(1),
    run: runSchema,
    priority: z.int(),
    tenant: z.string().nullable(),
    position: positionSchema
      .nullable()
      .describe('Its place in the queue of its type; null unless it waits to be claimed.'),
    estimatedRemainingSeconds: estimateSchema
      .nullable()
      .describe('Until it is final; null for a finished task, and where too little is known.'),
    worker: z.string().nullable(),
    payload: anyJsonSchema,
    labels: labelsSchema,
    timeouts: timeoutsSchema.meta({ id: 'Timeouts', description: 'How long each may take.' }),
    retry: retryPolicySchema.meta({ id: 'RetryPolicy', description: 'What comes after a failed attempt.' }),
    result: anyJsonSchema,
    resultUrl: z.string().nullable(),
    errorCode: z.string().nullable(),
    errorMessage: z.string().nullable(),
    why: z.string().describe('One sentence a person understands.'),
    nextDeadline: nextDeadlineSchema
      .nullable()
      .describe('What fires next if nothing else happens; null for a finished task.'),
    correlationId: z.string().nullable(),
    createdAt: timeSchema,
    runAt: timeSchema,
    startedAt: timeSchema.nullable(),
    finishedAt: timeSchema.nullable(),
    updatedAt: timeSchema,
    revision: revisionSchema,
    hash: hashSchema.describe('Of the last event: the end of the chain.'),
  })
  .meta({ id: 'Task', description: 'One task as it stands.' })
export type TaskView = z.output<typeof taskViewSchema>

/**
 * A task in a list: from the read model, so without payload, result and what takes the whole task to tell. Its
 * lease is no deadline of a list.
 */
export const taskRowSchema = taskViewSchema
  .omit({
    payload: true,
    timeouts: true,
    retry: true,
    result: true,
    why: true,
    progress: true,
    position: true,
    estimatedRemainingSeconds: true,
    nextDeadline: true,
  })
  .extend({ nextDeadline: nextDeadlineSchema.pick({ timer: true, at: true }).nullable() })
  .meta({ id: 'TaskRow', description: 'A task in a list: without what takes the whole task to tell.' })
export type TaskRow = z.output<typeof taskRowSchema>

const nextCursorSchema = z
  .string()
  .nullable()
  .describe('Give it back as cursor for the next page; null at the end.')

export const taskListSchema = z
  .strictObject({
    tasks: z.array(taskRowSchema),
    nextCursor: nextCursorSchema,
    lagSeconds: secondsSchema.describe('How far the read model was behind the log when it was asked.'),
  })
  .meta({ id: 'TaskList' })
export type TaskList = z.output<typeof taskListSchema>

export const batchAnswerSchema = z
  .strictObject({
    results: z.array(
      z.discriminatedUnion('kind', [
        z.strictObject({
          kind: z.enum(['accepted', 'repeated']),
          taskId: uuidSchema,
          status: statusSchema,
          revision: revisionSchema,
        }),
        z.strictObject({
          kind: z.literal('refused'),
          code: z.enum(CODES),
          message: z.string(),
          errors: z.array(fieldErrorSchema).optional(),
        }),
      ]),
    ),
  })
  .meta({ id: 'BatchAnswer', description: 'One result for each member, in their order.' })
export type BatchAnswer = z.output<typeof batchAnswerSchema>

/** The envelope of every event is the same; what it says stands in its `data`, which is as its type has it. */
const eventOf = (type: string, version: number, data: z.ZodType<unknown>) =>
  z
    .strictObject({
      revision: countSchema.describe('Its place in the history, from 0.'),
      id: uuidSchema,
      type: z.literal(type),
      version: z.literal(version),
      at: timeSchema,
      actor: actorSchema,
      source: sourceSchema,
      commandId: commandIdSchema,
      correlationId: z.string().nullable(),
      causationId: z.string().nullable(),
      prevHash: hashSchema.nullable(),
      hash: hashSchema,
      data,
    })
    .meta({ id: version === 1 ? type : `${type}${version}` })
export const historyEventSchema = z
  .union(
    Object.entries(EVENT_SCHEMAS).flatMap(([type, versions]) =>
      Object.entries(versions).map(([version, data]) => eventOf(type, Number(version), data)),
    ),
  )
  .meta({
    id: 'HistoryEvent',
    description: 'An event as it is stored. Instants in its data are milliseconds.',
  })
export type HistoryEvent = z.output<typeof historyEventSchema>

export const historySchema = z
  .strictObject({
    taskId: uuidSchema,
    events: z.array(historyEventSchema),
    next: countSchema.nullable().describe('Revision to ask from next; null at the end.'),
  })
  .meta({ id: 'History' })
export type History = z.output<typeof historySchema>
