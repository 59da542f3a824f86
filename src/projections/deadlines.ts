/** The read model `deadlines`: the timeout index, one row per open task with what fires next. */
import { type Deadline, nextDeadline } from '../domain/deadlines.ts'
import type { Task } from '../domain/task.ts'
import { timestamp } from './database.ts'

/** A row of `rollcall.deadlines`; the columns' names are the table's. */
export const deadlineRow = (task: Task, deadline: Deadline) => ({
  task_id: task.taskId,
  due_at: timestamp(deadline.at),
  timer: deadline.timer,
  attempt: task.attempt,
})

/** The rows of the open tasks among these. */
export const deadlineRows = (tasks: readonly Task[]) =>
  tasks.flatMap(task => {
    const next = nextDeadline(task)
    return next ? [deadlineRow(task, next)] : []
  })
