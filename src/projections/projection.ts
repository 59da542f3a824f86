/**
 * Writes tasks into every read model, in the caller's transaction. Statements that need nothing of each other are
 * sent together: on a busy event loop each wait for an answer costs more than the statement.
 */
import type { Pool, PoolClient } from 'pg'
import { isOpen, type Task } from '../domain/task.ts'
import type { Loaded } from '../engine/task-reader.ts'
import { inTransaction, isUnfit, type Queryable } from './database.ts'
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
  const moved = await move(db, tasks)
  await follow(db, moved)
  return moved
}

/** The first half of `project`: the rows themselves. @returns the tasks whose rows moved */
export async function move(db: Queryable, tasks: readonly Task[]): Promise<Task[]> {
  if (tasks.length === 0) return []
  const movedIds = await moveTasks(db, tasks)
  return tasks.filter(task => movedIds.has(task.taskId))
}

/** A task whose rows cannot be written, or whose stream cannot be folded. */
export interface SetAside {
  taskId: string
  revision: number
  reason: string
}

/**
 * As `project`, one task after the other: the way to find the one that the database refuses, when it has refused
 * them together. That task is to be set aside, and stops nobody else.
 */
export async function projectEach(
  client: PoolClient,
  tasks: readonly Task[],
): Promise<{ moved: Task[]; aside: SetAside[] }> {
  const moved: Task[] = []
  const aside: SetAside[] = []
  for (const task of tasks) {
    await client.query('SAVEPOINT one_task')
    try {
      moved.push(...(await project(client, [task])))
      await client.query('RELEASE SAVEPOINT one_task')
    } catch (error) {
      if (!isUnfit(error)) throw error
      await client.query('ROLLBACK TO SAVEPOINT one_task')
      aside.push({ taskId: task.taskId, revision: task.revision, reason: (error as Error).message })
    }
  }
  return { moved, aside }
}

/** Writes these folds in place, whatever the rows said. */
export async function rewrite(db: Queryable, tasks: readonly Task[]): Promise<void> {
  if (tasks.length === 0) return
  await rewriteTasks(db, tasks)
  await follow(db, tasks)
}

/**
 * Repairs tasks while the service runs: folds them again from their streams and writes their rows in place. Rows
 * are locked before the streams are read, so that none goes back behind what the projector writes meanwhile;
 * rows that are missing are written as the projector would. A task that can be folded is set aside no longer.
 *
 * @param read tasks as their streams say now
 * @returns the tasks whose streams cannot be folded; their rows stay as they are
 */
export async function refold(
  pool: Pool,
  read: (taskIds: readonly string[]) => Promise<Map<string, Loaded>>,
  taskIds: readonly string[],
): Promise<string[]> {
  return inTransaction(pool, async client => {
    const found = await client.query<{ task_id: string }>(
      'SELECT task_id FROM rollcall.tasks WHERE task_id = ANY ($1::uuid[]) ORDER BY task_id FOR UPDATE',
      [taskIds],
    )
    const locked = new Set(found.rows.map(row => row.task_id))
    const loaded = [...(await read(taskIds))]
    const tasks = loaded.flatMap(([, one]) => (one.kind === 'task' ? [one.task] : []))
    await rewrite(
      client,
      tasks.filter(task => locked.has(task.taskId)),
    )
    await project(
      client,
      tasks.filter(task => !locked.has(task.taskId)),
    )
    await client.query('DELETE FROM rollcall.set_aside WHERE task_id = ANY ($1::uuid[])', [
      tasks.map(task => task.taskId),
    ])
    return loaded.flatMap(([taskId, one]) => (one.kind === 'broken' ? [taskId] : []))
  })
}

/** The second half of `project`: everything that hangs on the rows that moved. */
export async function follow(db: Queryable, moved: readonly Task[]): Promise<void> {
  // A task that was submitted and finished within one batch was never armed.
  const finished = moved.filter(task => !isOpen(task)).map(task => task.taskId)
  await Promise.all([armDeadlines(db, moved.filter(isOpen), finished), followWork(db, moved)])
}
