/**
 * Promise 4, checked for everything while the service runs, step by step. One walk goes over all rows and compares
 * each with its stream; then over the log as far as the projector has come, and looks for tasks without a row.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Pool } from 'pg'
import { z } from 'zod'
import { TaskCache } from '../engine/task-cache.ts'
import { TaskReader } from '../engine/task-reader.ts'
import { taskIdOf } from '../eventlog/codec.ts'
import {
  type Checkpoint,
  type EventLog,
  LogUnavailableError,
  type StoredEvent,
} from '../eventlog/event-log.ts'
import { isUnfit } from './database.ts'
import { databaseNow, endWalk, keepFindings } from './drift.ts'
import { examinePage, examineTasks, type Source } from './examine.ts'
import { FINDING_KINDS, type Finding } from './findings.ts'
import { readProjectorCheckpoint } from './lag.ts'
import { refold } from './projection.ts'

const checkpointSchema = z.strictObject({ logId: z.guid(), position: z.string().max(64), eventId: z.guid() })
const placeSchema = z.discriminatedUnion('over', [
  z.strictObject({ over: z.literal('rows'), from: z.int().min(0), after: z.guid() }),
  z.strictObject({
    over: z.literal('log'),
    from: z.int().min(0),
    at: checkpointSchema.nullable(),
    until: checkpointSchema,
  }),
])
/** Where a walk stands; `from` is when it began, in milliseconds by the database's clock. */
type Place = z.output<typeof placeSchema>

/** A place that a walk did not give, or of another log. */
export class UnknownPlaceError extends Error {
  readonly code = 'unknown_place'
}

/** Rows are missing that the projector may not have written yet: it is being rebuilt. Look again later. */
export class NotProjectedError extends Error {
  readonly code = 'not_projected'
}

export interface Walked {
  /** Tasks whose rows were compared with their streams. */
  rows: number
  /** Events of the log that were passed in search of tasks without a row. */
  events: number
  findings: Finding[]
  /** Those that nobody had found before. */
  fresh: Finding[]
  /** Where to go on, null when everything was looked at. */
  next: string | null
}

export interface StepBounds {
  /** Rows of one step. */
  rows: number
  /** Events of the log after which a step ends, and a batch at most beyond: how large batches are is the log's matter. */
  events: number
}

/** Within reason of other readers: what counts the events behind a place counts no further. */
const ORDER_EVENTS_MAX = 100_000
const ORDER_TRIES = 5
const ORDER_PAUSE_MS = 100
const READ_LOG_MS = 10_000

/**
 * One step of a walk. What it finds is kept in `rollcall.drift`, what it finds right is taken out.
 *
 * @param place as the step before answered; null begins a walk
 * @throws UnknownPlaceError
 * @throws NotProjectedError while the read model is rebuilt
 */
export async function walkOn(source: Source, place: string | null, bounds: StepBounds): Promise<Walked> {
  const at = place === null ? null : decodePlace(place)
  return at?.over === 'log'
    ? walkLog(source, at, bounds.events)
    : walkRows(source, at?.from ?? (await databaseNow(source.pool)), at?.after ?? null, bounds.rows)
}

async function walkRows(source: Source, from: number, after: string | null, limit: number): Promise<Walked> {
  const examined = await examinePage(source, after, limit)
  const fresh = await keepFindings(source.pool, examined, FINDING_KINDS)
  const walked = { rows: examined.taskIds.length, events: 0, findings: examined.findings, fresh }
  if (examined.taskIds.length === limit)
    return { ...walked, next: encodePlace({ over: 'rows', from, after: examined.taskIds.at(-1)! }) }
  // What lies behind the projector's place has rows; what comes later is not its fault.
  const until = await readProjectorCheckpoint(source.pool)
  if (until) return { ...walked, next: encodePlace({ over: 'log', from, at: null, until }) }
  await endWalk(source.pool, from)
  return { ...walked, next: null }
}

async function walkLog(
  source: Source,
  place: Extract<Place, { over: 'log' }>,
  limit: number,
): Promise<Walked> {
  const { pool, log } = source
  const { from, at, until } = place
  const page = await readPage(log, at, until, limit)
  const missing = await withoutRow(pool, page.begun)
  if (missing.length > 0 && !(await isProjected(source, page.end)))
    throw new NotProjectedError('rows are missing that the projector may not have written yet')
  // What is missing for certain; a row that came meanwhile is no longer.
  const findings = (missing.length > 0 ? await withoutRow(pool, missing) : []).map(
    (taskId): Finding => ({ taskId, kind: 'row_missing', detail: 'it is in the log and in no row' }),
  )
  const fresh = await keepFindings(pool, { taskIds: page.begun, findings }, ['row_missing'])
  const walked = { rows: 0, events: page.events, findings, fresh }
  if (!page.atEnd && page.end)
    return { ...walked, next: encodePlace({ over: 'log', from, at: page.end, until }) }
  await endWalk(pool, from)
  return { ...walked, next: null }
}

interface LogPage {
  /** The tasks whose streams begin in it. */
  begun: string[]
  events: number
  /** Its last event. */
  end: Checkpoint | null
  /** It reaches `until`, or the log's end. */
  atEnd: boolean
}

async function readPage(
  log: EventLog,
  from: Checkpoint | null,
  until: Checkpoint,
  limit: number,
): Promise<LogPage> {
  const page: LogPage = { begun: [], events: 0, end: from, atEnd: from?.eventId === until.eventId }
  if (page.atEnd) {
    // Nothing is read that would show whether this log has the place.
    await log.countAfter(until, 1)
    return page
  }
  const done = new AbortController()
  const late = AbortSignal.timeout(READ_LOG_MS)
  await log.follow(
    from,
    async batch => {
      if (batch.length === 0) page.atEnd = true
      for (const stored of batch) {
        if (!page.atEnd) addEvent(page, stored, log.id)
        if (stored.id === until.eventId) page.atEnd = true
      }
      if (page.atEnd || page.events >= limit) done.abort()
    },
    AbortSignal.any([done.signal, late]),
  )
  // What was read in time is a step, too: the events may be large.
  if (!done.signal.aborted && page.events === 0)
    throw new LogUnavailableError('the log could not be read in time')
  return page
}

function addEvent(page: LogPage, stored: StoredEvent, logId: string): void {
  const taskId = taskIdOf(stored.stream)
  if (taskId !== null && stored.revision === 0) page.begun.push(taskId)
  page.events++
  page.end = { logId, position: stored.position, eventId: stored.id }
}

/** The tasks among these that have neither a row nor are set aside. */
async function withoutRow(pool: Pool, taskIds: readonly string[]): Promise<string[]> {
  if (taskIds.length === 0) return []
  const { rows } = await pool.query<{ task_id: string }>({
    name: 'verify-without-row',
    text: `SELECT a.task_id FROM unnest($1::uuid[]) a (task_id)
            WHERE NOT EXISTS (SELECT FROM rollcall.tasks t WHERE t.task_id = a.task_id)
              AND NOT EXISTS (SELECT FROM rollcall.set_aside s WHERE s.task_id = a.task_id)`,
    values: [taskIds],
  })
  return rows.map(row => row.task_id)
}

/**
 * Whether the projector is past a place now. A walk keeps to where the projector was when it began, but a read
 * model that is rebuilt begins again at the start. Places have no order that can be seen here; the events behind
 * them can be counted.
 */
async function isProjected({ pool, log }: Source, place: Checkpoint | null): Promise<boolean> {
  if (place === null) return true
  for (let tries = 0; tries < ORDER_TRIES; tries++) {
    if (tries > 0) await sleep(ORDER_PAUSE_MS)
    const after = await log.countAfter(place, ORDER_EVENTS_MAX)
    const projected = await readProjectorCheckpoint(pool)
    if (projected?.eventId === place.eventId) return true
    // Counted later, so that events which come meanwhile never make the projector look further than it is.
    const waiting = projected ? await log.countAfter(projected, ORDER_EVENTS_MAX) : ORDER_EVENTS_MAX
    if (waiting < ORDER_EVENTS_MAX && waiting <= after) return true
  }
  return false
}

const encodePlace = (place: Place): string => Buffer.from(JSON.stringify(place)).toString('base64url')

function decodePlace(text: string): Place {
  try {
    return placeSchema.parse(JSON.parse(Buffer.from(text, 'base64url').toString('utf8')))
  } catch (cause) {
    throw new UnknownPlaceError('the place is not one that a walk has given', { cause })
  }
}

/**
 * Mends tasks while the service runs: rows are folded again from their streams, rows without a stream are removed,
 * and a stream that cannot be folded is set aside, for a person.
 *
 * @returns what is still found of them
 */
export async function repair(source: Source, taskIds: readonly string[]): Promise<Finding[]> {
  if (taskIds.length === 0) return []
  const { pool, log } = source
  // With a cache of its own: what another one holds may be older than the damage.
  const reader = new TaskReader(log, new TaskCache())
  const broken = await refoldEach(pool, ids => reader.readMany(ids), taskIds)
  const before = await examineTasks(source, taskIds)
  for (const { taskId, kind, detail } of before.findings)
    if (kind === 'chain_broken' || kind === 'not_folded') broken.set(taskId, detail)
  const of = (kind: Finding['kind']) =>
    before.findings.filter(finding => finding.kind === kind).map(({ taskId }) => taskId)
  await removeRows(pool, of('no_stream'))
  for (const [taskId, reason] of broken)
    await pool.query(
      `INSERT INTO rollcall.set_aside (task_id, revision, reason)
       VALUES ($1, coalesce((SELECT revision FROM rollcall.tasks WHERE task_id = $1), 0), $2) ON CONFLICT DO NOTHING`,
      [taskId, reason],
    )
  const after = await examineTasks(source, taskIds)
  await keepFindings(pool, after, FINDING_KINDS)
  return after.findings
}

/** Tries to take back what was set aside: it can be folded by another version, or was mended. */
export async function repairSetAside(source: Source): Promise<void> {
  const { rows } = await source.pool.query<{ task_id: string }>(
    'SELECT task_id FROM rollcall.set_aside ORDER BY set_aside_at LIMIT $1',
    [SET_ASIDE_MAX],
  )
  await repair(
    source,
    rows.map(row => row.task_id),
  )
}

const SET_ASIDE_MAX = 500

/**
 * Folds tasks again together, or one by one where the database refuses a row among them.
 *
 * @returns those that cannot be folded or written, with the reason
 */
export async function refoldEach(
  pool: Pool,
  read: TaskReader['readMany'],
  taskIds: readonly string[],
): Promise<Map<string, string>> {
  const refused = new Map<string, string>()
  const fold = async (ids: readonly string[]) => {
    for (const taskId of await refold(pool, asked => read(asked), ids))
      refused.set(taskId, 'its stream cannot be folded')
  }
  try {
    await fold(taskIds)
  } catch (error) {
    if (!isUnfit(error)) throw error
    for (const taskId of taskIds)
      try {
        await fold([taskId])
      } catch (one) {
        if (!isUnfit(one)) throw one
        refused.set(taskId, (one as Error).message)
      }
  }
  return refused
}

const TABLES_OF_A_TASK = ['tasks', 'deadlines', 'ready', 'offers', 'leases', 'set_aside']

async function removeRows(pool: Pool, taskIds: readonly string[]): Promise<void> {
  if (taskIds.length === 0) return
  for (const table of TABLES_OF_A_TASK)
    await pool.query(`DELETE FROM rollcall.${table} WHERE task_id = ANY ($1::uuid[])`, [taskIds])
}
