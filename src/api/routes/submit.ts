/** Tasks come in: one by one, or many at once. */
import { NO_SIGNALS } from '../../domain/signals.ts'
import type { Caller } from '../access.ts'
import { taskOf } from '../answers.ts'
import { idempotencyKey, refusedKey } from '../idempotency-key.ts'
import { type Origin, originOf } from '../origin.ts'
import { type AppParts, BATCH_BODY_BYTES, type TypedApp } from '../parts.ts'
import { invalid, Problem } from '../problems.ts'
import { tenantFor } from '../reach.ts'
import {
  type BatchAnswer,
  batchAnswerSchema,
  batchMemberSchema,
  batchSchema,
  submitSchema,
  taskViewSchema,
} from '../schemas/tasks.ts'
import { batchDigest, type SubmitCommand, type SubmitKey } from '../submit.ts'
import { taskAnswer } from '../task-answer.ts'
import { memberKey } from '../task-id.ts'

type Result = BatchAnswer['results'][number]
type Prepared = SubmitCommand | Extract<Result, { kind: 'refused' }>

export function submitRoutes(app: TypedApp, parts: AppParts): void {
  const { engine, submitter } = parts

  app.post(
    '/v1/tasks',
    {
      config: { scope: 'submit' },
      schema: { body: submitSchema, response: { 200: taskViewSchema, 201: taskViewSchema } },
    },
    async (request, reply) => {
      const { body, caller } = request
      const key = idempotencyKey(request)
      const { envelope, fingerprintOf } = submitter.command(
        body,
        tenantFor(caller, body.tenant),
        key === null ? null : { route: 'tasks', key },
        originOf(request),
      )
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
    {
      config: { scope: 'submit' },
      schema: { body: batchSchema, response: { 200: batchAnswerSchema } },
      bodyLimit: BATCH_BODY_BYTES,
    },
    async request => {
      const origin = originOf(request)
      const { tasks } = request.body
      const key = idempotencyKey(request)
      if (key === null) {
        const prepared = tasks.map(member => prepare(member, null, request.caller, origin))
        return { results: await Promise.all(prepared.map(submit)) } satisfies BatchAnswer
      }
      if (tasks.some(hasKey)) throw refusedKey('is for the whole batch; its members have keys of their own')
      const batch = batchDigest(tasks)
      const prepared = tasks.map((member, index) =>
        prepare(member, { route: 'batch', key: memberKey(key, index), batch }, request.caller, origin),
      )
      return { results: await submitAsOne(prepared) } satisfies BatchAnswer
    },
  )

  /** Checks a member; one that does not fit is refused alone. */
  function prepare(member: unknown, key: SubmitKey | null, caller: Caller, origin: Origin): Prepared {
    try {
      const checked = batchMemberSchema.safeParse(member)
      if (!checked.success) throw invalid(checked.error)
      const { idempotencyKey: own, ...body } = checked.data
      const tenant = tenantFor(caller, body.tenant)
      return submitter.command(body, tenant, own === undefined ? key : { route: 'tasks', key: own }, origin)
    } catch (error) {
      return refusalOf(error)
    }
  }

  async function submit(prepared: Prepared): Promise<Result> {
    if ('kind' in prepared) return prepared
    try {
      const { task, repeated } = taskOf(await engine.execute(prepared.envelope, prepared.fingerprintOf))
      return {
        kind: repeated ? 'repeated' : 'accepted',
        taskId: task.taskId,
        status: task.status,
        revision: task.revision,
      }
    } catch (error) {
      return refusalOf(error)
    }
  }

  /**
   * One member goes ahead: where its key stands for another batch, nothing of this one is stored.
   *
   * @throws Problem idempotency_key_reused
   */
  async function submitAsOne(prepared: readonly Prepared[]): Promise<Result[]> {
    const ahead = prepared.findIndex(one => !('kind' in one))
    if (ahead < 0) return Promise.all(prepared.map(submit))
    const first = await submit(prepared[ahead]!)
    if (first.kind === 'refused' && first.code === 'idempotency_key_reused')
      throw new Problem('idempotency_key_reused')
    return Promise.all(prepared.map((one, index) => (index === ahead ? first : submit(one))))
  }
}

const hasKey = (member: unknown): boolean =>
  typeof member === 'object' && member !== null && 'idempotencyKey' in member

function refusalOf(error: unknown): Extract<Result, { kind: 'refused' }> {
  if (!(error instanceof Problem)) throw error
  const errors = error.errors.length > 0 ? { errors: [...error.errors] } : {}
  return { kind: 'refused', code: error.code, message: error.message, ...errors }
}
