/** From a record's bytes to a worker event, or to what is wrong with it. Nothing a record holds makes this throw. */
import { isUtf8 } from 'node:buffer'
import type { z } from 'zod'
import type { IncomingRecord } from '../broker/broker.ts'
import { taskIdSchema } from '../domain/fields.ts'
import { cutText, storableText } from '../domain/text.ts'
import { DEAD_LETTER_REASONS, type DeadLetterReason, type Fault } from './dead-letters.ts'
import { JsonRefusedError, parseJsonBytes } from './json-bytes.ts'
import { type WorkerEvent, workerEventSchema } from './worker-events.ts'

/** As much as a request over HTTP may have: content of 256 KiB, escaped, and what is around it. */
export const RECORD_BYTES = 1024 * 1024
const SAID_ISSUES = 3
const MESSAGE_BYTES = 1_000

export type Parsed = { event: WorkerEvent; fault: null } | { event: null; fault: Fault }

export function parseWorkerEvent(record: IncomingRecord): Parsed {
  const { key, value } = record
  const keyed = key === null ? null : idIn(key)
  const fault = (
    code: DeadLetterReason,
    message: string = DEAD_LETTER_REASONS[code],
    taskId = keyed,
  ): Parsed => ({
    event: null,
    fault: { code, message, taskId },
  })
  if (value === null) return fault('no_value')
  if (value.length > RECORD_BYTES)
    return fault('record_too_large', `The value has ${value.length} bytes; ${RECORD_BYTES} are read.`)
  let json: unknown
  try {
    json = parseJsonBytes(value, 'The value')
  } catch (error) {
    if (!(error instanceof JsonRefusedError)) throw error
    return fault(error.code, error.message)
  }
  const named = taskIdIn(json)
  const parsed = workerEventSchema.safeParse(json)
  if (!parsed.success) return fault(codeOf(parsed.error), messageOf(parsed.error), named ?? keyed)
  const { taskId } = parsed.data
  if (key === null) return fault('no_key', undefined, taskId)
  if (keyed !== taskId)
    return fault('key_mismatch', `The value names task ${taskId}; the key is not its id.`, taskId)
  return { event: parsed.data, fault: null }
}

function idIn(key: Buffer): string | null {
  // A longer one is no id, and need not be turned into text.
  if (key.length !== 36 || !isUtf8(key)) return null
  return taskIdSchema.safeParse(key.toString('utf8')).data ?? null
}

function taskIdIn(json: unknown): string | null {
  if (typeof json !== 'object' || json === null || !('taskId' in json)) return null
  return taskIdSchema.safeParse(json.taskId).data ?? null
}

/** As over HTTP: content that is too large has a code of its own where that alone is wrong. */
function codeOf({ issues }: z.ZodError): DeadLetterReason {
  const codes = new Set(
    issues.map(issue => (issue.code === 'custom' ? issue.params?.problem : undefined) ?? 'invalid_event'),
  )
  const [code] = codes
  return codes.size === 1 && (code === 'content_too_large' || code === 'json_too_deep')
    ? code
    : 'invalid_event'
}

function messageOf({ issues }: z.ZodError): string {
  const said = issues
    .slice(0, SAID_ISSUES)
    .map(({ path, message }) => `${path.join('.') || 'the value'}: ${message}`)
  const rest = issues.length - said.length
  // Names of unknown fields are the sender's, and as long as it liked.
  return cutText(storableText(`${said.join('; ')}${rest > 0 ? `; and ${rest} more` : ''}`), MESSAGE_BYTES)
}
