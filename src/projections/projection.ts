/** Writes tasks into every read model and the work state that follows them; the statements are in `migrations`. */
import type { Pool, PoolClient } from 'pg'
import { isOpen, type Task } from '../domain/task.ts'
import type { Loaded } from '../engine/task-reader.ts'
import { inTransaction, isUnfit, type Queryable } from './database.ts'
import { deadlineRows } from './deadlines.ts'
import type { SetAside } from './read-model.ts'
import { rewriteTasks, taskRow } from './tasks.ts'
import { leaseRow, noticeRows, offerable, readyRow } from './work-state.ts'

/** The arguments of `rollcall.follow_tasks`: what hangs on the rows of these tasks. */
function followArguments(tasks: readonly Task[]): (string | string[])[] {
  const ids = (some: readonly Task[]): string[] => some.map(task => task.taskId)
  // A task seen for the first time stands nowhere yet.
  const known = tasks.filter(task => task.revision > 0)
  return [
    JSON.stringify(deadlineRows(tasks)),
    JSON.stringify(tasks.filter(offerable).map(readyRow)),
    JSON.stringify(tasks.filter(task => task.status === 'PROCESSING').map(leaseRow)),
    JSON.stringify(noticeRows(tasks)),
    ids(known.filter(task => !isOpen(task))),
    ids(known.filter(task => task.status !== 'PENDING')),
    ids(known.filter(task => task.status !== 'PROCESSING')),
  ]
}

/** The arguments of `rollcall.project`. */
export const projectArguments = (tasks: readonly Task[]): (string | string[])[] => [
  JSON.stringify(tasks.map(taskRow)),
  ...followArguments(tasks),
]

/**
 * Brings the read model to these folds. A row that is there already, or further, stays as it is, and so does
 * everything that hangs on it: delivering an event twice changes nothing.
 *
 * @returns the tasks whose rows moved
 */
export async function project(db: Queryable, tasks: readonly Task[]): Promise<Task[]> {
  if (tasks.length === 0) return []
  const projected = await db.query<{ moved: string[] }>({
    name: 'project',
    text: 'SELECT rollcall.project($1, $2, $3, $4, $5, $6, $7, $8) AS moved',
    values: projectArguments(tasks),
  })
  return whichMoved(tasks, projected.rows[0]!.moved)
}

/** The tasks among these whose ids were answered. */
export function whichMoved(tasks: readonly Task[], moved: readonly string[]): Task[] {
  if (moved.length === tasks.length) return [...tasks]
  const ids = new Set(moved)
  return tasks.filter(task => ids.has(task.taskId))
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
  await db.query('SELECT rollcall.follow_tasks($1, $2, $3, $4, $5, $6, $7)', followArguments(tasks))
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
