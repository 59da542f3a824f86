/** What a task was asked and refused. It comes from the work state, so the history does not depend on it. */
import type { KeptRefusal } from '../../projections/refusals.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { Problem } from '../problems.ts'
import { type Refusal, type TaskRefusals, taskRefusalsSchema } from '../schemas/refusals.ts'
import { taskParamsSchema } from '../schemas/tasks.ts'

export function refusalRoutes(app: TypedApp, parts: AppParts): void {
  app.get(
    '/v1/tasks/:id/refusals',
    {
      config: { scope: 'audit' },
      schema: { params: taskParamsSchema, response: { 200: taskRefusalsSchema } },
    },
    async request => {
      const taskId = request.params.id
      const { count, first, last } = await parts.refusals.read(taskId)
      if (count === 0 && (await parts.engine.read(taskId)).kind === 'absent') throw new Problem('not_found')
      return { taskId, count, first: first.map(view), last: last.map(view) } satisfies TaskRefusals
    },
  )
}

const view = ({
  number,
  at,
  revision,
  trigger,
  code,
  message,
  actor,
  source,
  commandId,
}: KeptRefusal): Refusal => ({
  number,
  at: at.toISOString(),
  revision,
  trigger,
  code,
  message,
  actor,
  source,
  commandId,
})
