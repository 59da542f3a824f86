/** Rows that were written before lists knew labels and correlations: they are folded again, a few at a time. */
import { TaskCache } from '../engine/task-cache.ts'
import { TaskReader } from '../engine/task-reader.ts'
import type { Source } from './examine.ts'
import { refoldEach } from './verify.ts'

/**
 * Gives some of those rows what their streams say. A stream that cannot be folded leaves its row as it is.
 *
 * @param after the last task of the step before, null to begin with the first
 * @returns where to go on, null after the last
 */
export async function labelRows(
  { pool, log }: Source,
  after: string | null,
  limit: number,
): Promise<string | null> {
  const { rows } = await pool.query<{ task_id: string }>({
    name: 'unlabelled',
    text: `SELECT task_id FROM rollcall.tasks t
            WHERE labels IS NULL AND task_id > $1
              AND NOT EXISTS (SELECT FROM rollcall.set_aside s WHERE s.task_id = t.task_id)
            ORDER BY task_id LIMIT $2`,
    values: [after ?? '00000000-0000-0000-0000-000000000000', limit],
  })
  if (rows.length === 0) return null
  // With a cache of its own, so that the tasks in use keep their places in the shared one.
  const reader = new TaskReader(log, new TaskCache())
  const taskIds = rows.map(row => row.task_id)
  await refoldEach(pool, ids => reader.readMany(ids), taskIds)
  return rows.length < limit ? null : taskIds.at(-1)!
}
