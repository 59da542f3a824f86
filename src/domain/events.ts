/**
 * What happened: the facts a task's stream holds. These shapes are stored for ever; change one only by a new
 * version. Instants are whole milliseconds since 1970 UTC by the database's clock.
 *
 * What users wrote sits under `content`, control fields beside it, so that content can be sealed per task
 * later without touching what the fold needs.
 */
import { z } from 'zod'
import { OPEN_STATUSES, TIMEOUT_TIMERS } from './lifecycle.ts'
import { LIMITS, NAME_PATTERN, STEP_PATTERN } from './limits.ts'
import { retryPolicySchema } from './retry-policy.ts'

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json }

/** Milliseconds since 1970-01-01T00:00:00Z, whole. */
export type Instant = number

const instant = z.int().min(0).max(8_640_000_000_000_000)
const name = z.string().regex(NAME_PATTERN)
const sha256 = z.string().regex(/^[0-9a-f]{64}$/)
const worker = z.string().min(1).max(LIMITS.workerLength)
/** JSON was checked where it came in and again as bytes on append; walking it here would only cost time. */
const json = z.custom<Json>(value => value !== undefined, 'must be JSON')

/** `message` is shown to users, `detail` (a stack) to operators only. */
export const taskErrorSchema = z.strictObject({
  code: z.string().min(1).max(LIMITS.errorCodeLength),
  message: z.string(),
  detail: z.string().optional(),
})
export type TaskError = z.infer<typeof taskErrorSchema>

const timeout = z.int().min(LIMITS.timeoutMs.min).max(LIMITS.timeoutMs.max)
export const timeoutsSchema = z.strictObject({
  queueMs: timeout,
  executionMs: timeout,
  leaseMs: timeout,
  totalMs: timeout,
})
export type Timeouts = z.infer<typeof timeoutsSchema>

export const lifecycleRefSchema = z.strictObject({ name, version: z.int().min(1), hash: sha256 })
export type LifecycleRef = z.infer<typeof lifecycleRefSchema>

const run = z.int().min(1)
const attempt = z.int().min(1)
const timedOut = {
  run,
  attempt,
  timer: z.enum(TIMEOUT_TIMERS),
  /** The status that was left, since a total timeout leaves any open one. */
  from: z.enum(OPEN_STATUSES),
  limitMs: z.int().min(0),
  since: instant,
  lastHeartbeatAt: instant.nullable(),
  charged: z.boolean(),
}

export const EVENT_SCHEMAS = {
  TaskSubmitted: {
    1: z.strictObject({
      type: name,
      priority: z.int(),
      tenant: name.nullable(),
      lifecycle: lifecycleRefSchema,
      timeouts: timeoutsSchema,
      retry: retryPolicySchema,
      runAt: instant,
      queueDeadlineAt: instant,
      totalDeadlineAt: instant,
      fingerprint: sha256,
      content: z.strictObject({
        payload: json,
        labels: z.record(z.string(), z.string()),
        salt: z.string().min(1).max(64),
      }),
    }),
  },
  TaskStarted: {
    1: z.strictObject({
      run,
      attempt,
      worker,
      leaseTokenHash: sha256,
      leaseDeadlineAt: instant,
      executionDeadlineAt: instant,
    }),
  },
  TaskStepEntered: {
    1: z.strictObject({
      run,
      attempt,
      step: z.string().regex(STEP_PATTERN),
      stepDeadlineAt: instant.nullable(),
      content: z.strictObject({ context: json.optional() }),
    }),
  },
  TaskSucceeded: {
    1: z.strictObject({
      run,
      attempt,
      content: z.strictObject({ result: json, resultUrl: z.string().nullable() }),
    }),
  },
  TaskAttemptFailed: {
    1: z.strictObject({
      run,
      attempt,
      charged: z.boolean(),
      retryAt: instant,
      content: z.strictObject({ error: taskErrorSchema, context: json.optional() }),
    }),
  },
  TaskFailed: {
    1: z.strictObject({
      run,
      attempt,
      charged: z.boolean(),
      cause: z.enum(['not_retryable', 'no_attempts_left', 'lifecycle']),
      content: z.strictObject({ error: taskErrorSchema, context: json.optional() }),
    }),
  },
  TaskAttemptTimedOut: { 1: z.strictObject({ ...timedOut, retryAt: instant }) },
  TaskTimedOut: { 1: z.strictObject(timedOut) },
  TaskReleased: {
    1: z.strictObject({
      run,
      attempt,
      queueDeadlineAt: instant,
      content: z.strictObject({ reason: z.string().nullable(), context: json.optional() }),
    }),
  },
  TaskRequeued: {
    1: z.strictObject({
      /** The run that begins or goes on; higher than before only when a FAILED task is retried. */
      run,
      cause: z.enum(['backoff_over', 'asked']),
      queueDeadlineAt: instant,
      totalDeadlineAt: instant,
      content: z.strictObject({ reason: z.string().nullable() }),
    }),
  },
  TaskCancelled: {
    1: z.strictObject({ run, attempt, content: z.strictObject({ reason: z.string().nullable() }) }),
  },
  TaskNoted: { 1: z.strictObject({ content: z.strictObject({ note: z.string().min(1) }) }) },
  LateResultRecorded: {
    1: z.strictObject({
      attempt,
      outcome: z.enum(['succeeded', 'failed']),
      content: z.strictObject({
        result: json.optional(),
        resultUrl: z.string().nullable().optional(),
        error: taskErrorSchema.optional(),
      }),
    }),
  },
} as const

export type EventType = keyof typeof EVENT_SCHEMAS
type Versions<T extends EventType> = (typeof EVENT_SCHEMAS)[T]

/** One fact in its newest version, without its envelope. */
export type TaskEvent = {
  [T in EventType]: { type: T; version: 1; data: z.infer<Versions<T>[1]> }
}[EventType]

export type EventData<T extends EventType> = Extract<TaskEvent, { type: T }>['data']

export const ACTOR_KINDS = ['client', 'worker', 'person', 'timer', 'system'] as const
export const SOURCES = ['http', 'kafka', 'timer', 'command_line'] as const

export const actorSchema = z.strictObject({
  kind: z.enum(ACTOR_KINDS),
  id: z.string().min(1).max(LIMITS.workerLength),
})
export type Actor = z.infer<typeof actorSchema>
export type Source = (typeof SOURCES)[number]

/** Who, when and from where; stored beside every event's data. */
export const metadataSchema = z.strictObject({
  at: instant,
  actor: actorSchema,
  source: z.enum(SOURCES),
  commandId: z.string().min(1).max(128),
  correlationId: z.string().min(1).max(128).nullable(),
  causationId: z.string().min(1).max(128).nullable(),
  /** W3C traceparent of what was asked. */
  trace: z.string().min(1).max(256).nullable(),
  /** Hash of the event before it in the stream, null for the first. */
  prevHash: sha256.nullable(),
})
export type Metadata = z.infer<typeof metadataSchema>

/** An event as the fold sees it. */
export interface RecordedEvent {
  revision: number
  hash: string
  metadata: Metadata
  event: TaskEvent
}
