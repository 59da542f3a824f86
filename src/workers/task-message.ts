/**
 * A task as it is offered to workers through the broker: JSON, under CloudEvents headers in the binary mode. An offer
 * is no lease: the task is its worker's once START is accepted.
 */

import type { OutgoingRecord } from '../broker/broker.ts'
import type { Instant, Json } from '../domain/events.ts'
import type { PendingTask } from '../domain/task.ts'

export const TASK_OFFERED = 'rollcall.task.offered'
const SOURCE = 'rollcall'

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
}

/**
 * @param timesOffered of this attempt, this time among them; the same offer sent again has the same id
 * @param offeredAt by the database's clock
 */
export function taskRecord(task: PendingTask, timesOffered: number, offeredAt: Instant): OutgoingRecord {
  const message: TaskMessage = {
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
  }
  return {
    key: task.taskId,
    value: Buffer.from(JSON.stringify(message)),
    headers: {
      ce_specversion: '1.0',
      ce_id: `${task.taskId}/${task.attempt}/${timesOffered}`,
      ce_source: SOURCE,
      ce_type: TASK_OFFERED,
      ce_subject: task.taskId,
      ce_time: new Date(offeredAt).toISOString(),
      'content-type': 'application/json',
    },
  }
}
