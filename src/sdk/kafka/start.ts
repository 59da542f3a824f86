/** START of many tasks at once, before their handlers run: asked of the service, or told to the broker. */
import { randomBytes } from 'node:crypto'
import type { StartResult, StartsAnswer, StartsRequest } from '../../api/schemas/workers.ts'
import type { OutgoingRecord } from '../../broker/broker.ts'
import type { TaskMessage } from '../../workers/task-message.ts'
import { RollcallError } from '../errors.ts'
import type { Http } from '../http.ts'

/** Answers each in its place; rejects when the outcome is not known. The same command id again is the same again. */
export type Start = (
  tasks: readonly TaskMessage[],
  commandId: string,
  timeoutMs: number,
  signal: AbortSignal,
) => Promise<StartResult[]>

/**
 * One for all attempts of this worker. They are told apart by their numbers, and a message that comes again is known by
 * it as this worker's own, also when the first answer was lost.
 */
export const newLeaseToken = (): string => randomBytes(24).toString('base64url')

export function startOverHttp(http: Http, worker: string, leaseToken: string): Start {
  return async (tasks, commandId, timeoutMs, signal) => {
    const asked: StartsRequest = {
      worker,
      leaseToken,
      tasks: tasks.map(({ taskId, attempt }) => ({ taskId, attempt })),
      commandId,
    }
    const { results } = await http.call<StartsAnswer>({
      method: 'POST',
      path: '/v1/workers/start',
      body: JSON.stringify(asked),
      timeoutMs,
      signal,
    })
    if (Array.isArray(results) && results.length === tasks.length) return results
    throw new RollcallError(`${tasks.length} tasks were to be started and not as many answered.`, {
      code: 'bad_answer',
      retryable: true,
    })
  }
}

/** Nobody answers whether they may begin; that the broker has it is enough. */
export function startByRecord(
  send: (records: readonly OutgoingRecord[], signal: AbortSignal) => Promise<void>,
  worker: string,
  leaseToken: string,
): Start {
  return async (tasks, commandId, _timeoutMs, signal) => {
    const records = tasks.map(({ taskId, attempt }) =>
      eventRecord(
        taskId,
        JSON.stringify({ trigger: 'START', taskId, worker, attempt, leaseToken, commandId }),
      ),
    )
    await send(records, signal)
    const now = Date.now()
    return tasks.map(({ taskId, leaseMs, executionMs }) => ({
      taskId,
      kind: 'accepted',
      leaseUntil: new Date(now + leaseMs).toISOString(),
      executionDeadlineAt: new Date(now + executionMs).toISOString(),
    }))
  }
}

/** A worker event for the broker. */
export const eventRecord = (taskId: string, json: string): OutgoingRecord => ({
  key: taskId,
  value: Buffer.from(json),
  headers: { 'content-type': 'application/json' },
})
