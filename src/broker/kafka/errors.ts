/** From errors of the client to those of the port. They are told by their codes, never by their text. */
import { BrokerUnavailableError, RecordRefusedError } from '../broker.ts'

/** The broker says these of the record or of the topic's name: asking again would be answered the same. */
const REFUSED = new Set([
  'MESSAGE_TOO_LARGE',
  'RECORD_LIST_TOO_LARGE',
  'INVALID_RECORD',
  'INVALID_TOPIC_EXCEPTION',
])

const MOST_CAUSES = 10

/** The broker's own codes in an error: the client wraps them, sometimes several times. */
export function brokerCodes(error: unknown): string[] {
  const codes: string[] = []
  const look = (one: unknown, depth: number): void => {
    if (typeof one !== 'object' || one === null || depth > MOST_CAUSES) return
    if ('type' in one && typeof one.type === 'string') codes.push(one.type)
    if ('errors' in one && Array.isArray(one.errors)) for (const inner of one.errors) look(inner, depth + 1)
    if ('cause' in one) look(one.cause, depth + 1)
  }
  look(error, 0)
  return codes
}

/** Short enough for a log line and for the answer of a health check. */
export function describe(error: unknown): string {
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error)
  return text.length > 300 ? `${text.slice(0, 300)}...` : text
}

export function portError(error: unknown, what: string): BrokerUnavailableError | RecordRefusedError {
  if (error instanceof BrokerUnavailableError || error instanceof RecordRefusedError) return error
  const refused = brokerCodes(error).find(code => REFUSED.has(code))
  return refused === undefined
    ? new BrokerUnavailableError(`${what} has no answer from the broker: ${describe(error)}`, {
        cause: error,
      })
    : new RecordRefusedError(`${what} is refused by the broker: ${refused}`, { cause: error })
}
