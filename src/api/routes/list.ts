/** Lists and counts of tasks, from the read model. */
import type { FastifyRequest } from 'fastify'
import { z } from 'zod'
import { readLag } from '../../projections/lag.ts'
import { Searches, SearchesBusyError, SearchTooSlowError } from '../../projections/searches.ts'
import { countTasks } from '../../projections/task-counts.ts'
import { isSearch, mayBeSlow, type TaskFilter } from '../../projections/task-filter.ts'
import { type ListedTask, type ListPlace, listTasks } from '../../projections/task-list.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { Problem } from '../problems.ts'
import { tenantFor } from '../reach.ts'
import {
  type CountsAnswer,
  countsAnswerSchema,
  countsQuerySchema,
  type FilterQuery,
  listQuerySchema,
} from '../schemas/lists.ts'
import { type TaskList, type TaskRow, taskListSchema } from '../schemas/tasks.ts'

export function listRoutes(app: TypedApp, parts: AppParts): void {
  const { log, pool } = parts
  const searches = new Searches(pool)

  app.get(
    '/v1/tasks',
    {
      config: { scope: 'read' },
      schema: { querystring: listQuerySchema, response: { 200: taskListSchema } },
    },
    async request => {
      const { order, limit, cursor, ...query } = request.query
      const filter = filterOf(request, query)
      const after = cursor === undefined ? null : decodeCursor(cursor)
      const listed = { ...filter, order, limit, after }
      const { rows, next } = await (isSearch(filter)
        ? searches.search(db => listTasks(db, listed))
        : searches.look(db => listTasks(db, listed))
      ).catch(refuse(filter))
      return {
        tasks: rows.map(listedView),
        nextCursor: next && encodeCursor(rows.at(-1)!),
        lagSeconds: await lagSeconds(),
      } satisfies TaskList
    },
  )

  app.get(
    '/v1/tasks/counts',
    {
      config: { scope: 'read' },
      schema: { querystring: countsQuerySchema, response: { 200: countsAnswerSchema } },
    },
    async request => {
      const filter = filterOf(request, request.query)
      const { counts, countedAt } = await searches.search(db => countTasks(db, filter)).catch(refuse(filter))
      return {
        counts,
        countedAt: countedAt.toISOString(),
        lagSeconds: await lagSeconds(),
      } satisfies CountsAnswer
    },
  )

  /** A list says how old it is, not how much it misses. */
  async function lagSeconds(): Promise<number> {
    const { seconds } = await readLag(pool, log, 1)
    return Math.round(seconds * 1000) / 1000
  }
}

/** @throws Problem other_tenant */
function filterOf({ caller }: FastifyRequest, { status, label, tenant, ...same }: FilterQuery): TaskFilter {
  return {
    ...same,
    statuses: status,
    labels: label,
    tenant: tenantFor(caller, tenant) ?? undefined,
  }
}

/** Where one index answers the question in order, the question is not at fault: the database is busy. */
const refuse =
  (filter: TaskFilter) =>
  (error: Error): never => {
    if (error instanceof SearchesBusyError) throw new Problem('overloaded', 'Other searches are under way.')
    if (!(error instanceof SearchTooSlowError)) throw error
    throw new Problem(mayBeSlow(filter) ? 'search_too_slow' : 'read_model_unavailable')
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
    tenant: row.tenant,
    worker: row.worker,
    labels: row.labels ?? {},
    resultUrl: row.result_url,
    errorCode: row.error_code,
    errorMessage: row.error_message,
    correlationId: row.correlation_id,
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
