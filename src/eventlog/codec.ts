/**
 * Between events and bytes. Every stored event is checked by the schema of its type and version on the way
 * in and on the way out, and chained by hash to the one before it.
 */
import { hash } from 'node:crypto'
import {
  EVENT_SCHEMAS,
  type EventType,
  type Metadata,
  metadataSchema,
  type RecordedEvent,
  type TaskEvent,
} from '../domain/events.ts'
import { asWritten } from './check-append.ts'
import type { EncodedEvent, StoredEvent } from './event-log.ts'

const STREAM_PREFIX = 'task-'

/** The stream of a task. */
export const streamOf = (taskId: string): string => STREAM_PREFIX + taskId

const TASK_STREAM = new RegExp(`^${STREAM_PREFIX}([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

/** The task a stream belongs to, null for streams of another kind and those of another hand. */
export const taskIdOf = (stream: string): string | null => TASK_STREAM.exec(stream)?.[1] ?? null

/** Whether a stream is called as if it were a task's and is none's: another hand has written it. */
export const isForeign = (stream: string): boolean =>
  stream.startsWith(STREAM_PREFIX) && taskIdOf(stream) === null

/** A stored event that no schema accepts; its task is set aside, the log goes on. */
export class UndecodableEventError extends Error {
  readonly code = 'undecodable_event'
}

/**
 * SHA-256 in hex over what an event is and where it stands. Neither JSON nor names hold a raw line feed, so
 * the parts cannot run into each other.
 */
export function hashEvent(stream: string, revision: number, event: EncodedEvent): string {
  return hash(
    'sha256',
    `${stream}\n${revision}\n${event.id}\n${event.type}\n${event.version}\n${event.data}\n${event.metadata}`,
  )
}

/** Makes an event's bytes for its place in a stream, and its hash. */
export function encodeEvent(
  stream: string,
  revision: number,
  id: string,
  event: TaskEvent,
  metadata: Metadata,
): { encoded: EncodedEvent; recorded: RecordedEvent } {
  const encoded = asWritten({
    id,
    type: event.type,
    version: event.version,
    data: JSON.stringify(event.data),
    metadata: JSON.stringify(metadata),
  })
  return { encoded, recorded: { revision, hash: hashEvent(stream, revision, encoded), metadata, event } }
}

/**
 * Reads a stored event back.
 *
 * @throws UndecodableEventError naming stream, revision and what was wrong
 */
export function decodeEvent(stored: StoredEvent): RecordedEvent {
  const { stream, revision } = stored
  const fault = (why: string, cause?: unknown) =>
    new UndecodableEventError(`event ${revision} of stream ${stream} cannot be read: ${why}`, { cause })
  const versions = Object.hasOwn(EVENT_SCHEMAS, stored.type) ? EVENT_SCHEMAS[stored.type as EventType] : null
  if (!versions) throw fault(`its type ${stored.type} is not known`)
  const schema = Object.hasOwn(versions, stored.version) ? versions[stored.version as 1] : null
  if (!schema) throw fault(`version ${stored.version} of ${stored.type} is not known`)
  let parsed: { data: unknown; metadata: unknown }
  try {
    parsed = { data: JSON.parse(stored.data), metadata: JSON.parse(stored.metadata) }
  } catch (error) {
    throw fault('it is not JSON', error)
  }
  const data = schema.safeParse(parsed.data)
  if (!data.success)
    throw fault(`its data does not fit ${stored.type}: ${data.error.issues[0]?.message}`, data.error)
  const metadata = metadataSchema.safeParse(parsed.metadata)
  if (!metadata.success)
    throw fault(`its metadata does not fit: ${metadata.error.issues[0]?.message}`, metadata.error)
  return {
    revision,
    hash: hashEvent(stream, revision, stored),
    metadata: metadata.data,
    // The schema was chosen by type and version, a link between two fields that TypeScript cannot follow.
    event: { type: stored.type, version: stored.version, data: data.data } as TaskEvent,
  }
}
