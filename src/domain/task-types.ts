/** Defaults per task type, as the configuration gives them, and what a submit becomes with them. */
import { z } from 'zod'
import { type Timeouts, timeoutsSchema } from './events.ts'
import { DEFAULT_TIMEOUTS, NAME_PATTERN } from './limits.ts'
import { DEFAULT_RETRY_POLICY, type RetryPolicy, retryPolicySchema } from './retry-policy.ts'

export const taskTypeSchema = z.strictObject({
  timeouts: timeoutsSchema.partial().optional(),
  retry: retryPolicySchema.partial().optional(),
  priority: z.int().optional(),
  /** Name of a configured lifecycle; left out, the standard one. */
  lifecycle: z.string().regex(NAME_PATTERN).optional(),
  /** JSON Schema of the payload. */
  payloadSchema: z.record(z.string(), z.unknown()).optional(),
})
export type TaskType = z.infer<typeof taskTypeSchema>

/** What the request leaves out comes from the type, what the type leaves out from the defaults. */
export function resolveTimeouts(
  type: TaskType | null,
  asked: { [K in keyof Timeouts]?: Timeouts[K] | undefined } | undefined,
): Timeouts {
  return { ...DEFAULT_TIMEOUTS, ...defined(type?.timeouts), ...defined(asked) }
}

export function resolveRetry(
  type: TaskType | null,
  asked: { [K in keyof RetryPolicy]?: RetryPolicy[K] | undefined } | undefined,
): RetryPolicy {
  return { ...DEFAULT_RETRY_POLICY, ...defined(type?.retry), ...defined(asked) }
}

/** A key that is there with the value undefined must not hide a default. */
function defined<T extends object>(value: T | undefined): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(value ?? {}).filter(([, one]) => one !== undefined)) as {
    [K in keyof T]?: Exclude<T[K], undefined>
  }
}
