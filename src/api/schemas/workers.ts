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
import { idSchema, leaseTokenSchema, nameSchema, taskIdSchema, workerSchema } from './common.ts'

export const CLAIM_MAX = 100
export const CLAIM_WAIT_MAX_MS = 30_000
export const REPORTS_MAX = 1_000
export const STARTS_MAX = 1_000

export const claimSchema = z.strictObject({
  worker: workerSchema,
  types: z.array(nameSchema).min(1).max(32),
  /** 0 takes nothing new: it asks what this claim holds already. */
  max: z.int().min(0).max(CLAIM_MAX).default(1),
  /** How long to wait for work when there is none, in milliseconds. */
  waitMs: z.int().min(0).max(CLAIM_WAIT_MAX_MS).default(0),
  /** The same id and token again answers the tasks this claim started that are still running. */
  claimId: idSchema,
  /** Fences every task of this claim; whatever is sent for them later carries it. */
  leaseToken: leaseTokenSchema,
})
export type ClaimRequest = z.input<typeof claimSchema>

const command = { commandId: idSchema.optional() }

export const startSchema = z.strictObject({ worker: workerSchema, ...fence, ...command })
/** For one task by its address; the worker says who it is for the history. */
const single = { worker: workerSchema.optional(), ...fence, ...command }
export const stepSchema = z.strictObject({ ...stepFields, ...single })
export const succeedSchema = z.strictObject({ ...succeedFields, ...single })
export const failSchema = z.strictObject({ ...failFields, ...single })
export const releaseSchema = z.strictObject({ ...releaseFields, ...single })

/** Many at once, for workers that have their tasks from the broker; one token fences all of them. */
export const startsSchema = z.strictObject({
  worker: workerSchema,
  leaseToken: leaseTokenSchema,
  tasks: z
    .array(z.strictObject({ taskId: taskIdSchema, attempt: fence.attempt }))
    .min(1)
    .max(STARTS_MAX),
  ...command,
})
export type StartsRequest = z.input<typeof startsSchema>

const addressed = { taskId: taskIdSchema, ...fence, ...command }
/** One report; `trigger` says which. */
export const reportSchema = z.discriminatedUnion('trigger', [
  z.strictObject({ trigger: z.literal('STEP'), ...stepFields, ...addressed }),
  z.strictObject({ trigger: z.literal('SUCCEED'), ...succeedFields, ...addressed }),
  z.strictObject({ trigger: z.literal('FAIL'), ...failFields, ...addressed }),
  z.strictObject({ trigger: z.literal('RELEASE'), ...releaseFields, ...addressed }),
])
export type ReportRequest = z.input<typeof reportSchema>
export type Report = z.output<typeof reportSchema>

/** Members are checked one by one, so that a bad one is refused alone. */
export const reportsSchema = z.strictObject({
  worker: workerSchema,
  reports: z.array(z.unknown()).min(1).max(REPORTS_MAX),
})

const beatSchema = z.strictObject({
  taskId: taskIdSchema,
  ...fence,
  /** 0 to 1; left out keeps what was said last. */
  progress: progressSchema.optional(),
})
export type Beat = z.output<typeof beatSchema>
export const heartbeatSchema = z.strictObject({
  worker: workerSchema,
  beats: z.array(beatSchema).min(1).max(REPORTS_MAX),
})

/** A task handed to a worker: started, with everything the handler needs. */
export interface ClaimedTask {
  taskId: string
  type: string
  run: number
  attempt: number
  maxAttempts: number
  attemptsCharged: number
  payload: unknown
  /** What an earlier attempt left behind. */
  context: unknown
  labels: Record<string, string>
  correlationId: string | null
  leaseMs: number
  leaseUntil: string
  executionDeadlineAt: string
}

export interface ClaimAnswer {
  tasks: ClaimedTask[]
}

/** `repeated`: it was started with this token before. `leaseUntil` is the end of its first lease. */
export type StartResult =
  | { taskId: string; kind: 'accepted' | 'repeated'; leaseUntil: string; executionDeadlineAt: string }
  | { taskId: string; kind: 'refused'; code: string; message: string }

export interface StartsAnswer {
  results: StartResult[]
}

export type ReportResult =
  | { taskId: string; kind: 'accepted' | 'repeated'; status: string; revision: number }
  | { taskId: string | null; kind: 'refused'; code: string; message: string }

export interface ReportsAnswer {
  results: ReportResult[]
}

/** `held`: go on until `until`. `cancelled`: stop, a person asked. `lost`: stop, the attempt is another's or over. */
export interface BeatResult {
  taskId: string
  attempt: number
  state: 'held' | 'cancelled' | 'lost'
  until: string | null
  reason: string | null
}

export interface HeartbeatAnswer {
  results: BeatResult[]
}
