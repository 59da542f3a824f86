/** Lists of tasks, from the read model. */
import { z } from 'zod'
import { readLag } from '../../projections/lag.ts'
import { type ListedTask, type ListPlace, listTasks } from '../../projections/task-list.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { Problem } from '../problems.ts'
import { listQuerySchema, type TaskList, type TaskRow } from '../schemas/tasks.ts'

export function listRoutes(app: TypedApp, parts: AppParts): void {
  const { log, pool } = parts
  app.get(
    '/v1/tasks',
    { config: { scope: 'read' }, schema: { querystring: listQuerySchema } },
    async request => {
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
    },
  )
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
