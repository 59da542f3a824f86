/** Pages of the read model for lists. */
import type { DeadlineTimer } from '../domain/deadlines.ts'
import type { Status } from '../domain/lifecycle.ts'
import type { Queryable } from './database.ts'
import { addFilter, Conditions, type TaskFilter } from './task-filter.ts'

export interface ListFilter extends TaskFilter {
  order: 'newest' | 'oldest'
  limit: number
  after: ListPlace | null
}

/**
 * The last row of a page: rows never change this key, so pages neither skip nor repeat while rows move. It is a place
 * among all rows, so it holds for any filter.
 */
export interface ListPlace {
  createdAt: string
  taskId: string
}

export interface ListedTask {
  task_id: string
  type: string
  status: Status
  step: string | null
  attempt: number
  max_attempts: number
  run: number
  priority: number
  tenant: string | null
  worker: string | null
  error_code: string | null
  error_message: string | null
  result_url: string | null
  created_at: Date
  run_at: Date
  started_at: Date | null
  finished_at: Date | null
  updated_at: Date
  revision: number
  hash: string
  /** Null in a row of an older version that is not mended yet. */
  labels: Record<string, string> | null
  correlation_id: string | null
  timer: DeadlineTimer | null
  due_at: Date | null
  created_key: string
}

/** One page and the place to go on from, null at the end. */
export async function listTasks(
  db: Queryable,
  filter: ListFilter,
): Promise<{ rows: ListedTask[]; next: ListPlace | null }> {
  const direction = filter.order === 'newest' ? 'DESC' : 'ASC'
  const asked = new Conditions()
  const limit = asked.place(filter.limit + 1)
  addFilter(asked, filter)
  if (filter.after) {
    const key = `(${asked.place(filter.after.createdAt)}::timestamptz, ${asked.place(filter.after.taskId)}::uuid)`
    asked.add(`(t.created_at, t.task_id) ${direction === 'DESC' ? '<' : '>'} ${key}`)
  }
  const found = await db.query<ListedTask>(
    `SELECT t.*, t.created_at::text AS created_key, d.timer, d.due_at
       FROM (SELECT * FROM rollcall.tasks t ${asked.where}
              ORDER BY t.created_at ${direction}, t.task_id ${direction} LIMIT ${limit}) t
       LEFT JOIN rollcall.deadlines d USING (task_id)
      ORDER BY t.created_at ${direction}, t.task_id ${direction}`,
    asked.values,
  )
  const rows = found.rows.slice(0, filter.limit)
  const last = rows.at(-1)
  const more = found.rows.length > filter.limit
  return { rows, next: more && last ? { createdAt: last.created_key, taskId: last.task_id } : null }
}
