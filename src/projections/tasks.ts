/** The read model `tasks`: one row per task, what lists and the roll call read. */
import type { Task } from '../domain/task.ts'
import { cutText, storableText } from '../domain/text.ts'
import { shownError } from '../domain/why.ts'
import { type Queryable, timestamp } from './database.ts'

const ERROR_MESSAGE_BYTES = 4 * 1024

/** A row of `rollcall.tasks` as a function of the folded task; the columns' names are the table's. */
export function taskRow(task: Task) {
  const error = shownError(task)
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
    error_code: error.code,
    error_message: errorText(error.message),
    result_url: task.status === 'SUCCESS' ? task.resultUrl : null,
    created_at: timestamp(task.createdAt),
    run_at: timestamp(task.runAt),
    started_at: timestamp('startedAt' in task ? task.startedAt : null),
    finished_at: timestamp('finishedAt' in task ? task.finishedAt : null),
    updated_at: timestamp(task.updatedAt),
    revision: task.revision,
    hash: task.hash,
    labels: task.labels,
    correlation_id: task.correlationId,
  }
}

const errorText = (text: string | null): string | null =>
  text === null ? null : cutText(storableText(text), ERROR_MESSAGE_BYTES)

const COLUMNS = `task_id, type, status, step, attempt, max_attempts, run, priority, tenant, worker, error_code,
  error_message, result_url, created_at, run_at, started_at, finished_at, updated_at, revision, hash,
  labels, correlation_id`

/** Writes rows as folded, whatever stood there: the repair of a row that differs from its fold. */
export async function rewriteTasks(db: Queryable, tasks: readonly Task[]): Promise<void> {
  await db.query(
    `INSERT INTO rollcall.tasks (${COLUMNS})
     SELECT ${COLUMNS} FROM json_populate_recordset(NULL::rollcall.tasks, $1::json)
     ON CONFLICT (task_id) DO UPDATE SET (${COLUMNS}) = (${COLUMNS.replace(/\w+/g, 'excluded.$&')})`,
    [JSON.stringify(tasks.map(taskRow))],
  )
}
