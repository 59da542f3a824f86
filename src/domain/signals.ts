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
