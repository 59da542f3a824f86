/** One task as it stands now. */
import type { Signals } from '../../domain/signals.ts'
import type { Task } from '../../domain/task.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { readTask } from '../read-task.ts'
import { taskParamsSchema } from '../schemas/tasks.ts'
import { signalsOf, taskAnswer } from '../task-answer.ts'

export function taskRoute(app: TypedApp, parts: AppParts): void {
  app.get(
    '/v1/tasks/:id',
    { config: { scope: 'read' }, schema: { params: taskParamsSchema } },
    async (request, reply) => {
      const task = await readTask(parts, request.params.id)
      const signals = await signalsOf(parts, task)
      return reply.header('etag', etag(task, signals)).send(await taskAnswer(parts, task, signals))
    },
  )
}

/** Moves with every event and with every signal. */
function etag({ revision }: Task, { lease }: Signals): string {
  return lease?.lastHeartbeatAt ? `"${revision}.${lease.lastHeartbeatAt}"` : `"${revision}"`
}
