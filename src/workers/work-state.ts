/**
 * The port to the work state: which tasks may be handed out, which are, and who holds them until when. It is not
 * the fold: losing it delays tasks and never loses or doubles an outcome. Every call is atomic by itself, and
 * what it compares and changes it does in one step; several processes call it at once.
 *
 * `src/workers/postgres` is the adapter that serves; the simulation brings one in memory, and a test holds the two
 * to the same answers.
 */
import type { DeadlineTimer } from '../domain/deadlines.ts'
import type { Instant } from '../domain/events.ts'
import type { PendingTask, ProcessingTask, Task } from '../domain/task.ts'

/** A task handed towards a claim, not yet started. */
export interface Taken {
  taskId: string
  attempt: number
  /** Whether this claim had taken it before: it is asked again, its answer was lost. */
  again: boolean
}

export interface Heartbeat {
  taskId: string
  attempt: number
  leaseTokenHash: string
  /** 0 to 1; null keeps what was said last. */
  progress: number | null
}

/** What a beat or a lease is for: one worker may hold a task's attempt and still believe in an earlier one. */
export const leaseKey = (of: { taskId: string; attempt: number; leaseTokenHash: string }): string =>
  `${of.taskId}/${of.attempt}/${of.leaseTokenHash}`

/** What is known of a running task beside its stream. */
export interface LeaseSignals {
  heldUntil: Instant
  lost: boolean
  lastHeartbeatAt: Instant | null
  progress: number | null
}

/** What is known of a waiting task beside its stream; null fields where it is not offered just now. */
export interface OfferSignals {
  heldUntil: Instant | null
  timesOffered: number
}

/** Whether the worker of a task that was cancelled under its hands has heard of it. */
export interface CancelNotice {
  attempt: number
  worker: string
  toldAt: Instant | null
}

/** Of a task in one status only the signals of that status are asked; null where there are none. */
export interface Signals {
  lease: LeaseSignals | null
  offer: OfferSignals | null
  cancelNotice: CancelNotice | null
}

export const NO_SIGNALS: Signals = { lease: null, offer: null, cancelNotice: null }

export interface LostLease {
  taskId: string
  attempt: number
  heldUntil: Instant
  lastHeartbeatAt: Instant | null
}

export interface DueDeadline {
  taskId: string
  timer: DeadlineTimer
  attempt: number
  dueAt: Instant
}

/** What a look at the due deadlines asks for. */
export interface DueQuery {
  /** The last row seen; null begins at the oldest. */
  after: { dueAt: Instant; taskId: string } | null
  limit: number
  /** The limits of running attempts (execution, step, total) count as due only when they are overdue for so long. */
  graceMs: number
}

export interface LostWork {
  /** Tasks that wait and cannot be claimed, or run without a lease. */
  taskIds: string[]
  /** Where the next page begins, null at the end. */
  next: { createdAt: Instant; taskId: string } | null
}

export interface WorkState {
  /**
   * Takes up to `max` tasks out of `ready` into `offers`, the most urgent first, then the oldest. A claim id that
   * has tasks already is answered with those and takes no more. An offer is held for `OFFER_HOLD_MS`, twice as long
   * each time the same attempt is offered, up to `OFFER_HOLD_MAX_MS`.
   */
  take(claim: { claimId: string; types: readonly string[]; max: number }): Promise<Taken[]>
  /** Drops offers of this claim that turned out to be of no use. */
  dropOffers(claimId: string, taskIds: readonly string[]): Promise<void>
  /** Gives offers whose time is over back to `ready`. @returns the types of what came back, one for each task */
  returnOverdueOffers(limit: number): Promise<{ type: string }[]>
  /**
   * Makes waiting tasks claimable; a task whose attempt is offered already, or that stands there in this attempt,
   * stays as it is.
   */
  makeReady(tasks: readonly PendingTask[]): Promise<void>

  /**
   * Moves the ends of leases that are held by this token for this attempt and not lost.
   *
   * @returns the new ends by `leaseKey`
   */
  beat(beats: readonly Heartbeat[]): Promise<Map<string, Instant>>
  /** Grants a full lease where there is none for this attempt; one of this attempt stays as it is. */
  grantLeases(tasks: readonly ProcessingTask[]): Promise<void>
  withdrawLeases(leases: readonly { taskId: string; attempt: number }[]): Promise<void>
  /** Takes leases that have ended, in one conditional update: from then on no heartbeat holds them. */
  takeLostLeases(limit: number): Promise<LostLease[]>
  /** Drops leases that are lost and have no purpose left; a later attempt's is not lost. */
  dropLostLeases(taskIds: readonly string[]): Promise<void>

  /** Keeps that the workers of these cancelled tasks have heard of it, the first time each. */
  markTold(told: readonly { taskId: string; attempt: number; worker: string }[]): Promise<void>
  signals(task: Task): Promise<Signals>

  /**
   * Says that the timers look. After a gap of more than `gapMs` since the last look's end every lease that is not
   * lost is given anew, in the same step; timers of other processes wait until that is done.
   *
   * @returns the gap and how many leases were given, null where there was none
   */
  beginLook(gapMs: number): Promise<{ gapMs: number; leases: number } | null>
  endLook(): Promise<void>
  /** Deadlines that are due, oldest first, without those of tasks that are set aside. */
  dueDeadlines(query: DueQuery): Promise<DueDeadline[]>
  /** Makes delayed tasks whose time has come claimable; each one's next deadline takes its row over. */
  passNotBefore(tasks: readonly PendingTask[]): Promise<void>
  /** The next page of open tasks in this status whose work state is missing, in the order they were created. */
  lostWork(status: 'PENDING' | 'PROCESSING', after: LostWork['next'], limit: number): Promise<LostWork>
}

/** How long a taken task stays out of `ready`; START comes milliseconds later. */
export const OFFER_HOLD_MS = 10_000
export const OFFER_HOLD_MAX_MS = 5 * 60_000
