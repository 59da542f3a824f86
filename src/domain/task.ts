/** A task as folded from its stream: one shape per status, so that a finished task has no lease to misread. */
import type { Actor, Instant, Json, LifecycleRef, TaskError, Timeouts } from './events.ts'
import { isOpenStatus, type Status, type TimeoutTimer } from './lifecycle.ts'
import type { RetryPolicy } from './retry-policy.ts'

/** How an attempt ended, kept for the last few, to recognise what its worker sends again or late. */
export interface EndedAttempt {
  attempt: number
  worker: string
  leaseTokenHash: string
  ended: 'succeeded' | 'failed' | 'timed_out' | 'released' | 'cancelled'
  lateResultRecorded: boolean
}

export interface TaskCore {
  taskId: string
  type: string
  priority: number
  tenant: string | null
  lifecycle: LifecycleRef
  timeouts: Timeouts
  retry: RetryPolicy
  payload: Json
  labels: Record<string, string>
  /** Handed to the next attempt so that it may resume; null before any was set. */
  context: Json
  salt: string
  fingerprint: string
  correlationId: string | null
  /** Raised by a manual RETRY of a failed task. */
  run: number
  /** The attempt that waits, runs or ran last; raised when a started task goes back to PENDING, never reused. */
  attempt: number
  /** Attempts charged against the budget in this run. */
  attemptsCharged: number
  releasesInRun: number
  /** Leases that ended without one heartbeat and were not charged for it. */
  silentLeasesInRun: number
  runAt: Instant
  createdAt: Instant
  updatedAt: Instant
  totalDeadlineAt: Instant
  /** What went wrong last, also while another attempt is on its way; null when nothing has. */
  lastError: TaskError | null
  endedAttempts: readonly EndedAttempt[]
  lateResults: number
  notes: number
  /** The last accepted commands (`remembered.ts`), as what they stored and their id: `TaskStarted:<command id>`. */
  recentCommands: readonly string[]
  /** Number of the last event in the stream. */
  revision: number
  /** Hash of the last event. */
  hash: string
}

/** What a status that has been started carries on. */
interface Started {
  worker: string
  startedAt: Instant
}

export interface PendingTask extends TaskCore {
  status: 'PENDING'
  enteredBy: 'submit' | 'release' | 'requeue'
  /** What was said when it came back, by its worker or by whoever asked RETRY. */
  enteredReason: string | null
  pendingSince: Instant
  queueDeadlineAt: Instant
}

export interface ProcessingTask extends TaskCore, Started {
  status: 'PROCESSING'
  leaseTokenHash: string
  /** Command id of the START; a claim that is asked again finds its tasks by it. */
  startCommandId: string
  /** The first lease; later ones are signals and live outside the log. */
  leaseDeadlineAt: Instant
  executionDeadlineAt: Instant
  step: string | null
  stepSince: Instant | null
  stepDeadlineAt: Instant | null
  stepsEntered: number
}

export interface RetryingTask extends TaskCore, Started {
  status: 'RETRYING'
  retryingSince: Instant
  retryAt: Instant
}

export interface SucceededTask extends TaskCore, Started {
  status: 'SUCCESS'
  finishedAt: Instant
  result: Json
  resultUrl: string | null
}

export interface FailedTask extends TaskCore {
  status: 'FAILED'
  startedAt: Instant | null
  finishedAt: Instant
  cause: 'not_retryable' | 'no_attempts_left' | 'lifecycle' | 'timed_out'
  timer: TimeoutTimer | null
  error: TaskError
}

export interface CancelledTask extends TaskCore {
  status: 'CANCELLED'
  startedAt: Instant | null
  finishedAt: Instant
  cancelledBy: Actor
  reason: string | null
}

export type OpenTask = PendingTask | ProcessingTask | RetryingTask
export type FinishedTask = SucceededTask | FailedTask | CancelledTask
export type Task = OpenTask | FinishedTask

export const isOpen = (task: Task): task is OpenTask => isOpenStatus(task.status satisfies Status)

/** Marks a switch that has handled every case; the compiler refuses it otherwise. */
export function unreachable(value: never): never {
  throw new Error(`bug: a case is missing for ${JSON.stringify(value)}`)
}
