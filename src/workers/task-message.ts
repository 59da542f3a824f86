/**
 * A task as it is offered to workers through the broker: JSON, under CloudEvents headers in the binary mode. An offer
 * is no lease: the task is its worker's once START is accepted.
 */

import type { OutgoingRecord } from '../broker/broker.ts'
import type { Instant, Json } from '../domain/events.ts'
import type { PendingTask, ProcessingTask } from '../domain/task.ts'
import { cloudEventHeaders } from './cloud-event.ts'

export const TASK_OFFERED = 'rollcall.task.offered'

/** What a worker needs to start a task and to do it. */
export interface TaskMessage {
  taskId: string
  type: string
  run: number
  /** START and all that follows it carry this. */
  attempt: number
  maxAttempts: number
  attemptsCharged: number
  payload: Json
  /** What an earlier attempt left behind; null where none did. */
  context: Json
  labels: Record<string, string>
  correlationId: string | null
  /** The task's own limits, for a worker that starts it without asking. */
  leaseMs: number
  executionMs: number
}

/** What of a task any worker is handed, whichever way it comes. */
export const handedTask = (
  task: PendingTask | ProcessingTask,
): Omit<TaskMessage, 'leaseMs' | 'executionMs'> => ({
  taskId: task.taskId,
  type: task.type,
  run: task.run,
  attempt: task.attempt,
  maxAttempts: task.retry.maxAttempts,
  attemptsCharged: task.attemptsCharged,
  payload: task.payload,
  context: task.context,
  labels: task.labels,
  correlationId: task.correlationId,
})

/**
 * @param timesOffered of this attempt, this time among them; the same offer sent again has the same id
 * @param offeredAt by the database's clock
 */
export function taskRecord(task: PendingTask, timesOffered: number, offeredAt: Instant): OutgoingRecord {
  const message: TaskMessage = {
    ...handedTask(task),
    leaseMs: task.timeouts.leaseMs,
    executionMs: task.timeouts.executionMs,
  }
  return {
    key: task.taskId,
    value: Buffer.from(JSON.stringify(message)),
    headers: cloudEventHeaders({
      id: `${task.taskId}/${task.attempt}/${timesOffered}`,
      type: TASK_OFFERED,
      subject: task.taskId,
      at: offeredAt,
    }),
  }
}
