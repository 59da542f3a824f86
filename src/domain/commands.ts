/** What is asked of a task. Edges check the shapes; a command that reaches the domain is well formed. */
import type { Actor, Instant, Json, LifecycleRef, Source, TaskError, Timeouts } from './events.ts'
import type { TimeoutTimer } from './lifecycle.ts'
import type { RetryPolicy } from './retry-policy.ts'

/** Attempt and token of whoever works on the task; the token travels as its SHA-256 in hex. */
export interface Fence {
  attempt: number
  leaseTokenHash: string
}

export type Command =
  | {
      trigger: 'SUBMIT'
      type: string
      priority: number
      tenant: string | null
      lifecycle: LifecycleRef
      timeouts: Timeouts
      retry: RetryPolicy
      /** Not before this instant; null is now. */
      runAt: Instant | null
      /** Wait this long first; null is none. Exclusive with runAt. */
      delayMs: number | null
      payload: Json
      labels: Record<string, string>
      salt: string
      /** SHA-256 over the salt and the request; the salt is the stored one where the task exists. */
      fingerprint: string
    }
  | ({ trigger: 'START'; worker: string } & Fence)
  | ({ trigger: 'STEP'; step: string; context?: Json } & Fence)
  | ({ trigger: 'SUCCEED'; result: Json; resultUrl: string | null } & Fence)
  | ({
      trigger: 'FAIL'
      error: TaskError
      retryable: boolean
      /** The worker's own wish for the wait, in milliseconds; null leaves it to the retry policy. */
      retryAfterMs: number | null
      context?: Json
    } & Fence)
  | ({ trigger: 'RELEASE'; reason: string | null; context?: Json } & Fence)
  | {
      trigger: 'TIMEOUT'
      timer: TimeoutTimer
      /** The attempt whose timer fired; null for queue and total, which belong to the task. */
      attempt: number | null
      lastHeartbeatAt: Instant | null
      /** When the lease ended, for the timer `lease`; other dates are in the stream. */
      leaseEndedAt?: Instant
    }
  | { trigger: 'RETRY'; reason: string | null }
  | { trigger: 'CANCEL'; reason: string | null }
  | { trigger: 'NOTE'; note: string }

export type CommandTrigger = Command['trigger']

/** A command with its address and its origin. */
export interface CommandEnvelope {
  taskId: string
  command: Command
  /** Recognised when sent again, as long as the task remembers it. */
  commandId: string
  actor: Actor
  source: Source
  correlationId: string | null
  causationId: string | null
  trace: string | null
  /** Refuse unless the task is at this revision; null is any. */
  ifRevision: number | null
}
