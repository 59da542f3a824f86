import { randomFillSync } from 'node:crypto'
import { v5 as uuidv5, v7 as uuidv7 } from 'uuid'

/** Namespace of task ids made from idempotency keys; fixed for ever, since the ids are stored. */
const KEY_NAMESPACE = '6f1f5a0e-6f0b-5d0b-9c39-2f4a2d1f7c11'
const ID_BYTES = 16

// A call for 16 random bytes costs as much as one for 4,096.
const randomBytes = new Uint8Array(256 * ID_BYTES)
let used = randomBytes.length

/** A new task id: UUIDv7, so that ids made together lie together in an index. */
export function newTaskId(): string {
  if (used === randomBytes.length) {
    randomFillSync(randomBytes)
    used = 0
  }
  const random = randomBytes.subarray(used, used + ID_BYTES)
  used += ID_BYTES
  return uuidv7({ random })
}

/** Where a key is one key: the same key of another tenant, or on another route, is another. */
export interface KeyScope {
  tenant: string | null
  route: 'tasks' | 'batch'
}

/**
 * The task id that an Idempotency-Key stands for: the stream is the check. Ids are stored, so what they are made of is
 * fixed for ever; no tenant's name holds a colon, so none can take the place of no tenant.
 */
export const taskIdOfKey = ({ tenant, route }: KeyScope, key: string): string =>
  uuidv5(`${tenant === null ? 'default' : `tenant:${tenant}`}\n${route}\n${key}`, KEY_NAMESPACE)

/** The key of one member of a batch that has a key as a whole; no key holds a line break. */
export const memberKey = (key: string, index: number): string => `${key}\n${index}`
