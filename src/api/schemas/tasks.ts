/** Requests and answers about tasks, as clients see them. */
import { z } from 'zod'
import { STATUSES } from '../../domain/lifecycle.ts'
import { LIMITS } from '../../domain/limits.ts'
import { retryPolicySchema } from '../../domain/retry-policy.ts'
import {
  boundedJson,
  delaySchema,
  idSchema,
  millisecondsSchema,
  nameSchema,
  taskIdSchema,
  textSchema,
} from './common.ts'

export const submitSchema = z
  .strictObject({
    type: nameSchema,
    payload: boundedJson(LIMITS.contentBytes).default(null),
    /** Higher is claimed first. */
    priority: z.int().min(LIMITS.priority.min).max(LIMITS.priority.max).optional(),
    /** Not before this time; exclusive with delayMs. The past is at once. */
    runAt: z.iso
      .datetime({ offset: true })
      .transform(text => Date.parse(text))
      // As far as delayMs goes: the deadlines that follow must stay dates that a database can hold (S61).
      .refine(at => at <= Date.now() + LIMITS.timeoutMs.max, 'must be at most 366 days from now')
      .optional(),
    /** Not before so many milliseconds from now. */
    delayMs: delaySchema.optional(),
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
      .optional(),
    correlationId: idSchema.optional(),
  })
  .refine(task => task.runAt === undefined || task.delayMs === undefined, {
    message: 'give runAt or delayMs, not both',
    path: ['delayMs'],
  })
export type SubmitRequest = z.input<typeof submitSchema>
export type Submit = z.output<typeof submitSchema>

/** Visible ASCII; a comma is what two headers joined to one look like, so it is refused (S56). */
export const idempotencyKeySchema = z
  .string()
  .regex(/^[\x21-\x2b\x2d-\x7e]{1,255}$/, 'must be 1 to 255 visible ASCII characters without a comma')

export const BATCH_MAX = 1_000

/** Members are checked one by one, so that a bad one is refused alone. */
export const batchSchema = z.strictObject({ tasks: z.array(z.unknown()).min(1).max(BATCH_MAX) })
export const batchMemberSchema = z.looseObject({ idempotencyKey: idempotencyKeySchema.optional() })

export const taskParamsSchema = z.strictObject({ id: taskIdSchema })

const commandFields = { commandId: idSchema.optional() }
export const reasonCommandSchema = z
  .strictObject({ reason: textSchema(LIMITS.reasonBytes).optional(), ...commandFields })
  // Fastify says null where there is no body: a command without options.
  .nullable()
  .transform(body => body ?? {})
export const noteSchema = z.strictObject({
  note: textSchema(LIMITS.noteBytes).refine(text => text.length > 0, 'must not be empty'),
  ...commandFields,
})

export const LIST_LIMIT_MAX = 500
export const listQuerySchema = z.strictObject({
  status: z
    .union([z.enum(STATUSES), z.array(z.enum(STATUSES)).min(1).max(STATUSES.length)])
    .transform(status => (Array.isArray(status) ? status : [status]))
    .optional(),
  type: nameSchema.optional(),
  order: z.enum(['newest', 'oldest']).default('newest'),
  // Query strings are text by nature; the pattern comes first, so that '' is not read as 0 (PITFALLS H9).
  limit: z
    .string()
    .regex(/^[1-9]\d{0,2}$/, `must be 1 to ${LIST_LIMIT_MAX}`)
    .transform(Number)
    .pipe(z.int().max(LIST_LIMIT_MAX))
    .default(50),
  cursor: z.string().max(256).optional(),
})

export const HISTORY_LIMIT_MAX = 1_000
export const historyQuerySchema = z.strictObject({
  from: z
    .string()
    .regex(/^\d{1,9}$/, 'must be a revision')
    .transform(Number)
    .default(0),
  limit: z
    .string()
    .regex(/^[1-9]\d{0,3}$/, `must be 1 to ${HISTORY_LIMIT_MAX}`)
    .transform(Number)
    .pipe(z.int().max(HISTORY_LIMIT_MAX))
    .default(100),
})

/** One task as clients see it. Times are ISO 8601 in UTC; null where there is none. */
export interface TaskView {
  taskId: string
  type: string
  status: (typeof STATUSES)[number]
  /** The sub-state of a running task. */
  step: string | null
  /** 0 to 1, as the worker last said; null where it never did. */
  progress: number | null
  attempt: number
  maxAttempts: number
  run: number
  priority: number
  worker: string | null
  payload: unknown
  labels: Record<string, string>
  result: unknown
  resultUrl: string | null
  errorCode: string | null
  errorMessage: string | null
  /** One sentence a person understands. */
  why: string
  /** What fires next if nothing else happens; null for a finished task. */
  nextDeadline: NextDeadline | null
  correlationId: string | null
  createdAt: string
  runAt: string
  startedAt: string | null
  finishedAt: string | null
  updatedAt: string
  revision: number
  /** Hash of the last event: the end of the chain. */
  hash: string
}

export interface NextDeadline {
  /** queue, execution, step, lease, retry, total, or not_before: the date of a delayed task. */
  timer: string
  at: string
  /** The status the task will be in then, and what happens, in words; null where its lifecycle cannot be read. */
  to: (typeof STATUSES)[number] | null
  effect: string | null
}

/**
 * A task in a list: from the read model, so without payload, result and what takes the whole task to tell. Its
 * lease is no deadline of a list.
 */
export type TaskRow = Omit<
  TaskView,
  'payload' | 'labels' | 'result' | 'why' | 'progress' | 'correlationId' | 'nextDeadline'
> & { nextDeadline: Pick<NextDeadline, 'timer' | 'at'> | null }

export interface TaskList {
  tasks: TaskRow[]
  /** Give it back as `cursor` for the next page; null at the end. */
  nextCursor: string | null
  /** How far the read model was behind the log, in seconds, when it was asked. */
  lagSeconds: number
}

export interface BatchAnswer {
  results: (
    | { kind: 'accepted' | 'repeated'; taskId: string; status: string; revision: number }
    | { kind: 'refused'; code: string; message: string; errors?: { path: string; message: string }[] }
  )[]
}

export interface HistoryEvent {
  revision: number
  id: string
  type: string
  version: number
  at: string
  actor: { kind: string; id: string }
  source: string
  commandId: string
  correlationId: string | null
  causationId: string | null
  prevHash: string | null
  hash: string
  data: unknown
}

export interface History {
  taskId: string
  events: HistoryEvent[]
  /** Revision to ask from next; null at the end. */
  next: number | null
}
