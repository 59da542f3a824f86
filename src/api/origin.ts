/** Who asks and from where, as the request says it; access keys will say it better one day. */
import type { FastifyRequest } from 'fastify'
import { z } from 'zod'
import type { Actor, Source } from '../domain/events.ts'
import { invalid } from './problems.ts'
import { idSchema, workerSchema } from './schemas/common.ts'

export interface Origin {
  actor: Actor
  source: Source
  correlationId: string | null
  trace: string | null
}

const headersSchema = z.object({
  /** A person's name for the history; without it the caller is an anonymous client. */
  'rollcall-actor': workerSchema.optional(),
  'rollcall-source': z.literal('command_line').optional(),
  'correlation-id': idSchema.optional(),
  traceparent: z.string().optional(),
})

const TRACEPARENT = /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/

export function originOf(request: FastifyRequest): Origin {
  const headers = headersSchema.safeParse(request.headers)
  if (!headers.success) throw invalid(headers.error)
  const {
    'rollcall-actor': person,
    'rollcall-source': source,
    'correlation-id': correlationId,
    traceparent,
  } = headers.data
  return {
    actor: person ? { kind: 'person', id: person } : { kind: 'client', id: 'anonymous' },
    source: source ?? 'http',
    correlationId: correlationId ?? null,
    // A trace header that is not one is no reason to refuse a task.
    trace: traceparent && TRACEPARENT.test(traceparent) ? traceparent : null,
  }
}
