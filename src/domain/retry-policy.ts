import { z } from 'zod'
import { LIMITS } from './limits.ts'

/**
 * How often a run may charge an attempt and how long it waits in between. `maxAttempts` counts charged
 * attempts in one run; delays are milliseconds.
 */
export const retryPolicySchema = z.strictObject({
  maxAttempts: z.int().min(1).max(LIMITS.maxAttempts),
  initialDelayMs: z.int().min(0).max(LIMITS.timeoutMs.max),
  factor: z.number().min(1).max(100),
  maxDelayMs: z.int().min(0).max(LIMITS.timeoutMs.max),
  jitter: z.number().min(0).max(1),
})

export type RetryPolicy = z.infer<typeof retryPolicySchema>

export const DEFAULT_RETRY_POLICY: RetryPolicy = {
  maxAttempts: 3,
  initialDelayMs: 1_000,
  factor: 2,
  maxDelayMs: 5 * 60 * 1000,
  jitter: 0.2,
}

/**
 * The wait before the next attempt, in whole milliseconds.
 *
 * @param charged attempts charged so far in this run, the failed one included (from 1)
 * @param random  in [0, 1); it shortens the wait by up to `jitter`, so that tasks which failed together
 *                do not come back together
 *
 * The power overflows to Infinity for large counts (S32); the cap is taken before any arithmetic that could
 * turn Infinity into NaN.
 */
export function retryDelayMs(policy: RetryPolicy, charged: number, random: number): number {
  const grown = policy.initialDelayMs === 0 ? 0 : policy.initialDelayMs * policy.factor ** (charged - 1)
  const capped = Math.min(policy.maxDelayMs, grown)
  return Math.round(capped * (1 - policy.jitter * random))
}
