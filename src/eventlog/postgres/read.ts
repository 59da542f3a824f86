/** Reading: pages bounded by count and bytes, so that no answer outgrows memory or a timeout. */
import {
  type Checkpoint,
  LogWentBackwardsError,
  READ_LIMITS,
  type StoredEvent,
  type StreamSlice,
} from '../event-log.ts'
import type { Connections, Row } from './connections.ts'

const COLUMNS = 'position, stream, revision, id, type, version, data, metadata'

/** The order of the fields is that of `COLUMNS`. */
const storedEvent = (row: Row): StoredEvent => ({
  position: row[0]!,
  stream: row[1]!,
  revision: Number(row[2]),
  id: row[3]!,
  type: row[4]!,
  version: Number(row[5]),
  data: row[6]!,
  metadata: row[7]!,
})

/** octet_length knows a value's size without fetching it from where large ones are kept. */
const BYTES_BEFORE = `
  sum(octet_length(data) + octet_length(metadata)) OVER (ORDER BY position ROWS UNBOUNDED PRECEDING)
    - octet_length(data) - octet_length(metadata) AS bytes_before`

const STREAM_PAGE = `
  SELECT ${COLUMNS}, (SELECT max(e.revision) FROM rollcall_log.events e WHERE e.stream = $1) AS head
  FROM (
    SELECT *, ${BYTES_BEFORE} FROM (
      SELECT ${COLUMNS} FROM rollcall_log.events
      WHERE stream = $1 AND revision >= $2 ORDER BY revision LIMIT $3
    ) page
  ) measured
  WHERE bytes_before < $4
  ORDER BY revision`

export async function readStream(
  connections: Connections,
  stream: string,
  fromRevision: number,
  limit: number,
): Promise<StreamSlice> {
  const rows = await connections.run({
    name: 'read_stream',
    text: STREAM_PAGE,
    values: [stream, fromRevision, Math.min(limit, READ_LIMITS.events), READ_LIMITS.bytes],
  })
  const events = rows.map(storedEvent)
  const next = fromRevision + events.length
  return { events, next: events.length > 0 && next <= Number(rows[0]![8]) ? next : null }
}

const STREAM_TAILS = `
  SELECT ${COLUMNS.split(', ').map(column => `e.${column}`)}
  FROM unnest($1::text[], $2::integer[]) asked(stream, from_revision)
  CROSS JOIN LATERAL (
    SELECT * FROM rollcall_log.events e
    WHERE e.stream = asked.stream AND e.revision >= asked.from_revision
    ORDER BY e.revision
  ) e`

export async function readStreams(
  connections: Connections,
  streams: readonly { stream: string; fromRevision: number }[],
): Promise<Map<string, StoredEvent[]>> {
  const found = new Map<string, StoredEvent[]>()
  if (streams.length === 0) return found
  const rows = await connections.run({
    name: 'read_streams',
    text: STREAM_TAILS,
    values: [streams.map(({ stream }) => stream), streams.map(({ fromRevision }) => fromRevision)],
  })
  for (const row of rows) {
    const event = storedEvent(row)
    const events = found.get(event.stream)
    if (events) events.push(event)
    else found.set(event.stream, [event])
  }
  for (const events of found.values()) events.sort((one, other) => one.revision - other.revision)
  return found
}

/**
 * The events after a position, and the one at it, which shows that the log still is what it was. Its data
 * may be large, is not needed and is left out.
 */
const LOG_PAGE = `
  SELECT position, stream, revision, id, type, version,
    CASE WHEN position > $1 THEN data END, CASE WHEN position > $1 THEN metadata END
  FROM (
    SELECT *, ${BYTES_BEFORE} FROM (
      SELECT ${COLUMNS} FROM rollcall_log.events WHERE position >= $1 ORDER BY position LIMIT $2
    ) page
  ) measured
  WHERE bytes_before < $3
  ORDER BY position`

/** What stands at a position, null where nothing does, and a page of what comes after it. */
export async function readLog(
  connections: Connections,
  position: string,
): Promise<{ at: string | null; after: StoredEvent[] }> {
  const rows = await connections.run({
    name: 'read_log',
    text: LOG_PAGE,
    // The page holds the event at the position too, where there is one.
    values: [position, READ_LIMITS.events + (position === '0' ? 0 : 1), READ_LIMITS.bytes],
  })
  const at = rows[0]?.[0] === position ? rows.shift()![3]! : null
  return { at, after: rows.map(storedEvent) }
}

export async function readHead(
  connections: Connections,
): Promise<{ position: string; eventId: string } | null> {
  const [row] = await connections.run({
    name: 'read_head',
    text: 'SELECT position, id FROM rollcall_log.events ORDER BY position DESC LIMIT 1',
    values: [],
  })
  return row ? { position: row[0]!, eventId: row[1]! } : null
}

/** Positions have no gaps: the events after one are as many as the head is further. */
const COUNT_AFTER = `
  SELECT (SELECT id FROM rollcall_log.events WHERE position = $1),
    (SELECT coalesce(max(position), 0) FROM rollcall_log.events) - $1`

/** As the port's `countAfter`; it costs the same wherever the checkpoint is. */
export async function countAfter(
  connections: Connections,
  logId: string,
  from: Checkpoint | null,
  limit: number,
): Promise<number> {
  const wentBackwards = (why: string) =>
    new LogWentBackwardsError(`log ${logId} is not what was followed: ${why}`)
  if (from && from.logId !== logId) throw wentBackwards(`the checkpoint is of log ${from.logId}`)
  if (from && !isPosition(from.position)) throw wentBackwards(`${from.position} is no position`)
  const [row] = await connections.run({
    name: 'count_after',
    text: COUNT_AFTER,
    values: [from?.position ?? '0'],
  })
  if (from && row![0] !== from.eventId)
    throw wentBackwards(`event ${from.eventId} is no longer at position ${from.position}`)
  return Math.min(limit, Number(row![1]))
}

/** Whether a text is a position of this adapter. */
export const isPosition = (text: string): boolean => /^[1-9]\d{0,17}$/.test(text)

/** Id of the log that has taken this one's place, null while this one takes appends. */
export async function readMovedTo(connections: Connections): Promise<string | null> {
  const [row] = await connections.run({
    name: 'read_moved_to',
    text: 'SELECT moved_to FROM rollcall_log.log_identity',
    values: [],
  })
  return row?.[0] ?? null
}

/** Identity of the log that the connections lead to. */
export async function readLogId(connections: Connections): Promise<string> {
  const [row] = await connections.run({
    name: 'read_log_id',
    text: 'SELECT id FROM rollcall_log.log_identity',
    values: [],
  })
  if (!row) throw new Error('the log has no identity: rollcall_log.log_identity is empty')
  return row[0]!
}
