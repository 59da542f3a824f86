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

/** The task id that an Idempotency-Key stands for, scoped by tenant and route: the stream is the check. */
export const taskIdOfKey = (tenant: string, route: string, key: string): string =>
  uuidv5(`${tenant}\n${route}\n${key}`, KEY_NAMESPACE)
