/** The roll call over what went through the broker: dead letters, task status, and what workers said by records. */
import type { Pool } from 'pg'
import type { IncomingRecord } from '../../../src/broker/broker.ts'
import type { RecordedEvent } from '../../../src/domain/events.ts'
import { LIMITS } from '../../../src/domain/limits.ts'
import type { WorkerAnswer } from './answers.ts'
import type { Streams } from './examine.ts'
import type { StatusRecord } from './kafka-traffic.ts'

interface LetterRow {
  topic: string
  partition: number
  record_offset: string
  key: Buffer | null
  value: Buffer | null
  headers: string
  reason_code: string
  status: string
}

/** Each bad record is a dead letter, byte for byte, and nothing else is one. */
export async function wrongLetters(
  pool: Pool,
  garbage: ReadonlyMap<string, IncomingRecord>,
): Promise<string[]> {
  const { rows } = await pool.query<LetterRow>(
    `SELECT topic, partition, record_offset, key, value, headers, reason_code, status FROM rollcall.dead_letters`,
  )
  const found: string[] = []
  const kept = new Set<string>()
  for (const row of rows) {
    const place = `${row.topic}/${row.partition}/${row.record_offset}`
    const record = garbage.get(place)
    if (kept.has(place)) found.push(`record ${place} is a dead letter twice`)
    kept.add(place)
    if (!record) found.push(`record ${place} is a dead letter (${row.reason_code}) and was a good one`)
    else if (!isSame(row, record)) found.push(`the dead letter of record ${place} is not what was sent`)
    if (row.status !== 'waiting') found.push(`the dead letter of record ${place} is ${row.status}`)
  }
  for (const place of garbage.keys()) if (!kept.has(place)) found.push(`record ${place} is no dead letter`)
  return found
}

function isSame(row: LetterRow, record: IncomingRecord): boolean {
  const headers = record.headers.map(([name, content]) => [name, content.toString('base64')])
  return (
    isSameBytes(row.key, record.key) &&
    isSameBytes(row.value, record.value) &&
    row.headers === JSON.stringify(headers)
  )
}

const isSameBytes = (one: Buffer | null, other: Buffer | null): boolean =>
  one === null || other === null ? one === other : one.equals(other)

/** These change neither status nor step. */
const SILENT: ReadonlySet<string> = new Set(['TaskNoted', 'LateResultRecorded'])

/** The newest record of a task says how its stream stands. */
export function* wrongStatuses(
  streams: Streams,
  statuses: ReadonlyMap<string, StatusRecord>,
): Generator<string> {
  for (const [taskId, { task, history }] of streams) {
    if (!task) continue
    const said = statuses.get(taskId)
    const revision = history.findLast(({ event }) => !SILENT.has(event.type))?.revision
    if (!said) yield `nothing was published of task ${taskId}`
    else if (said.status !== task.status || said.revision !== revision)
      yield `of task ${taskId} ${said.status} at revision ${said.revision} was published last, and it is ${task.status} since ${revision}`
  }
  for (const taskId of statuses.keys())
    if (!streams.has(taskId)) yield `the status of task ${taskId} was published, and there is none`
}

/**
 * An outcome that the broker took is in the stream: as the outcome, as a late result, or as one that the stream itself
 * refuses. That it was refused may be forgotten when a service is killed, so where refusals are kept is not asked.
 */
export function* brokenRecords(streams: Streams, answers: readonly WorkerAnswer[]): Generator<string> {
  const seen = new Set<string>()
  for (const answer of answers) {
    if (answer.of !== 'record' || (answer.trigger !== 'SUCCEED' && answer.trigger !== 'FAIL')) continue
    const { taskId, attempt, commandId, trigger, leaseTokenHash } = answer
    if (seen.has(`${taskId}/${commandId}`)) continue
    seen.add(`${taskId}/${commandId}`)
    const fault = (is: string): string =>
      `${trigger} of attempt ${attempt} of task ${taskId} was sent, and ${is}`
    const stream = streams.get(taskId)
    if (!stream) {
      yield fault('there is no such task')
      continue
    }
    const { history } = stream
    const by = history.filter(({ metadata }) => metadata.commandId === commandId)
    // An outcome that comes before its START brings that along.
    const moved = by.filter(({ event }) => event.type !== 'TaskStarted')
    if (moved.length > 1) yield fault(`it stands in the stream ${moved.length} times`)
    if (moved.length > 0) continue
    const start = history.find(({ event }) => event.type === 'TaskStarted' && event.data.attempt === attempt)
    // Nobody's, or another's.
    if (start?.event.type !== 'TaskStarted' || start.event.data.leaseTokenHash !== leaseTokenHash) continue
    if (!saysSo(history, attempt, trigger)) yield fault('nothing in the stream says so')
  }
}

/** Whether the attempt has ended in that way by another command, or no room was left for a late result. */
function saysSo(history: readonly RecordedEvent[], attempt: number, trigger: string): boolean {
  const ends = trigger === 'SUCCEED' ? ['TaskSucceeded'] : ['TaskFailed', 'TaskAttemptFailed']
  const late = history.filter(({ event }) => event.type === 'LateResultRecorded')
  const attempts = history.filter(({ event }) => event.type === 'TaskStarted').length
  return (
    late.length >= LIMITS.lateResultsPerTask ||
    attempts - attempt >= LIMITS.rememberedAttempts ||
    history.some(
      ({ event }) =>
        (ends.includes(event.type) || event.type === 'LateResultRecorded') &&
        'attempt' in event.data &&
        event.data.attempt === attempt,
    )
  )
}
