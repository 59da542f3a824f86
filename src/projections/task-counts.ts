/** How many tasks there are of each status, without reading more rows for it than a bound. */
import { STATUSES, type Status } from '../domain/lifecycle.ts'
import type { Queryable } from './database.ts'
import { addFilter, Conditions, type TaskFilter } from './task-filter.ts'

/** Of each status; more are not counted. */
export const COUNTED_MAX = 100_000

export interface Count {
  count: number
  /** False where there are more. */
  exact: boolean
}

export interface TaskCounts {
  counts: Record<Status, Count>
  countedAt: Date
}

/** Counts all statuses in one snapshot; one that the filter leaves out counts 0. */
export async function countTasks(
  db: Queryable,
  { statuses = STATUSES, ...filter }: TaskFilter,
  most = COUNTED_MAX,
): Promise<TaskCounts> {
  const asked = new Conditions()
  const of = asked.place(statuses)
  const limit = asked.place(most + 1)
  asked.add('t.status = s.status')
  addFilter(asked, filter)
  const { rows } = await db.query<{ now: Date; status: Status | null; count: number }>(
    `SELECT now() AS now, s.status,
            (SELECT count(*)::int FROM (SELECT FROM rollcall.tasks t ${asked.where} LIMIT ${limit}) found) AS count
       FROM (SELECT 1) one LEFT JOIN (SELECT DISTINCT unnest(${of}::text[]) AS status) s ON true`,
    asked.values,
  )
  const counted = new Map(rows.map(({ status, count }) => [status, count]))
  const countOf = (status: Status): Count => {
    const count = counted.get(status) ?? 0
    return { count: Math.min(count, most), exact: count <= most }
  }
  return {
    counts: Object.fromEntries(STATUSES.map(status => [status, countOf(status)])) as Record<Status, Count>,
    countedAt: rows[0]!.now,
  }
}
