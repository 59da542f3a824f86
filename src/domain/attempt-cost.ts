/** What it costs a task when a timer fires: for the decision, and for what people are told of it before. */
import type { Instant } from './events.ts'
import type { TimeoutTimer } from './lifecycle.ts'
import { LIMITS } from './limits.ts'
import type { OpenTask } from './task.ts'

export interface AttemptCost {
  /** Whether the budget pays for the attempt, provided that the task is tried again. */
  charged: boolean
  /** Whether the budget has an attempt left then. */
  attemptsLeft: boolean
  /** Which backoff of the retry policy follows, from 1. */
  backoff: number
}

/**
 * A lease that ended without one heartbeat costs nothing, and the first backoff follows: most likely its worker
 * never began. A task that kills its worker at once looks the same, so a run is given this a few times only;
 * each time takes a whole lease, so that even a policy without backoff does not spin.
 *
 * @param lastHeartbeatAt of the attempt that runs; null where its worker was not heard
 */
export function costOfTimeout(
  task: OpenTask,
  timer: TimeoutTimer,
  lastHeartbeatAt: Instant | null,
): AttemptCost {
  const { attemptsCharged, retry } = task
  const running = task.status === 'PROCESSING'
  const silent = running && timer === 'lease' && lastHeartbeatAt === null
  const charged = running && !(silent && task.silentLeasesInRun < LIMITS.silentLeasesPerRun)
  const chargedThen = attemptsCharged + (charged ? 1 : 0)
  return {
    charged,
    attemptsLeft: chargedThen < retry.maxAttempts,
    backoff: charged ? chargedThen : 1,
  }
}
