/** Records of worker events, as a consumer hands them over. */
import { randomUUID } from 'node:crypto'
import type { IncomingRecord } from '../../src/broker/broker.ts'
import { WORKER_EVENTS } from '../../src/broker/topics.ts'

export const TOKEN = 'lease-token-of-the-first-worker'
export const OTHER_TOKEN = 'lease-token-of-another-worker'

/** The fields that every trigger has; a command id of its own unless it is given. */
export const anEvent = (taskId: string, trigger: string, over: Record<string, unknown> = {}) => ({
  trigger,
  taskId,
  worker: 'worker-1',
  attempt: 1,
  leaseToken: TOKEN,
  commandId: randomUUID() as string,
  ...over,
})

let offset = 0

/** A record at a place of its own. */
export const aRecord = (over: Partial<IncomingRecord> = {}): IncomingRecord => ({
  topic: WORKER_EVENTS,
  partition: 0,
  offset: String(offset++),
  key: null,
  value: null,
  headers: [],
  timestamp: 1_767_225_600_000,
  ...over,
})

export const recordOf = (
  event: { taskId: string } & Record<string, unknown>,
  over: Partial<IncomingRecord> = {},
): IncomingRecord =>
  aRecord({ key: Buffer.from(event.taskId), value: Buffer.from(JSON.stringify(event)), ...over })

/** An event of a task as a record. */
export const says = (taskId: string, trigger: string, over: Record<string, unknown> = {}): IncomingRecord =>
  recordOf(anEvent(taskId, trigger, over))
