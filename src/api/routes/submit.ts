/** Tasks come in: one by one, or many at once. */
import type { FastifyRequest } from 'fastify'
import { NO_SIGNALS } from '../../domain/signals.ts'
import { taskOf } from '../answers.ts'
import { type Origin, originOf } from '../origin.ts'
import { type AppParts, BATCH_BODY_BYTES, type TypedApp } from '../parts.ts'
import { invalid, Problem } from '../problems.ts'
import {
  type BatchAnswer,
  batchMemberSchema,
  batchSchema,
  idempotencyKeySchema,
  submitSchema,
} from '../schemas/tasks.ts'
import { taskAnswer } from '../task-answer.ts'

export function submitRoutes(app: TypedApp, parts: AppParts): void {
  const { engine, submitter } = parts

  app.post(
    '/v1/tasks',
    { config: { scope: 'submit' }, schema: { body: submitSchema } },
    async (request, reply) => {
      const key = idempotencyKey(request)
      const { envelope, fingerprintOf } = submitter.command(request.body, key, originOf(request))
      const { task, repeated } = taskOf(await engine.execute(envelope, fingerprintOf))
      return reply
        .code(repeated ? 200 : 201)
        .header('location', `/v1/tasks/${task.taskId}`)
        .header('etag', `"${task.revision}"`)
        .send(await taskAnswer(parts, task, repeated ? undefined : NO_SIGNALS))
    },
  )

  app.post(
    '/v1/tasks/batch',
    { config: { scope: 'submit' }, schema: { body: batchSchema }, bodyLimit: BATCH_BODY_BYTES },
    async request => {
      const origin = originOf(request)
      const results = await Promise.all(request.body.tasks.map(member => submitMember(member, origin)))
      return { results } satisfies BatchAnswer
    },
  )

  async function submitMember(member: unknown, origin: Origin): Promise<BatchAnswer['results'][number]> {
    try {
      const keyed = batchMemberSchema.safeParse(member)
      if (!keyed.success) throw invalid(keyed.error)
      const { idempotencyKey: key, ...rest } = keyed.data
      const body = submitSchema.safeParse(rest)
      if (!body.success) throw invalid(body.error)
      const { envelope, fingerprintOf } = submitter.command(body.data, key ?? null, origin)
      const { task, repeated } = taskOf(await engine.execute(envelope, fingerprintOf))
      return {
        kind: repeated ? 'repeated' : 'accepted',
        taskId: task.taskId,
        status: task.status,
        revision: task.revision,
      }
    } catch (error) {
      if (!(error instanceof Problem)) throw error
      const errors = error.errors.length > 0 ? { errors: [...error.errors] } : {}
      return { kind: 'refused', code: error.code, message: error.message, ...errors }
    }
  }
}

function idempotencyKey(request: FastifyRequest): string | null {
  const header = request.headers['idempotency-key']
  if (header === undefined) return null
  const key = idempotencyKeySchema.safeParse(header)
  if (!key.success)
    throw new Problem('invalid_request', `Idempotency-Key ${key.error.issues[0]?.message}`, [
      { path: 'Idempotency-Key', message: key.error.issues[0]?.message ?? 'is not valid' },
    ])
  return key.data
}
