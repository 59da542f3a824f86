/** From a record's bytes to the task it offers, or to what is wrong with it. Nothing a record holds makes this throw. */
import type { IncomingRecord } from '../../broker/broker.ts'
import type { TaskMessage } from '../../workers/task-message.ts'

export type ParsedMessage = { message: TaskMessage; fault: null } | { message: null; fault: string }

const TASK_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/
const ATTEMPT_MAX = 1_000_000_000

/** Fields that a newer service may have added are passed over. */
export function parseTaskMessage({ value }: IncomingRecord, type: string): ParsedMessage {
  if (value === null) return fault('it has no value')
  let json: unknown
  try {
    json = JSON.parse(value.toString('utf8'))
  } catch {
    return fault('its value is not JSON')
  }
  if (!isRecord(json)) return fault('its value is not an object')
  for (const [name, is] of Object.entries(FIELDS))
    if (!is(json[name])) return fault(`${name} is missing or wrong`)
  // Every field but the type was checked one by one, which TypeScript cannot see.
  const message = json as unknown as TaskMessage
  if (message.type !== type)
    return fault(`its type is ${JSON.stringify(message.type).slice(0, 80)}, not ${type}`)
  return { message, fault: null }
}

const fault = (text: string): ParsedMessage => ({ message: null, fault: text })

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const isWhole = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0
const isGiven = (value: unknown): boolean => value !== undefined

const FIELDS: Record<keyof TaskMessage, (value: unknown) => boolean> = {
  taskId: value => typeof value === 'string' && TASK_ID.test(value),
  type: value => typeof value === 'string',
  run: isWhole,
  attempt: value => isWhole(value) && (value as number) >= 1 && (value as number) <= ATTEMPT_MAX,
  maxAttempts: isWhole,
  attemptsCharged: isWhole,
  payload: isGiven,
  context: isGiven,
  labels: value => isRecord(value) && Object.values(value).every(label => typeof label === 'string'),
  correlationId: value => value === null || typeof value === 'string',
  leaseMs: isWhole,
  executionMs: isWhole,
}
