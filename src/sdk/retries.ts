/** Trying again what failed in a way that may pass: bounded in number and time. */
import { RollcallError } from './errors.ts'
import { backoffMs, monotonicMs, sleep } from './waiting.ts'

export const RETRY_BACKOFF = { initialMs: 50, maxMs: 2_000 }

export interface RetryPlan {
  retries: number
  timeoutMs: number
  /**
   * How long one attempt may take. Half of the time where it is left out, so that an answer lost in silence still leaves
   * room for another.
   */
  attemptMs?: number
  signal: AbortSignal | undefined
}

/** Runs an attempt, again while it fails in a way that may pass and there is time. */
export async function withRetries<T>(
  attempt: (timeoutMs: number) => Promise<T>,
  plan: RetryPlan,
): Promise<T> {
  const deadline = monotonicMs() + plan.timeoutMs
  const attemptMs = plan.retries === 0 ? plan.timeoutMs : (plan.attemptMs ?? plan.timeoutMs / 2)
  for (let failures = 1; ; failures++) {
    const left = deadline - monotonicMs()
    try {
      return await attempt(Math.max(1, Math.min(left, attemptMs)))
    } catch (error) {
      if (!isPassingFailure(error) || failures > plan.retries) throw error
      const waitMs = Math.max(backoffMs(RETRY_BACKOFF, failures), error.retryAfterMs ?? 0)
      if (monotonicMs() + waitMs >= deadline) throw error
      await sleep(waitMs, plan.signal)
      plan.signal?.throwIfAborted()
    }
  }
}

/** Whether the same may do better later. */
export const isPassingFailure = (error: unknown): error is RollcallError =>
  error instanceof RollcallError && error.retryable
