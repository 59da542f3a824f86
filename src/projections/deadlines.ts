/** The read model `deadlines`: the timeout index, one row per open task with what fires next. */
import { type Deadline, nextDeadline } from '../domain/deadlines.ts'
import type { Task } from '../domain/task.ts'
import { type Queryable, timestamp } from './database.ts'

const UPSERT = {
  name: 'deadlines-arm',
  text: `
    INSERT INTO rollcall.deadlines AS d (task_id, due_at, timer, attempt)
    SELECT task_id, due_at, timer, attempt FROM json_populate_recordset(NULL::rollcall.deadlines, $1::json)
    ON CONFLICT (task_id) DO UPDATE SET due_at = excluded.due_at, timer = excluded.timer, attempt = excluded.attempt
    WHERE (d.due_at, d.timer, d.attempt) IS DISTINCT FROM (excluded.due_at, excluded.timer, excluded.attempt)`,
}

/** Arms what fires next for open tasks and disarms finished ones. */
export async function armDeadlines(
  db: Queryable,
  open: readonly Task[],
  finished: readonly string[],
): Promise<void> {
  const rows = open.flatMap(task => {
    const next = nextDeadline(task)
    return next ? [deadlineRow(task, next)] : []
  })
  await Promise.all([
    rows.length > 0 && db.query({ ...UPSERT, values: [JSON.stringify(rows)] }),
    finished.length > 0 &&
      db.query({
        name: 'deadlines-disarm',
        text: 'DELETE FROM rollcall.deadlines WHERE task_id = ANY ($1::uuid[])',
        values: [finished],
      }),
  ])
}

export const deadlineRow = (task: Task, deadline: Deadline) => ({
  task_id: task.taskId,
  due_at: timestamp(deadline.at),
  timer: deadline.timer,
  attempt: task.attempt,
})
