/** The header that makes asking again safe: it names a submit, a batch or a command. */
import { hash, randomUUID } from 'node:crypto'
import type { FastifyRequest } from 'fastify'
import { Problem } from './problems.ts'
import { idempotencyKeySchema } from './schemas/tasks.ts'

const COMMAND_ID_LENGTH = 128

/** The request's Idempotency-Key, null where it has none. @throws Problem */
export function idempotencyKey({ headers }: FastifyRequest): string | null {
  const header = headers['idempotency-key']
  if (header === undefined) return null
  const key = idempotencyKeySchema.safeParse(header)
  if (key.success) return key.data
  throw refusedKey(key.error.issues[0]?.message ?? 'is not valid')
}

/**
 * The id of a command: its key where it has one. A task remembers ids by what they stored, so one key on two routes is
 * two commands. A key that is longer than an id is stored as its digest.
 *
 * @param given the body's `commandId`
 * @throws Problem where two different ids are given
 */
export function commandIdOf(request: FastifyRequest, given: string | undefined): string {
  const key = idempotencyKey(request)
  if (key === null) return given ?? randomUUID()
  if (given !== undefined && given !== key) throw refusedKey('is not the commandId of the body; give one')
  return key.length <= COMMAND_ID_LENGTH ? key : `sha256:${hash('sha256', key)}`
}

/** A request that is refused for its key. */
export const refusedKey = (message: string): Problem =>
  new Problem('invalid_request', `Idempotency-Key ${message}`, [{ path: 'Idempotency-Key', message }])
