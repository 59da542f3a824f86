/**
 * What workers say about their tasks, as records on the topic of worker events. The fields are those of reports over
 * HTTP. `docs/worker-events.schema.json` is made from the schema here.
 */
import { hash } from 'node:crypto'
import { z } from 'zod'
import type { Command, Fence } from '../domain/commands.ts'
import {
  boundedJson,
  contextSchema,
  delaySchema,
  errorInputSchema,
  idSchema,
  leaseTokenSchema,
  resultUrlSchema,
  taskIdSchema,
  textSchema,
  workerSchema,
} from '../domain/fields.ts'
import { LIMITS, STEP_PATTERN } from '../domain/limits.ts'

export const fence = { attempt: z.int().min(1).max(1_000_000_000), leaseToken: leaseTokenSchema }
/** 0 to 1. */
export const progressSchema = z.number().min(0).max(1)
export const stepFields = {
  step: z.string().regex(STEP_PATTERN, 'must match [A-Z][A-Z0-9_]{0,63}'),
  context: contextSchema.optional(),
}
export const succeedFields = {
  result: boundedJson(LIMITS.contentBytes).default(null),
  resultUrl: resultUrlSchema.nullish().transform(url => url ?? null),
}
export const failFields = {
  error: errorInputSchema,
  retryable: z.boolean().default(true),
  /** The worker's own wish for the wait; left out, the retry policy decides. */
  retryAfterMs: delaySchema.nullish().transform(ms => ms ?? null),
  context: contextSchema.optional(),
}
export const releaseFields = {
  reason: textSchema(LIMITS.reasonBytes)
    .nullish()
    .transform(reason => reason ?? null),
  context: contextSchema.optional(),
}

const sent = { taskId: taskIdSchema, worker: workerSchema, ...fence, commandId: idSchema }

/** A worker event; `trigger` says which. The same `commandId` again is the same event again. */
export const workerEventSchema = z.discriminatedUnion('trigger', [
  z.strictObject({ trigger: z.literal('START'), ...sent }),
  z.strictObject({ trigger: z.literal('STEP'), ...stepFields, ...sent }),
  z.strictObject({ trigger: z.literal('SUCCEED'), ...succeedFields, ...sent }),
  z.strictObject({ trigger: z.literal('FAIL'), ...failFields, ...sent }),
  z.strictObject({ trigger: z.literal('RELEASE'), ...releaseFields, ...sent }),
  z.strictObject({ trigger: z.literal('HEARTBEAT'), ...sent }),
  z.strictObject({ trigger: z.literal('PROGRESS'), progress: progressSchema, ...sent }),
])
export type WorkerEvent = z.output<typeof workerEventSchema>

/**
 * The schema as JSON Schema, for workers in other languages. It cannot say how many bytes a result may have, so a record
 * that fits it may still be refused for its size.
 */
export const workerEventJsonSchema = () => ({
  title: 'A worker event of Rollcall',
  ...z.toJSONSchema(workerEventSchema, { io: 'input', unrepresentable: 'any' }),
})

export const hashToken = (token: string): string => hash('sha256', token)

type Addressed = { attempt: number; leaseToken: string }
/** What a worker reports of a task that it has started. */
export type Reported = Addressed &
  (
    | ({ trigger: 'STEP' } & Fields<typeof stepFields>)
    | ({ trigger: 'SUCCEED' } & Fields<typeof succeedFields>)
    | ({ trigger: 'FAIL' } & Fields<typeof failFields>)
    | ({ trigger: 'RELEASE' } & Fields<typeof releaseFields>)
  )
type Fields<T extends z.ZodRawShape> = z.output<z.ZodObject<T>>

/** A report as a command: the token is hashed, the rest was checked to fit. */
export function commandOf(report: Reported): Command & Fence {
  const fence = { attempt: report.attempt, leaseTokenHash: hashToken(report.leaseToken) }
  const context = 'context' in report && report.context !== undefined ? { context: report.context } : {}
  switch (report.trigger) {
    case 'STEP':
      return { trigger: 'STEP', step: report.step, ...context, ...fence }
    case 'SUCCEED':
      return { trigger: 'SUCCEED', result: report.result, resultUrl: report.resultUrl, ...fence }
    case 'FAIL': {
      const { detail, ...shown } = report.error
      const error = detail === undefined ? shown : { ...shown, detail }
      return {
        trigger: 'FAIL',
        error,
        retryable: report.retryable,
        retryAfterMs: report.retryAfterMs,
        ...context,
        ...fence,
      }
    }
    case 'RELEASE':
      return { trigger: 'RELEASE', reason: report.reason, ...context, ...fence }
  }
}
