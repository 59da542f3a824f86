/** What workers ask and are answered. A worker makes its own claim ids and lease tokens, so it can ask again. */
import { z } from 'zod'
import {
  failFields,
  fence,
  progressSchema,
  releaseFields,
  stepFields,
  succeedFields,
} from '../../workers/worker-events.ts'
import { CODES } from '../problems.ts'
import {
  anyJsonSchema,
  attemptSchema,
  countSchema,
  labelsSchema,
  revisionSchema,
  runSchema,
  statusSchema,
  timeSchema,
  typeSchema,
  uuidSchema,
} from './answer-fields.ts'
import { idSchema, leaseTokenSchema, nameSchema, shownAs, taskIdSchema, workerSchema } from './common.ts'

export const CLAIM_MAX = 100
export const CLAIM_WAIT_MAX_MS = 30_000
export const REPORTS_MAX = 1_000
export const STARTS_MAX = 1_000

export const claimSchema = z
  .strictObject({
    worker: workerSchema,
    types: z.array(nameSchema).min(1).max(32),
    max: z
      .int()
      .min(0)
      .max(CLAIM_MAX)
      .default(1)
      .describe('0 takes nothing new: it asks what this claim holds already.'),
    waitMs: z
      .int()
      .min(0)
      .max(CLAIM_WAIT_MAX_MS)
      .default(0)
      .describe('How long to wait for work when there is none, in milliseconds.'),
    claimId: idSchema.describe(
      'The same id and token again answers the tasks this claim started that are still running.',
    ),
    leaseToken: leaseTokenSchema.describe(
      'Fences every task of this claim; whatever is sent for them later carries it.',
    ),
  })
  .meta({ id: 'Claim' })
export type ClaimRequest = z.input<typeof claimSchema>

const command = { commandId: idSchema.optional() }

export const startSchema = z
  .strictObject({ worker: workerSchema, ...fence, ...command })
  .meta({ id: 'Start' })
/** For one task by its address; the worker says who it is for the history. */
const single = { worker: workerSchema.optional(), ...fence, ...command }
export const stepSchema = z.strictObject({ ...stepFields, ...single }).meta({ id: 'Step' })
export const succeedSchema = z.strictObject({ ...succeedFields, ...single }).meta({ id: 'Succeed' })
export const failSchema = z.strictObject({ ...failFields, ...single }).meta({ id: 'Fail' })
export const releaseSchema = z.strictObject({ ...releaseFields, ...single }).meta({ id: 'Release' })

/** Many at once, for workers that have their tasks from the broker; one token fences all of them. */
export const startsSchema = z
  .strictObject({
    worker: workerSchema,
    leaseToken: leaseTokenSchema,
    tasks: z
      .array(z.strictObject({ taskId: taskIdSchema, attempt: fence.attempt }))
      .min(1)
      .max(STARTS_MAX),
    ...command,
  })
  .meta({ id: 'Starts' })
export type StartsRequest = z.input<typeof startsSchema>

const addressed = { taskId: taskIdSchema, ...fence, ...command }
export const reportSchema = z
  .discriminatedUnion('trigger', [
    z.strictObject({ trigger: z.literal('STEP'), ...stepFields, ...addressed }),
    z.strictObject({ trigger: z.literal('SUCCEED'), ...succeedFields, ...addressed }),
    z.strictObject({ trigger: z.literal('FAIL'), ...failFields, ...addressed }),
    z.strictObject({ trigger: z.literal('RELEASE'), ...releaseFields, ...addressed }),
  ])
  .meta({ id: 'Report', description: 'One report; trigger says which.' })
export type ReportRequest = z.input<typeof reportSchema>
export type Report = z.output<typeof reportSchema>

/** Members are checked one by one, so that a bad one is refused alone. */
export const reportsSchema = z
  .strictObject({
    worker: workerSchema,
    reports: z.array(shownAs('Report')).min(1).max(REPORTS_MAX),
  })
  .meta({ id: 'Reports' })

const beatSchema = z.strictObject({
  taskId: taskIdSchema,
  ...fence,
  progress: progressSchema.optional().describe('0 to 1; left out keeps what was said last.'),
})
export type Beat = z.output<typeof beatSchema>
export const heartbeatSchema = z
  .strictObject({
    worker: workerSchema,
    beats: z.array(beatSchema).min(1).max(REPORTS_MAX),
  })
  .meta({ id: 'Heartbeats' })

/** A task handed to a worker: started, with everything the handler needs. */
const claimedTaskSchema = z
  .strictObject({
    taskId: uuidSchema,
    type: typeSchema,
    run: runSchema,
    attempt: attemptSchema.describe('Whatever is sent for this attempt carries it.'),
    maxAttempts: z.int().min(1),
    attemptsCharged: countSchema,
    payload: anyJsonSchema,
    context: anyJsonSchema.describe('What an earlier attempt left behind; null where none did.'),
    labels: labelsSchema,
    correlationId: z.string().nullable(),
    leaseMs: z.int().min(1),
    leaseUntil: timeSchema,
    executionDeadlineAt: timeSchema,
  })
  .meta({ id: 'ClaimedTask', description: 'A task that was started for a worker, with all it needs.' })
export type ClaimedTask = z.output<typeof claimedTaskSchema>

export const claimAnswerSchema = z
  .strictObject({ tasks: z.array(claimedTaskSchema).max(CLAIM_MAX) })
  .meta({ id: 'ClaimAnswer' })
export type ClaimAnswer = z.output<typeof claimAnswerSchema>

const refusedSchema = z.strictObject({
  taskId: uuidSchema,
  kind: z.literal('refused'),
  code: z.enum(CODES),
  message: z.string(),
})

/** `repeated`: it was started with this token before. `leaseUntil` is the end of its first lease. */
const startResultSchema = z.discriminatedUnion('kind', [
  z.strictObject({
    taskId: uuidSchema,
    kind: z.enum(['accepted', 'repeated']).describe('repeated: it was started with this token before.'),
    leaseUntil: timeSchema.describe('The end of its first lease.'),
    executionDeadlineAt: timeSchema,
  }),
  refusedSchema,
])
export type StartResult = z.output<typeof startResultSchema>

export const startsAnswerSchema = z
  .strictObject({ results: z.array(startResultSchema).max(STARTS_MAX) })
  .meta({ id: 'StartsAnswer', description: 'One result for each task, in their order.' })
export type StartsAnswer = z.output<typeof startsAnswerSchema>

const reportResultSchema = z.discriminatedUnion('kind', [
  z.strictObject({
    taskId: uuidSchema,
    kind: z.enum(['accepted', 'repeated']),
    status: statusSchema,
    revision: revisionSchema,
  }),
  // What is no report may name what is no id.
  refusedSchema.extend({ taskId: z.string().max(64).nullable() }),
])
export type ReportResult = z.output<typeof reportResultSchema>

export const reportsAnswerSchema = z
  .strictObject({ results: z.array(reportResultSchema).max(REPORTS_MAX) })
  .meta({ id: 'ReportsAnswer', description: 'One result for each report, in their order.' })
export type ReportsAnswer = z.output<typeof reportsAnswerSchema>

const beatResultSchema = z.strictObject({
  taskId: uuidSchema,
  attempt: attemptSchema,
  state: z
    .enum(['held', 'cancelled', 'lost'])
    .describe(
      'held: go on until then. cancelled: stop, a person asked. lost: stop, the attempt is another’s or over.',
    ),
  until: timeSchema.nullable().describe('The end of the lease; null unless it is held.'),
  reason: z.string().nullable(),
})
export type BeatResult = z.output<typeof beatResultSchema>

export const heartbeatAnswerSchema = z
  .strictObject({ results: z.array(beatResultSchema).max(REPORTS_MAX) })
  .meta({ id: 'HeartbeatAnswer', description: 'One result for each beat, in their order.' })
export type HeartbeatAnswer = z.output<typeof heartbeatAnswerSchema>
