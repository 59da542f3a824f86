/** The names of the topics. Each is made by whoever sends to it or reads it, never by the broker itself. */

/** What workers say about their tasks. */
export const WORKER_EVENTS = 'rollcall.worker-events'
/** Each change of a task's status, for other services; the newest of each task is kept. */
export const TASK_STATUS = 'rollcall.task-status'

/** Where the tasks of a type are offered to workers. */
export const tasksTopic = (type: string): string => `rollcall.tasks.${type}`

/**
 * Two types that cannot both have a topic: the broker takes names that differ only in dots and underscores for the
 * same, since its metrics do.
 */
export function collidingTypes(types: Iterable<string>): [string, string] | null {
  const seen = new Map<string, string>()
  for (const type of types) {
    const plain = type.replaceAll('.', '_')
    const other = seen.get(plain)
    if (other !== undefined) return [other, type]
    seen.set(plain, type)
  }
  return null
}
