/** What clients and people ask about tasks. */
import { randomUUID } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import { z } from 'zod'
import type { Command, CommandEnvelope } from '../../domain/commands.ts'
import type { RecordedEvent } from '../../domain/events.ts'
import { NO_SIGNALS, type Signals } from '../../domain/signals.ts'
import type { Task } from '../../domain/task.ts'
import { refused } from '../../engine/answer.ts'
import { decodeEvent, streamOf } from '../../eventlog/codec.ts'
import type { StoredEvent } from '../../eventlog/event-log.ts'
import { readLag } from '../../projections/lag.ts'
import { type ListedTask, type ListPlace, listTasks } from '../../projections/task-list.ts'
import { taskOf } from '../answers.ts'
import { ifMatchRevision } from '../if-match.ts'
import { type Origin, originOf } from '../origin.ts'
import { type AppParts, BATCH_BODY_BYTES, type TypedApp } from '../parts.ts'
import { invalid, Problem } from '../problems.ts'
import {
  type BatchAnswer,
  batchMemberSchema,
  batchSchema,
  type History,
  historyQuerySchema,
  idempotencyKeySchema,
  listQuerySchema,
  noteSchema,
  reasonCommandSchema,
  submitSchema,
  type TaskList,
  type TaskRow,
  taskParamsSchema,
} from '../schemas/tasks.ts'
import { signalsOf, taskAnswer } from '../task-answer.ts'

export function taskRoutes(app: TypedApp, parts: AppParts): void {
  submitRoutes(app, parts)
  readRoutes(app, parts)
  commandRoutes(app, parts)
}

function submitRoutes(app: TypedApp, parts: AppParts): void {
  const { engine, submitter } = parts

  app.post('/v1/tasks', { schema: { body: submitSchema } }, async (request, reply) => {
    const key = idempotencyKey(request)
    const { envelope, fingerprintOf } = submitter.command(request.body, key, originOf(request))
    const { task, repeated } = taskOf(await engine.execute(envelope, fingerprintOf))
    return reply
      .code(repeated ? 200 : 201)
      .header('location', `/v1/tasks/${task.taskId}`)
      .header('etag', `"${task.revision}"`)
      .send(await taskAnswer(parts, task, repeated ? undefined : NO_SIGNALS))
  })

  app.post(
    '/v1/tasks/batch',
    { schema: { body: batchSchema }, bodyLimit: BATCH_BODY_BYTES },
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

function readRoutes(app: TypedApp, parts: AppParts): void {
  const { engine, log, pool } = parts

  app.get('/v1/tasks/:id', { schema: { params: taskParamsSchema } }, async (request, reply) => {
    const task = await readTask(parts, request.params.id)
    const signals = await signalsOf(parts, task)
    return reply.header('etag', etag(task, signals)).send(await taskAnswer(parts, task, signals))
  })

  app.get('/v1/tasks', { schema: { querystring: listQuerySchema } }, async request => {
    const { status, type, order, limit, cursor } = request.query
    const { rows, next } = await listTasks(pool, {
      statuses: status ?? null,
      type: type ?? null,
      order,
      limit,
      after: cursor === undefined ? null : decodeCursor(cursor),
    })
    // A list says how old it is, not how much it misses.
    const lag = await readLag(pool, log, 1)
    return {
      tasks: rows.map(listedView),
      nextCursor: next && encodeCursor(rows.at(-1)!),
      lagSeconds: Math.round(lag.seconds * 1000) / 1000,
    } satisfies TaskList
  })

  app.get(
    '/v1/tasks/:id/history',
    { schema: { params: taskParamsSchema, querystring: historyQuerySchema } },
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

function commandRoutes(app: TypedApp, parts: AppParts): void {
  const execute = async (request: FastifyRequest, taskId: string, command: Command, commandId?: string) => {
    const envelope: CommandEnvelope = {
      taskId,
      command,
      commandId: commandId ?? randomUUID(),
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
      { schema: { params: taskParamsSchema, body: reasonCommandSchema } },
      async request => {
        const { reason, commandId } = request.body
        return execute(request, request.params.id, { trigger, reason: reason ?? null }, commandId)
      },
    )
  }
  app.post(
    '/v1/tasks/:id/notes',
    { schema: { params: taskParamsSchema, body: noteSchema } },
    async request => {
      const { note, commandId } = request.body
      return execute(request, request.params.id, { trigger: 'NOTE', note }, commandId)
    },
  )
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

async function readTask({ engine }: Pick<AppParts, 'engine'>, id: string): Promise<Task> {
  const loaded = await engine.read(id)
  switch (loaded.kind) {
    case 'task':
      return loaded.task
    case 'absent':
      throw new Problem('not_found')
    case 'broken':
      return taskOf(refused('set_aside', null, loaded.error.message)).task
  }
}

/** @throws Problem set_aside for an event that cannot be read */
function decoded(stored: StoredEvent): RecordedEvent {
  try {
    return decodeEvent(stored)
  } catch (error) {
    throw new Problem('set_aside', (error as Error).message)
  }
}

/** Moves with every event and with every signal. */
function etag({ revision }: Task, { lease }: Signals): string {
  return lease?.lastHeartbeatAt ? `"${revision}.${lease.lastHeartbeatAt}"` : `"${revision}"`
}

/** Times of events are whole milliseconds, so the text keeps all of them; anything else must not reach the database. */
const cursorSchema = z.tuple([
  z.iso.datetime({ precision: 3 }).refine(text => Date.parse(text) >= 0),
  z.guid(),
])

const encodeCursor = (last: ListedTask): string =>
  Buffer.from(JSON.stringify([last.created_at.toISOString(), last.task_id])).toString('base64url')

function decodeCursor(cursor: string): ListPlace {
  try {
    const [createdAt, taskId] = cursorSchema.parse(
      JSON.parse(Buffer.from(cursor, 'base64url').toString('utf8')),
    )
    return { createdAt, taskId }
  } catch {
    throw new Problem('invalid_request', 'cursor: is not one that a list has given', [
      { path: 'cursor', message: 'is not one that a list has given' },
    ])
  }
}

function listedView(row: ListedTask): TaskRow {
  return {
    taskId: row.task_id,
    type: row.type,
    status: row.status,
    step: row.step,
    attempt: row.attempt,
    maxAttempts: row.max_attempts,
    run: row.run,
    priority: row.priority,
    worker: row.worker,
    resultUrl: row.result_url,
    errorCode: row.error_code,
    errorMessage: row.error_message,
    nextDeadline: row.timer && row.due_at ? { timer: row.timer, at: row.due_at.toISOString() } : null,
    createdAt: row.created_at.toISOString(),
    runAt: row.run_at.toISOString(),
    startedAt: row.started_at?.toISOString() ?? null,
    finishedAt: row.finished_at?.toISOString() ?? null,
    updatedAt: row.updated_at.toISOString(),
    revision: row.revision,
    hash: row.hash,
  }
}
