/** The read model `tasks`: one row per task, what lists and the roll call read. */
import type { Task } from '../domain/task.ts'
import { cutText, storableText } from '../domain/text.ts'
import { type Queryable, timestamp } from './database.ts'

const ERROR_MESSAGE_BYTES = 4 * 1024

/** A row of `rollcall.tasks` as a function of the folded task; the columns' names are the table's. */
export function taskRow(task: Task) {
  const error = task.status === 'CANCELLED' || task.status === 'SUCCESS' ? null : task.lastError
  return {
    task_id: task.taskId,
    type: task.type,
    status: task.status,
    step: task.status === 'PROCESSING' ? task.step : null,
    attempt: task.attempt,
    max_attempts: task.retry.maxAttempts,
    run: task.run,
    priority: task.priority,
    tenant: task.tenant,
    worker: 'worker' in task ? task.worker : null,
    error_code: task.status === 'CANCELLED' ? 'cancelled' : (error?.code ?? null),
    error_message: errorText(task.status === 'CANCELLED' ? task.reason : (error?.message ?? null)),
    result_url: task.status === 'SUCCESS' ? task.resultUrl : null,
    created_at: timestamp(task.createdAt),
    run_at: timestamp(task.runAt),
    started_at: timestamp('startedAt' in task ? task.startedAt : null),
    finished_at: timestamp('finishedAt' in task ? task.finishedAt : null),
    updated_at: timestamp(task.updatedAt),
    revision: task.revision,
    hash: task.hash,
  }
}

const errorText = (text: string | null): string | null =>
  text === null ? null : cutText(storableText(text), ERROR_MESSAGE_BYTES)

const COLUMNS = `task_id, type, status, step, attempt, max_attempts, run, priority, tenant, worker, error_code,
  error_message, result_url, created_at, run_at, started_at, finished_at, updated_at, revision, hash`

const UPSERT = `
  INSERT INTO rollcall.tasks AS t (${COLUMNS})
  SELECT ${COLUMNS} FROM json_populate_recordset(NULL::rollcall.tasks, $1::json)
  ON CONFLICT (task_id) DO UPDATE SET
    status = excluded.status, step = excluded.step, attempt = excluded.attempt, run = excluded.run,
    worker = excluded.worker, error_code = excluded.error_code, error_message = excluded.error_message,
    result_url = excluded.result_url, run_at = excluded.run_at, started_at = excluded.started_at,
    finished_at = excluded.finished_at, updated_at = excluded.updated_at, revision = excluded.revision,
    hash = excluded.hash`

/** Writes rows that are ahead of what stands there; returns the ids of those that moved. */
export async function moveTasks(db: Queryable, tasks: readonly Task[]): Promise<Set<string>> {
  const moved = await db.query<{ task_id: string }>({
    name: 'tasks-move',
    text: `${UPSERT} WHERE t.revision < excluded.revision RETURNING t.task_id`,
    values: [JSON.stringify(tasks.map(taskRow))],
  })
  return new Set(moved.rows.map(row => row.task_id))
}

/** Writes rows as folded, whatever stood there: the repair of a row that differs from its fold. */
export async function rewriteTasks(db: Queryable, tasks: readonly Task[]): Promise<void> {
  await db.query(
    `${UPSERT}, type = excluded.type, max_attempts = excluded.max_attempts, priority = excluded.priority,
     tenant = excluded.tenant, created_at = excluded.created_at`,
    [JSON.stringify(tasks.map(taskRow))],
  )
}
