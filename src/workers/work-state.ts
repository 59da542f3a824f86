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
import type { LeaseSignals, Signals } from '../domain/signals.ts'
import type { OpenTask, PendingTask, ProcessingTask, Task } from '../domain/task.ts'

export type { CancelNotice, LeaseSignals, OfferSignals, Signals } from '../domain/signals.ts'
export { NO_SIGNALS } from '../domain/signals.ts'

/** A task handed towards a claim, not yet started. */
export interface Taken {
  taskId: string
  attempt: number
  /** Whether this claim had taken it before: it is asked again, its answer was lost. */
  again: boolean
}

/** What a dispatcher asks for. */
export interface DispatchQuery {
  type: string
  max: number
  /** How many tasks of the type may be on their way at once, taken by whichever dispatcher and not seen started. */
  maxOutstanding: number
  /** How long the first offer of an attempt is held. */
  holdMs: number
}

export interface ToDispatch {
  /** In the order in which they were taken: the most urgent first, then the oldest. */
  taken: { taskId: string; attempt: number; timesOffered: number }[]
  /** Of the type, those just taken among them. */
  outstanding: number
  /** When they were taken, by the database's clock. */
  offeredAt: Instant
}

/** The offers of all dispatchers for a type. No claim over HTTP can have this id: those have no space. */
export const dispatchId = (type: string): string => `dispatch ${type}`

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
  /** It fell due in a gap while its worker's lease stands: it is not to be fired until the grace is over. */
  inGrace: boolean
}

/** What a look at the due deadlines asks for. */
export interface DueQuery {
  /** The last row seen; null begins at the oldest. */
  after: { dueAt: Instant; taskId: string } | null
  limit: number
  /**
   * How long after the end of a gap the limits of running attempts (execution, step, total) are in grace, where
   * they fell due in that gap or at most so long before it and the attempt has a lease that is not lost.
   */
  graceMs: number
}

export interface LostWork {
  taskIds: string[]
  /** Where the next page begins, null at the end. */
  next: { createdAt: Instant; taskId: string } | null
}

/** What a claim asks for. */
export interface TakeQuery {
  claimId: string
  types: readonly string[]
  max: number
  /** Whose tasks alone; null takes those of all. */
  tenant: string | null
}

export interface WorkState {
  /**
   * Takes up to `max` tasks out of `ready` into `offers`, the most urgent first, then the oldest. A claim id that
   * has tasks already is answered with those and takes no more. An offer is held for `OFFER_HOLD_MS`, twice as long
   * each time the same attempt is offered, up to `OFFER_HOLD_MAX_MS`.
   */
  take(claim: TakeQuery): Promise<Taken[]>
  /**
   * As `take`, for the dispatcher of a type: no more than leaves its outstanding offers at `maxOutstanding`, whatever
   * number of dispatchers ask at once. They are held under `dispatchId`, for `holdMs` and twice as long each time the
   * same attempt is offered, up to `OFFER_HOLD_MAX_MS` or to `holdMs` where that is longer.
   */
  takeToDispatch(query: DispatchQuery): Promise<ToDispatch>
  /** Drops offers of this claim that turned out to be of no use. */
  dropOffers(claimId: string, taskIds: readonly string[]): Promise<void>
  /** Gives offers whose time is over back to `ready`. @returns what came back, one for each task */
  returnOverdueOffers(limit: number): Promise<{ type: string; tenant: string | null }[]>
  /**
   * Makes tasks claimable where the read model says that they wait in this attempt; a task whose attempt is offered
   * already, or that stands there in this attempt, stays as it is.
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
  /**
   * Takes leases that have ended, in one conditional update: from then on no heartbeat holds them. None where the
   * last tick of the look is older than `gapMs`: whoever asks may have stood still since, and nobody was heard.
   */
  takeLostLeases(limit: number, gapMs: number): Promise<LostLease[]>
  /** Drops leases that are lost and have no purpose left; a later attempt's is not lost. */
  dropLostLeases(taskIds: readonly string[]): Promise<void>

  /** Keeps that the workers of these cancelled tasks have heard of it, the first time each. */
  markTold(told: readonly { taskId: string; attempt: number; worker: string }[]): Promise<void>
  /** Forgets the oldest notices of more than seven days ago. */
  pruneCancelNotices(limit: number): Promise<void>
  signals(task: Task): Promise<Signals>
  /** What is known of many running tasks in one look; those without a lease of their attempt are not among it. */
  leaseSignals(tasks: readonly ProcessingTask[]): Promise<Map<string, LeaseSignals>>

  /**
   * Says that the timers look. After a gap of more than `gapMs` since the last look's end every lease that is not
   * lost is given anew and the gap is kept for `dueDeadlines`, in the same step; timers of other processes wait until
   * that is done.
   *
   * @returns the gap and how many leases were given, null where there was none
   */
  beginLook(gapMs: number): Promise<{ gapMs: number; leases: number } | null>
  /**
   * Says that the look goes on, or has come to its end, unless the last tick is older than `gapMs`.
   *
   * @returns whether it was said; where not, there is a gap for the next look to find
   */
  keepLook(gapMs: number): Promise<boolean>
  /** Whether another process's look was the last one and began or ended within so many milliseconds. */
  isLookedAt(withinMs: number): Promise<boolean>
  /** Deadlines that are due, oldest first, those in grace among them, without those of tasks that are set aside. */
  dueDeadlines(query: DueQuery): Promise<DueDeadline[]>
  /** Makes delayed tasks whose time has come claimable; each one's next deadline takes its row over. */
  passNotBefore(tasks: readonly PendingTask[]): Promise<void>
  /**
   * A page of `limit` open tasks in this status, in the order they were created: those of them whose deadline is
   * missing, or that wait and cannot be claimed, or run without a lease.
   */
  lostWork(status: OpenTask['status'], after: LostWork['next'], limit: number): Promise<LostWork>
  /** Arms what fires next for tasks that have no deadline, where the read model is at this very revision. */
  armDeadlines(tasks: readonly OpenTask[]): Promise<void>
}

/** How long a taken task stays out of `ready`; START comes milliseconds later. */
export const OFFER_HOLD_MS = 10_000
export const OFFER_HOLD_MAX_MS = 5 * 60_000
