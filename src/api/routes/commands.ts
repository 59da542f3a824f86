/** What people ask of a task: cancel, retry, a note. */
import type { FastifyRequest } from 'fastify'
import type { Command, CommandEnvelope } from '../../domain/commands.ts'
import { taskOf } from '../answers.ts'
import { commandIdOf } from '../idempotency-key.ts'
import { ifMatchRevision } from '../if-match.ts'
import { originOf } from '../origin.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { noteSchema, reasonCommandSchema, taskParamsSchema, taskViewSchema } from '../schemas/tasks.ts'
import { taskAnswer } from '../task-answer.ts'

export function commandRoutes(app: TypedApp, parts: AppParts): void {
  const execute = async (request: FastifyRequest, taskId: string, command: Command, commandId?: string) => {
    const envelope: CommandEnvelope = {
      taskId,
      command,
      commandId: commandIdOf(request, commandId),
      ...originOf(request),
      causationId: null,
      ifRevision: ifMatchRevision(request.headers['if-match']),
    }
    return taskAnswer(parts, taskOf(await parts.engine.execute(envelope)).task)
  }
  for (const [path, trigger] of [
    ['cancel', 'CANCEL'],
    ['retry', 'RETRY'],
  ] as const) {
    app.post(
      `/v1/tasks/:id/${path}`,
      {
        config: { scope: 'operate' },
        schema: { params: taskParamsSchema, body: reasonCommandSchema, response: { 200: taskViewSchema } },
      },
      async request => {
        const { reason, commandId } = request.body
        return execute(request, request.params.id, { trigger, reason: reason ?? null }, commandId)
      },
    )
  }
  app.post(
    '/v1/tasks/:id/notes',
    {
      config: { scope: 'operate' },
      schema: { params: taskParamsSchema, body: noteSchema, response: { 200: taskViewSchema } },
    },
    async request => {
      const { note, commandId } = request.body
      return execute(request, request.params.id, { trigger: 'NOTE', note }, commandId)
    },
  )
}
