/** The events of a task, as they are stored. */
import type { RecordedEvent } from '../../domain/events.ts'
import { decodeEvent, streamOf } from '../../eventlog/codec.ts'
import type { StoredEvent } from '../../eventlog/event-log.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { Problem } from '../problems.ts'
import { readTask } from '../read-task.ts'
import { type History, historyQuerySchema, historySchema, taskParamsSchema } from '../schemas/tasks.ts'

export function historyRoute(app: TypedApp, { engine, log }: AppParts): void {
  app.get(
    '/v1/tasks/:id/history',
    {
      config: { scope: 'audit' },
      schema: { params: taskParamsSchema, querystring: historyQuerySchema, response: { 200: historySchema } },
    },
    async request => {
      const { id } = request.params
      const { from, limit } = request.query
      const slice = await log.readStream(streamOf(id), from, limit)
      if (slice.events.length === 0) await readTask({ engine }, id)
      return {
        taskId: id,
        next: slice.next,
        events: slice.events.map(stored => {
          const { metadata, hash, event } = decoded(stored)
          const { at, actor, source, commandId, correlationId, causationId, prevHash } = metadata
          return {
            revision: stored.revision,
            id: stored.id,
            type: stored.type,
            version: stored.version,
            at: new Date(at).toISOString(),
            actor,
            source,
            commandId,
            correlationId,
            causationId,
            prevHash,
            hash,
            data: event.data,
          }
        }),
      } satisfies History
    },
  )
}

/** @throws Problem set_aside for an event that cannot be read */
function decoded(stored: StoredEvent): RecordedEvent {
  try {
    return decodeEvent(stored)
  } catch (error) {
    throw new Problem('set_aside', (error as Error).message)
  }
}
