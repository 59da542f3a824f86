/** The version of a task as it is answered: it moves with every event and with every signal. */
import type { Signals } from '../domain/signals.ts'
import type { Task } from '../domain/task.ts'

/** What of the signals is in the version: the last heartbeat, the rank of a task that waits, when a worker was told. */
export function signalTag({ lease, position, cancelNotice }: Signals): number | null {
  if (lease) return lease.lastHeartbeatAt
  // A rank that is not exact is beyond the same one that is.
  if (position) return position.rank * 2 + (position.exact ? 0 : 1)
  return cancelNotice?.toldAt ?? null
}

export function etagOf({ revision }: Pick<Task, 'revision'>, signals: Signals): string {
  const tag = signalTag(signals)
  return tag === null ? `"${revision}"` : `"${revision}.${tag}"`
}

/** Whether an If-None-Match header names this version: one of a list, weak or not. */
export const namesVersion = (header: string, etag: string): boolean =>
  header.split(',').some(one => one.trim() === '*' || one.trim().replace(/^W\//, '') === etag)
