/**
 * The port to the rows that are the fold: where the projector writes. One `write` is one transaction with the
 * checkpoint, moved by compare-and-set. `src/projections/postgres` is the adapter that serves.
 */
import type { Task } from '../domain/task.ts'
import type { Checkpoint } from '../eventlog/event-log.ts'

/** Another projector has taken over; nothing was written. */
export class ProjectorFencedError extends Error {
  readonly code = 'projector_fenced'
}

/** A step of a projector: by whom, from where, to where. */
export interface Step {
  name: string
  holder: string
  leaseMs: number
  from: Checkpoint | null
  to: Checkpoint
  /** When the newest event of it happened, for the lag; null keeps what is known. */
  eventAt: number | null
}

/** A task whose rows cannot be written, or whose stream cannot be folded. */
export interface SetAside {
  taskId: string
  revision: number
  reason: string
}

export interface Written {
  /** The tasks whose rows moved. */
  moved: Task[]
  /** Those that were set aside in this step. */
  aside: readonly SetAside[]
}

export interface ReadModel {
  /** Takes or renews the projector's lease. @returns where to go on from, null while another projector holds it */
  acquire(name: string, holder: string, leaseMs: number): Promise<{ checkpoint: Checkpoint | null } | null>
  /**
   * Brings rows to these folds and what hangs on them (deadlines, ready, offers, leases) with them, sets tasks
   * aside, moves the checkpoint and renews the lease. A row that is there already, or further, stays as it is: a
   * batch that is delivered twice changes nothing. A task that the database refuses is set aside and stops nobody.
   *
   * @throws ProjectorFencedError when the checkpoint is not where this projector left it: nothing was written
   */
  write(tasks: readonly Task[], unread: readonly SetAside[], step: Step): Promise<Written>
  /**
   * Renews the lease where nothing is new.
   *
   * @param at where this projector stands
   * @throws ProjectorFencedError when the checkpoint is elsewhere: taken over, or emptied for a rebuild
   */
  renew(name: string, holder: string, leaseMs: number, at: Checkpoint | null): Promise<void>
  /** Gives the lease up, so that another projector need not wait for its end. */
  giveUp(name: string, holder: string): Promise<void>
}
