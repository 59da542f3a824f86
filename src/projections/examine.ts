/** Promise 4, checked for some tasks: their rows are the fold of their streams, and their streams are whole. */
import type { Pool } from 'pg'
import { canonicalJson } from '../domain/canonical-json.ts'
import { type Deadline, isDelayed, nextDeadline } from '../domain/deadlines.ts'
import type { Json } from '../domain/events.ts'
import { evolve } from '../domain/evolve.ts'
import { isOpen, type Task } from '../domain/task.ts'
import { cutText, storableText } from '../domain/text.ts'
import { decodeEvent, streamOf } from '../eventlog/codec.ts'
import type { EventLog, StoredEvent } from '../eventlog/event-log.ts'
import { deadlineRow } from './deadlines.ts'
import type { Examined, Finding, FindingKind } from './findings.ts'
import { taskRow } from './tasks.ts'

/** Where rows and streams are read. */
export interface Source {
  pool: Pool
  log: EventLog
}

/** Texts of users are in it. */
const DETAIL_BYTES = 600
/** Streams read at once: a stream with all its payloads may weigh a megabyte and more. */
const STREAMS_AT_ONCE = 50

type Row = Record<string, unknown>

interface Rows {
  task_id: string
  task: Row | null
  deadline: Row | null
  set_aside: boolean
}

/** Rows of one snapshot. As JSON, so that every column there is gets compared. */
const ROWS = `
  SELECT p.task_id, to_json(t) AS task, to_json(d) AS deadline, s.task_id IS NOT NULL AS set_aside
    FROM asked p
    LEFT JOIN rollcall.tasks t USING (task_id)
    LEFT JOIN rollcall.deadlines d USING (task_id)
    LEFT JOIN rollcall.set_aside s USING (task_id)
   ORDER BY p.task_id`

/**
 * Examines a page of the tasks that have rows, in the order of their ids.
 *
 * @param after the last id of the page before, null at the start
 * @param limit fewer tasks than this are the last page
 */
export async function examinePage(source: Source, after: string | null, limit: number): Promise<Examined> {
  const { rows } = await source.pool.query<Rows>({
    name: 'examine-page',
    // Deadlines are looked at by themselves too: one that belongs to no task is found by nothing else.
    text: `WITH asked AS (
             (SELECT task_id FROM rollcall.tasks WHERE task_id > $1 ORDER BY task_id LIMIT $2)
             UNION
             (SELECT task_id FROM rollcall.deadlines WHERE task_id > $1 ORDER BY task_id LIMIT $2)
             ORDER BY task_id LIMIT $2)
           ${ROWS}`,
    values: [after ?? '00000000-0000-0000-0000-000000000000', limit],
  })
  return examineRows(source, rows)
}

/** Examines these tasks, whether they have rows or not. */
export async function examineTasks(source: Source, taskIds: readonly string[]): Promise<Examined> {
  const { rows } = await source.pool.query<Rows>({
    name: 'examine-tasks',
    text: `WITH asked AS (SELECT DISTINCT unnest($1::uuid[]) AS task_id) ${ROWS}`,
    values: [taskIds],
  })
  return examineRows(source, rows)
}

/** Rows are read before their streams, which only grow: a row is never ahead of its stream by that. */
async function examineRows({ log }: Source, rows: readonly Rows[]): Promise<Examined> {
  const findings: Finding[] = []
  for (let from = 0; from < rows.length; from += STREAMS_AT_ONCE) {
    const some = rows.slice(from, from + STREAMS_AT_ONCE)
    const streams = await log.readStreams(
      some.map(row => ({ stream: streamOf(row.task_id), fromRevision: 0 })),
    )
    for (const row of some)
      for (const [kind, text] of faults(row, streams.get(streamOf(row.task_id)) ?? []))
        findings.push({ taskId: row.task_id, kind, detail: cutText(storableText(text), DETAIL_BYTES) })
  }
  return { taskIds: rows.map(row => row.task_id), findings }
}

type Fault = readonly [kind: FindingKind, detail: string]

function faults(rows: Rows, events: readonly StoredEvent[]): Fault[] {
  const { task: row, deadline, set_aside: setAside } = rows
  if (events.length === 0) {
    const where = [row && 'tasks', deadline && 'deadlines'].filter(Boolean).join(' and ')
    return where === '' ? [] : [['no_stream', `it stands in ${where}, and no stream is its own`]]
  }
  const revision = row === null ? null : Number(row.revision)
  const folded = foldTo(rows.task_id, events, revision)
  // What is set aside waits for a person already.
  const found: Fault[] = folded.fault && !setAside ? [folded.fault] : []
  const last = events.at(-1)!
  if (row === null) {
    return setAside || folded.fault
      ? found
      : [...found, ['row_missing', `its stream begins with ${events[0]!.type} and ends at ${last.revision}`]]
  }
  if (folded.at) found.push(...compare(folded.at, row, deadline))
  else if (revision! > last.revision)
    found.push(['row_differs', `it is at revision ${revision}, its stream ends at ${last.revision}`])
  return found
}

function compare(task: Task, row: Row, deadline: Row | null): Fault[] {
  const found: Fault[] = []
  // A row of an older version waits for its labels (`unlabelled.ts`); that is no damage.
  const unlabelled = row.labels === null ? { labels: null, correlation_id: null } : {}
  const differs = difference(row, { ...taskRow(task), ...unlabelled })
  if (differs !== null) found.push(['row_differs', differs])
  const armed = armedRows(task)
  if (deadline === null) {
    if (armed[0])
      found.push(['deadline_missing', `it is ${task.status}; ${written(armed[0])} should be armed`])
  } else if (armed.length === 0)
    found.push(['deadline_differs', `it is ${task.status}, and ${written(deadline)} is armed`])
  else {
    const differences = armed.map(one => difference(deadline, one))
    if (!differences.includes(null)) found.push(['deadline_differs', differences.join(', or ')])
  }
  return found
}

/** The rows that may stand there: once a task's not_before has fired, the timers arm what comes after it. */
function armedRows(task: Task): Row[] {
  if (!isOpen(task)) return []
  const armed = [nextDeadline(task), isDelayed(task) ? nextDeadline(task, 'not_before') : null]
  return armed.filter((next): next is Deadline => next !== null).map(next => deadlineRow(task, next))
}

/** Column by column; null where they are the same. */
function difference(is: Row, should: Row): string | null {
  const names = [...new Set([...Object.keys(should), ...Object.keys(is)])]
  const differing = names.filter(name => textOf(name, is[name]) !== textOf(name, should[name]))
  if (differing.length === 0) return null
  return differing
    .map(name => `${name} is ${textOf(name, is[name])}, should be ${textOf(name, should[name])}`)
    .join('; ')
}

/** A value as one text; an instant is written in more than one way, and so is an object. */
function textOf(name: string, value: unknown): string {
  if (value === undefined) return 'absent'
  const at = name.endsWith('_at') && typeof value === 'string' ? Date.parse(value) : Number.NaN
  return Number.isNaN(at) ? canonicalJson(value as Json) : new Date(at).toISOString()
}

const written = (row: Row): string => `${row.timer} at ${textOf('due_at', row.due_at)}`

/**
 * Folds a whole stream.
 *
 * @returns the task at `revision` where the fold came that far, and what is wrong with the stream
 */
function foldTo(
  taskId: string,
  events: readonly StoredEvent[],
  revision: number | null,
): { at: Task | null; fault: Fault | null } {
  let task: Task | null = null
  let at: Task | null = null
  for (const [place, stored] of events.entries()) {
    try {
      const recorded = decodeEvent(stored)
      if (stored.revision !== place) return { at, fault: ['chain_broken', `event ${place} is missing`] }
      if (recorded.metadata.prevHash !== (task?.hash ?? null))
        return {
          at,
          fault: ['chain_broken', `event ${place} names another hash than that of the one before`],
        }
      task = evolve(taskId, task, recorded)
    } catch (error) {
      return { at, fault: ['not_folded', (error as Error).message] }
    }
    if (place === revision) at = task
  }
  return { at, fault: null }
}
