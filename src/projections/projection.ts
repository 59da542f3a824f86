/** Writes tasks into every read model, in the caller's transaction. */
import { isOpen, type Task } from '../domain/task.ts'
import type { Queryable } from './database.ts'
import { armDeadlines } from './deadlines.ts'
import { moveTasks, rewriteTasks } from './tasks.ts'
import { followWork } from './work-state.ts'

/**
 * Brings the read model to these folds. A row that is there already, or further, stays as it is, and so does
 * everything that hangs on it: delivering an event twice changes nothing.
 *
 * @returns the tasks whose rows moved
 */
export async function project(db: Queryable, tasks: readonly Task[]): Promise<Task[]> {
  if (tasks.length === 0) return []
  const movedIds = await moveTasks(db, tasks)
  const moved = tasks.filter(task => movedIds.has(task.taskId))
  await follow(db, moved)
  return moved
}

/** Writes these folds in place, whatever the rows said: repair while the service runs. */
export async function rewrite(db: Queryable, tasks: readonly Task[]): Promise<void> {
  if (tasks.length === 0) return
  await rewriteTasks(db, tasks)
  await follow(db, tasks)
}

async function follow(db: Queryable, moved: readonly Task[]): Promise<void> {
  // A task that was submitted and finished within one batch was never armed.
  const finished = moved.filter(task => !isOpen(task)).map(task => task.taskId)
  await armDeadlines(db, moved.filter(isOpen), finished)
  await followWork(db, moved)
}
