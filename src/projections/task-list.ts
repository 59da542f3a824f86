/** Pages of the read model for lists. */
import type { Pool } from 'pg'
import type { Status } from '../domain/lifecycle.ts'

export interface ListFilter {
  statuses: readonly Status[] | null
  type: string | null
  order: 'newest' | 'oldest'
  limit: number
  after: ListPlace | null
}

/** The last row of a page: rows never change this key, so pages neither skip nor repeat while rows move. */
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
  timer: string | null
  due_at: Date | null
  created_key: string
}

/** One page and the place to go on from, null at the end. */
export async function listTasks(
  pool: Pool,
  filter: ListFilter,
): Promise<{ rows: ListedTask[]; next: ListPlace | null }> {
  const direction = filter.order === 'newest' ? 'DESC' : 'ASC'
  const values: unknown[] = [filter.limit + 1]
  const conditions: string[] = []
  const add = (condition: (place: string) => string, value: unknown): void => {
    values.push(value)
    conditions.push(condition(`$${values.length}`))
  }
  if (filter.statuses?.length === 1) add(place => `t.status = ${place}`, filter.statuses[0])
  else if (filter.statuses) add(place => `t.status = ANY (${place}::text[])`, filter.statuses)
  if (filter.type !== null) add(place => `t.type = ${place}`, filter.type)
  if (filter.after) {
    values.push(filter.after.createdAt, filter.after.taskId)
    const key = `($${values.length - 1}::timestamptz, $${values.length}::uuid)`
    conditions.push(`(t.created_at, t.task_id) ${direction === 'DESC' ? '<' : '>'} ${key}`)
  }
  const where = conditions.length > 0 ? `WHERE ${conditions.join(' AND ')}` : ''
  const found = await pool.query<ListedTask>(
    `SELECT t.*, t.created_at::text AS created_key, d.timer, d.due_at
       FROM (SELECT * FROM rollcall.tasks t ${where}
              ORDER BY t.created_at ${direction}, t.task_id ${direction} LIMIT $1) t
       LEFT JOIN rollcall.deadlines d USING (task_id)
      ORDER BY t.created_at ${direction}, t.task_id ${direction}`,
    values,
  )
  const rows = found.rows.slice(0, filter.limit)
  const last = rows.at(-1)
  const more = found.rows.length > filter.limit
  return { rows, next: more && last ? { createdAt: last.created_key, taskId: last.task_id } : null }
}
