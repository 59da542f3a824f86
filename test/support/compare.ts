/** Promise 4, checked: the read model is the fold. */
import type { Pool } from 'pg'
import { type Deadline, isDelayed, nextDeadline } from '../../src/domain/deadlines.ts'
import { isOpen, type Task } from '../../src/domain/task.ts'
import { auditLog } from '../../src/engine/audit.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { deadlineRow } from '../../src/projections/deadlines.ts'
import { taskRow } from '../../src/projections/tasks.ts'

type Row = Record<string, unknown>

/**
 * Compares every row of `tasks` and `deadlines` with the fold of its stream.
 *
 * @returns what differs, one line each; streams that cannot be folded have no rows to compare and are left out
 */
export async function differences(pool: Pool, log: EventLog): Promise<string[]> {
  const [tasks, deadlines, { tasks: audited }] = await Promise.all([
    rowsById(pool, 'tasks'),
    rowsById(pool, 'deadlines'),
    auditLog(log, null),
  ])
  const found: string[] = []
  for (const [taskId, { task }] of audited) {
    if (!task) continue
    compare(found, `tasks ${taskId}`, tasks.get(taskId), [taskRow(task)])
    compare(found, `deadlines ${taskId}`, deadlines.get(taskId), armedRows(task))
  }
  for (const taskId of new Set([...tasks.keys(), ...deadlines.keys()]))
    if (!audited.has(taskId)) found.push(`${taskId} is in no stream`)
  return found
}

/** The rows that may stand there: once a task's not_before has fired, the timers arm what comes after it. */
function armedRows(task: Task): Row[] {
  if (!isOpen(task)) return []
  const armed = [nextDeadline(task), isDelayed(task) ? nextDeadline(task, 'not_before') : null]
  return armed.filter((next): next is Deadline => next !== null).map(next => deadlineRow(task, next))
}

function compare(found: string[], what: string, row: Row | undefined, allowed: readonly Row[]): void {
  const is = row && JSON.stringify(row)
  const texts = allowed.map(one => JSON.stringify(sorted(one)))
  if (is === undefined ? texts.length > 0 : !texts.includes(is))
    found.push(`${what}: is ${is ?? 'missing'}, should be ${texts.join(' or ') || 'absent'}`)
}

async function rowsById(pool: Pool, table: 'tasks' | 'deadlines'): Promise<Map<string, Row>> {
  const { rows } = await pool.query<Row>(`SELECT * FROM rollcall.${table}`)
  return new Map(rows.map(row => [row.task_id as string, sorted(row)]))
}

/** Keys in one order, dates as the rows are written. */
const sorted = (row: Row): Row =>
  Object.fromEntries(
    Object.entries(row)
      .map(([key, value]) => [key, value instanceof Date ? value.toISOString() : value] as const)
      .sort(([one], [other]) => (one < other ? -1 : 1)),
  )
