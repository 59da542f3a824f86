/** What a roll call says: shapes alone, for whoever reads it, over the wire too. */
import type { Status } from '../domain/lifecycle.ts'

export const TYPES_MAX = 200
/** No type has such a name. */
export const OTHER_TYPES = '(other types)'

/** Why a task counts as unaccounted. */
export const UNACCOUNTED_REASONS = [
  /** Open, and no timer is armed that leaves its state. */
  'no_timer',
  /** Its deadline passed longer ago than the grace. */
  'overdue',
  /** It cannot be folded or written, and waits for a person. */
  'set_aside',
  /** It is in the log and in no row. */
  'not_in_read_model',
  /** Its rows and its stream differ, or its stream is not whole. */
  'drift',
] as const
export type UnaccountedReason = (typeof UNACCOUNTED_REASONS)[number]

export interface NamedTask {
  taskId: string
  /** What is wrong with it. */
  detail: string
}

/** How many there are, and the first of them, the oldest fault first. */
export interface NamedTasks {
  count: number
  tasks: NamedTask[]
}

export interface RollCallGroup {
  /** A task type; `OTHER_TYPES` sums up the rarest where there are more than `TYPES_MAX`. */
  type: string
  status: Status
  count: number
  /** When the oldest of them was submitted. ISO 8601. */
  oldestCreatedAt: string
  /** Those whose deadline passed longer ago than the grace. */
  overdue: number
}

export interface RollCallReport {
  /** When it was called, by the database's clock. ISO 8601. */
  at: string
  /** All tasks there are. */
  tasks: number
  open: number
  groups: RollCallGroup[]
  /** Running, and their lease has ended or is missing. The lease timer is about to end their attempts. */
  withoutLiveWorker: NamedTasks
  /** Records of workers that could not be handled and wait for a person. */
  deadLetters: number
  unaccounted: {
    /** Null while it cannot be known; `unknownBecause` says why. A task with two reasons counts once. */
    total: number | null
    unknownBecause: string | null
    reasons: (NamedTasks & { reason: UnaccountedReason })[]
  }
  lag: {
    /** Events of the log that are not in the read model, null where the log went backwards. */
    events: number | null
    /** There are more; they are counted up to a limit. */
    moreEvents: boolean
    seconds: number
    boundSeconds: number
  }
  /** The last walk that compared everything with the log; null where none has ended yet. ISO 8601. */
  verified: { from: string; at: string } | null
  graceMs: number
}

/** What is measured of a roll call; null is not known. */
export interface RollCallFigures {
  tasks: readonly { type: string; status: string; count: number }[]
  overdue: number
  unaccounted: number | null
  setAside: number
  drift: number | null
  lagSeconds: number | null
  lagEvents: number | null
  deadLetters: number
}

/** The figures of a report, for gauges. Drift is known once everything was looked at. */
export function rollCallFigures(report: RollCallReport): RollCallFigures {
  const { groups, unaccounted, lag, verified } = report
  const countOf = (reason: UnaccountedReason) =>
    unaccounted.reasons.find(one => one.reason === reason)?.count ?? 0
  const drift = countOf('drift') + countOf('not_in_read_model')
  return {
    tasks: groups,
    overdue: countOf('overdue'),
    unaccounted: unaccounted.total,
    setAside: countOf('set_aside'),
    drift: drift === 0 && verified === null ? null : drift,
    lagSeconds: lag.events === null ? null : lag.seconds,
    lagEvents: lag.events,
    deadLetters: report.deadLetters,
  }
}
