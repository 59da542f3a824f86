import { LRUCache } from 'lru-cache'
import type { Task } from '../domain/task.ts'

/** Roughly what a folded task weighs beside what its user wrote. */
const TASK_OVERHEAD_BYTES = 2_048

/**
 * Folded tasks, bounded by count and by bytes. An entry may be behind its stream; whoever reads it catches up
 * from its revision.
 */
export class TaskCache {
  readonly #entries: LRUCache<string, { task: Task; bytes: number }>

  constructor(limits: { tasks: number; bytes: number } = { tasks: 20_000, bytes: 64 * 1024 * 1024 }) {
    this.#entries = new LRUCache({
      max: limits.tasks,
      maxSize: limits.bytes,
      sizeCalculation: entry => entry.bytes,
    })
  }

  get(taskId: string): Task | null {
    return this.#entries.get(taskId)?.task ?? null
  }

  /** @param addedBytes stored bytes of the events folded since the last set */
  set(task: Task, addedBytes: number): void {
    const before = this.#entries.peek(task.taskId)
    // A read that began earlier may end later; it must not take the cache back.
    if (before && before.task.revision >= task.revision) return
    this.#entries.set(task.taskId, { task, bytes: (before?.bytes ?? TASK_OVERHEAD_BYTES) + addedBytes })
  }

  delete(taskId: string): void {
    this.#entries.delete(taskId)
  }
}
