/**
 * A change of a task's status or step, as it is published for other services. `docs/task-status.schema.json` is made
 * from the schema here.
 */
import { z } from 'zod'
import type { OutgoingRecord } from '../broker/broker.ts'
import type { EventType, Instant } from '../domain/events.ts'
import { STATUSES } from '../domain/lifecycle.ts'
import { NAME_PATTERN, STEP_PATTERN } from '../domain/limits.ts'
import type { Task } from '../domain/task.ts'
import { cutText } from '../domain/text.ts'
import { shownError } from '../domain/why.ts'
import { cloudEventHeaders } from './cloud-event.ts'

const count = z.int().min(1)

/** Fields may be added: readers pass over those that they do not know. */
export const taskStatusSchema = z.object({
  taskId: z.string().regex(/^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/),
  type: z.string().regex(NAME_PATTERN),
  status: z.enum(STATUSES),
  /** While the task is PROCESSING and has entered one. */
  step: z.string().regex(STEP_PATTERN).nullable(),
  run: count,
  /** That waits, runs or ran last. */
  attempt: count,
  /** Rises with each event of the task; not every event is published. */
  revision: z.int().min(0),
  at: z.string().regex(/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$/),
  /** What went wrong last, for users; a cancelled task has the code `cancelled` and the reason, where one was given. */
  error: z.object({ code: z.string().min(1), message: z.string().nullable() }).optional(),
  /** Of a task that succeeded. */
  resultUrl: z.string().nullable(),
  correlationId: z.string().nullable(),
  labels: z.record(z.string(), z.string()),
})
export type TaskStatus = z.output<typeof taskStatusSchema>

/** The schema as JSON Schema, for services in other languages. */
export const taskStatusJsonSchema = () => ({
  title: 'A change of the status of a task of Rollcall',
  ...z.toJSONSchema(taskStatusSchema, { io: 'input' }),
})

/** What happened to a task, and how it stands since. */
export interface StatusChange {
  eventId: string
  what: EventType
  at: Instant
  status: TaskStatus
}

export function statusOf(task: Task): TaskStatus {
  const { code, message } = shownError(task)
  return {
    taskId: task.taskId,
    type: task.type,
    status: task.status,
    step: task.status === 'PROCESSING' ? task.step : null,
    run: task.run,
    attempt: task.attempt,
    revision: task.revision,
    at: new Date(task.updatedAt).toISOString(),
    ...(code === null ? {} : { error: { code, message } }),
    resultUrl: task.status === 'SUCCESS' ? task.resultUrl : null,
    correlationId: task.correlationId,
    labels: task.labels,
  }
}

/** `rollcall.task.attempt_failed` for TaskAttemptFailed: the words of what happened. */
export const statusType = (what: EventType): string =>
  `rollcall.task.${what
    .replace(/^Task/, '')
    .replace(/(?<=.)[A-Z]/g, letter => `_${letter}`)
    .toLowerCase()}`

export const statusRecord = ({ eventId, what, at, status }: StatusChange): OutgoingRecord => ({
  key: status.taskId,
  value: Buffer.from(JSON.stringify(status)),
  headers: cloudEventHeaders({ id: eventId, type: statusType(what), subject: status.taskId, at }),
})

const SHORT_TEXT_BYTES = 1_024

/** The change without what can be large: for a broker that takes less than a change may have. */
export function shortened(change: StatusChange): StatusChange {
  const { error, ...status } = change.status
  const message = error?.message ?? null
  return {
    ...change,
    status: {
      ...status,
      labels: {},
      ...(error && {
        error: { code: error.code, message: message === null ? null : cutText(message, SHORT_TEXT_BYTES) },
      }),
    },
  }
}
