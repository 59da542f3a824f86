/** The headers of CloudEvents 1.0 in the binary mode of its Kafka protocol binding: the value is the data alone. */
import type { Instant } from '../domain/events.ts'

const SOURCE = 'rollcall'

export interface CloudEvent {
  /** The same event sent again has the same id. */
  id: string
  type: string
  /** The id of the task. */
  subject: string
  /** By the database's clock. */
  at: Instant
}

export const cloudEventHeaders = ({ id, type, subject, at }: CloudEvent): Record<string, string> => ({
  ce_specversion: '1.0',
  ce_id: id,
  ce_source: SOURCE,
  ce_type: type,
  ce_subject: subject,
  ce_time: new Date(at).toISOString(),
  'content-type': 'application/json',
})
