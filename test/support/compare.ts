/** Promise 4, checked: the read model is the fold. */
import type { Pool } from 'pg'
import { auditLog } from '../../src/engine/audit.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { examinePage, examineTasks } from '../../src/projections/examine.ts'
import type { Examined } from '../../src/projections/findings.ts'

const PAGE = 500

/**
 * Compares every row of `tasks` and `deadlines` with the fold of its stream, and looks for streams without rows.
 *
 * @returns what differs, one line each; streams that cannot be folded are left out where their tasks are set aside
 */
export async function differences(pool: Pool, log: EventLog): Promise<string[]> {
  const source = { pool, log }
  const { tasks } = await auditLog(log, null)
  const streams = new Set(tasks.keys())
  const { rows } = await pool.query<{ task_id: string; reason: string }>('SELECT * FROM rollcall.set_aside')
  // One that could be folded stands still for another reason.
  const found = rows
    .filter(row => tasks.get(row.task_id)?.task)
    .map(row => `${row.task_id} set_aside: ${row.reason}`)
  const add = ({ findings }: Examined) =>
    found.push(...findings.map(({ taskId, kind, detail }) => `${taskId} ${kind}: ${detail}`))
  for (let after: string | null = null; ; ) {
    const page: Examined = await examinePage(source, after, PAGE)
    add(page)
    for (const taskId of page.taskIds) streams.delete(taskId)
    if (page.taskIds.length < PAGE) break
    after = page.taskIds.at(-1)!
  }
  const withoutRows = [...streams]
  for (let at = 0; at < withoutRows.length; at += PAGE)
    add(await examineTasks(source, withoutRows.slice(at, at + PAGE)))
  return found
}
