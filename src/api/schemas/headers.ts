/**
 * The header fields that routes take. Routes read them by themselves, so that what is refused can say why; the document
 * shows the same schemas.
 */
import { z } from 'zod'
import { ETAG } from '../if-match.ts'
import { idSchema, workerSchema } from './common.ts'
import { idempotencyKeySchema } from './tasks.ts'

/** Who asks and from where; each route that changes something takes them. */
export const originHeaders = {
  'rollcall-actor': workerSchema
    .optional()
    .describe('Name of the person who asks, for the history; without it the caller is a client.'),
  'rollcall-source': z.literal('command_line').optional().describe('Set by the command line.'),
  'correlation-id': idSchema.optional().describe('Kept with what happens, to find what belongs together.'),
  traceparent: z
    .string()
    .optional()
    .describe('W3C trace context, kept with the event. What is none is passed over.'),
}

const IF_MATCH = new RegExp(`^(?:\\*|${ETAG.source.slice(1, -1)})$`)

/** Those that some routes take. */
export const HEADERS = {
  'idempotency-key': idempotencyKeySchema
    .optional()
    .describe('The same key with the same request happens once and is answered the same; with another, 422.'),
  'if-match': z
    .string()
    .regex(IF_MATCH)
    .optional()
    .meta({
      description: 'ETag of the task; refused with 412 when its revision has changed since.',
      examples: ['"12"'],
    }),
  'if-none-match': z
    .string()
    .optional()
    .describe('ETags; 304 when the task still has one of them, with Prefer: wait at the end of the wait.'),
  prefer: z
    .string()
    .optional()
    .describe('wait=N waits up to N seconds for the task to be final, or to change with If-None-Match.'),
  'last-event-id': z
    .string()
    .optional()
    .describe('The id of the last message that was received: the stream goes on behind it.'),
} as const
export type HeaderName = keyof typeof HEADERS
