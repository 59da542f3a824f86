/** Who asks and from where: what the key says, and what the request says beside it. */
import type { FastifyRequest } from 'fastify'
import { z } from 'zod'
import type { Actor, Source } from '../domain/events.ts'
import { LIMITS } from '../domain/limits.ts'
import { invalid } from './problems.ts'
import { idSchema, workerSchema } from './schemas/common.ts'

export interface Origin {
  actor: Actor
  source: Source
  correlationId: string | null
  trace: string | null
}

const headersSchema = z.object({
  /** A person's name for the history; nothing vouches for it but the key that it came with. */
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
    actor: actorOf(person ?? null, request.caller.key),
    source: source ?? 'http',
    correlationId: correlationId ?? null,
    // A trace header that is not one is no reason to refuse a task.
    trace: traceparent && TRACEPARENT.test(traceparent) ? traceparent : null,
  }
}

function actorOf(person: string | null, key: string | null): Actor {
  if (person === null) return { kind: 'client', id: key ?? 'anonymous' }
  if (key === null) return { kind: 'person', id: person }
  // Both have to fit where one does; what vouches for the name is kept whole.
  const via = ` via ${key}`
  const name = person.slice(0, LIMITS.workerLength - via.length).replace(/[\uD800-\uDBFF]$/, '')
  return { kind: 'person', id: name + via }
}
