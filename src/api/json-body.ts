import { JsonRefusedError, parseJsonBytes } from '../workers/json-bytes.ts'
import { Problem } from './problems.ts'

/** A request's body as JSON that can be kept exactly. @throws Problem */
export function parseJsonBody(body: Buffer): unknown {
  try {
    return parseJsonBytes(body, 'The body')
  } catch (error) {
    if (error instanceof JsonRefusedError) throw new Problem(error.code, error.message)
    throw error
  }
}
