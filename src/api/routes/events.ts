/** What happens to tasks as it happens, as Server-Sent Events: of one task, or of all that a filter names. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import type { Filter } from '../../engine/changes.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { tenantFor } from '../reach.ts'
import { type EventsQuery, eventsQuerySchema, taskEventsQuerySchema } from '../schemas/streams.ts'
import { taskParamsSchema } from '../schemas/tasks.ts'
import type { SignalWatch } from '../signal-watch.ts'
import { FilterStream } from '../streams/filter-stream.ts'
import { TaskMessages } from '../streams/messages.ts'
import type { StreamParts } from '../streams/parts.ts'
import { type Admission, Streams } from '../streams/streams.ts'
import { TaskStream } from '../streams/task-stream.ts'
import { Turns } from '../streams/turns.ts'

const STREAMED = {
  description: 'Server-Sent Events.',
  content: { 'text/event-stream': { schema: z.string() } },
}
const OVER = z.null().describe('Nothing more will come of this task; a browser stays away.')

/** How many read the past of the log at once. */
const REPLAYS_AT_ONCE = 4
/** A stream has no HEAD: there would be no end to what it says about. */
const STREAM = { config: { scope: 'read', stream: true }, exposeHeadRoute: false } as const

export function eventRoutes(app: TypedApp, parts: AppParts, signalWatch: SignalWatch): void {
  const streams = new Streams(parts)
  // An application does not close while a stream is open (PITFALLS H1).
  app.addHook('preClose', async () => streams.stop())
  const shared: StreamParts = {
    app: parts,
    messages: new TaskMessages(),
    signalWatch,
    replays: new Turns(REPLAYS_AT_ONCE),
  }

  app.get(
    '/v1/tasks/:id/events',
    {
      ...STREAM,
      schema: {
        params: taskParamsSchema,
        querystring: taskEventsQuerySchema,
        response: { 200: STREAMED, 204: OVER },
      },
    },
    async (request, reply) => {
      const after = lastEventIdOf(request, request.query.lastEventId)
      const { id } = request.params
      return admitted(reply, admission => new TaskStream(shared, id).begin(after, admission, reply))
    },
  )

  app.get(
    '/v1/events',
    { ...STREAM, schema: { querystring: eventsQuerySchema, response: { 200: STREAMED } } },
    async (request, reply) => {
      const { lastEventId, ...query } = request.query
      const after = lastEventIdOf(request, lastEventId)
      const tenant = tenantFor(request.caller, query.tenant)
      const filter = filterOf({ ...query, tenant })
      return admitted(reply, admission => new FilterStream(shared, filter).begin(after, admission, reply))
    },
  )

  /** What comes to nothing gives its place back; what fails when it is open already is cut, and its client comes back. */
  async function admitted(reply: FastifyReply, begin: (admission: Admission) => Promise<void>) {
    const admission = streams.admit()
    try {
      await begin(admission)
    } catch (error) {
      admission.leave()
      if (!reply.sent) throw error
      parts.logger.error({ err: error }, 'a stream failed')
      reply.raw.destroy()
    }
    return reply
  }
}

/** What a browser sends when it comes back is newer than what its address says. */
const lastEventIdOf = ({ headers }: FastifyRequest, asked: string | undefined): string | null =>
  headers['last-event-id']?.toString() || asked || null

type Wanted = Omit<EventsQuery, 'lastEventId' | 'tenant'> & { tenant: string | null }

function filterOf({ type, status, label, tenant }: Wanted): Filter {
  const labels = Object.entries(label ?? {}).sort()
  const statuses = status && new Set<string>(status)
  return {
    key: JSON.stringify([type, statuses && [...statuses].sort(), labels, tenant]),
    matches: task =>
      (type === undefined || task.type === type) &&
      (!statuses || statuses.has(task.status)) &&
      (tenant === null || task.tenant === tenant) &&
      labels.every(([name, value]) => Object.hasOwn(task.labels, name) && task.labels[name] === value),
  }
}
