/** What a stream takes and yields. */
import type { ResyncMessage as Resync, TaskStatus, TaskMessage as Told } from '../api/schemas/streams.ts'

export type { TaskStatus }

/** Which tasks; what is left out matches any. */
export interface StreamFilter {
  type?: string
  status?: TaskStatus['status'] | readonly TaskStatus['status'][]
  /** Labels the task must have, with these values. */
  labels?: Record<string, string>
  tenant?: string
}

export interface StreamOptions {
  /** Closes the stream; it rejects with the signal's reason. */
  signal?: AbortSignal
  /** `id` of a message: goes on behind it, with nothing left out, also in another process. */
  lastEventId?: string
  /** How long the service may be away before the stream rejects, once it was there. Default 300,000 (5 minutes). */
  outageMs?: number
  /** How long nothing may come, not even a ping, before the connection counts as lost. Default 45,000. */
  idleMs?: number
  /** Told of each failure that the stream itself survives: it connects again. */
  onError?: (error: unknown) => void
}

/** How a task is, after an event or in between. `get` has what the task was given and what came of it. */
export interface TaskMessage {
  kind: 'task'
  /** The stored event that led here (`TaskStarted`); null for the state at the beginning, a progress, a change of place. */
  event: Told['event']
  task: TaskStatus
  /** Where the stream is: `lastEventId` of one that goes on from here. Null where there is no such place yet. */
  id: string | null
}

/** Transitions may be missing before this: there were too many since the last one, or the log has not got that one. */
export interface ResyncMessage {
  kind: 'resync'
  reason: Exclude<Resync['reason'], 'slow'>
  id: string | null
}

export type StreamMessage = TaskMessage | ResyncMessage

/** Reads on only while messages are taken. Leaving a loop over it, or `return`, closes the connection at once. */
export interface TaskStream extends AsyncIterableIterator<StreamMessage, undefined> {
  return(): Promise<IteratorResult<StreamMessage, undefined>>
}
