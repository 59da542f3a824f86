/**
 * What is known of a task beside its stream: who holds it and who was told. Signals explain a task and time its
 * lease; they never decide its outcome.
 */
import type { Instant } from './events.ts'

/** What is known of a running task beside its stream. */
export interface LeaseSignals {
  heldUntil: Instant
  lost: boolean
  lastHeartbeatAt: Instant | null
  progress: number | null
}

/** What is known of a waiting task beside its stream; `heldUntil` is null where it is not offered just now. */
export interface OfferSignals {
  heldUntil: Instant | null
  timesOffered: number
}

/**
 * A waiting task's place among the claimable tasks of its type: the most urgent first, then the oldest. Rank 1 is
 * claimed next. Counted as far as `AHEAD_MAX`; beyond that `exact` is false, and the rank is higher than what is said.
 */
export interface Position {
  rank: number
  exact: boolean
}

/** How many tasks ahead of a waiting one are counted, so that it costs the same however many there are. */
export const AHEAD_MAX = 1_000

/** @param ahead tasks ahead, counted up to `AHEAD_MAX + 1` */
export const positionBehind = (ahead: number): Position => ({
  rank: Math.min(ahead, AHEAD_MAX) + 1,
  exact: ahead <= AHEAD_MAX,
})

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
  /** Null unless the task waits to be claimed: not while it is delayed or handed towards a worker. */
  position: Position | null
  cancelNotice: CancelNotice | null
}

export const NO_SIGNALS: Signals = { lease: null, offer: null, position: null, cancelNotice: null }
