/** What streams are asked and what they say. */
import { z } from 'zod'
import { EVENT_SCHEMAS, type EventType } from '../../domain/events.ts'
import { nameSchema } from './common.ts'
import { labelQuerySchema, statusQuerySchema, withLabels } from './lists.ts'
import { taskViewSchema } from './tasks.ts'

/** Programs that cannot set the header field Last-Event-ID say it in the query. What cannot be read begins anew. */
const lastEventIdSchema = z.string().max(256)

export const taskEventsQuerySchema = z.strictObject({ lastEventId: lastEventIdSchema.optional() })

export const eventsQuerySchema = withLabels(
  z.strictObject({
    type: nameSchema.optional(),
    status: statusQuerySchema.optional(),
    tenant: nameSchema.optional(),
    label: labelQuerySchema.optional(),
    lastEventId: lastEventIdSchema.optional(),
  }),
)

export type EventsQuery = z.output<typeof eventsQuerySchema>

/** A task as streams tell it. */
export const taskStatusSchema = taskViewSchema
  .omit({ payload: true, result: true, labels: true, timeouts: true, retry: true })
  .meta({ id: 'TaskStatus', description: 'A task without what was handed in, and without its result.' })
export type TaskStatus = z.output<typeof taskStatusSchema>

const EVENT_TYPES = Object.keys(EVENT_SCHEMAS) as [EventType, ...EventType[]]

/** Data of `event: task`. */
export const taskMessageSchema = z
  .strictObject({
    event: z
      .enum(EVENT_TYPES)
      .nullable()
      .describe('What happened; null where the task is told as it stands, or a signal of it changed.'),
    task: taskStatusSchema,
  })
  .meta({ id: 'TaskMessage' })
export type TaskMessage = z.output<typeof taskMessageSchema>

/** Data of `event: resync`: something may have been left out. */
export const resyncMessageSchema = z
  .strictObject({
    reason: z
      .enum(['slow', 'too_old', 'unknown_id', 'log_went_backwards'])
      .describe(
        'The client took too little; more has happened than is told again; the Last-Event-ID is none of this stream; the log is another one.',
      ),
  })
  .meta({ id: 'ResyncMessage' })
export type ResyncMessage = z.output<typeof resyncMessageSchema>

/** Data of `event: end`, the last message of a stream. */
export const endMessageSchema = z
  .strictObject({ reason: z.enum(['final', 'shutting_down', 'key_refused']) })
  .meta({ id: 'EndMessage' })
export type EndMessage = z.output<typeof endMessageSchema>
