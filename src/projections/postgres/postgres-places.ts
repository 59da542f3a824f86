/** Where followers of the log stand, with their leases: the rows of `rollcall.projectors`. */
import type { Pool } from 'pg'
import type { Checkpoint } from '../../eventlog/event-log.ts'
import { acquire, advance, giveUp, renew } from '../checkpoint.ts'
import type { Step } from '../read-model.ts'

export class PostgresPlaces {
  protected readonly pool: Pool

  constructor(pool: Pool) {
    this.pool = pool
  }

  acquire(name: string, holder: string, leaseMs: number) {
    return acquire(this.pool, name, holder, leaseMs)
  }

  renew(name: string, holder: string, leaseMs: number, at: Checkpoint | null): Promise<void> {
    return renew(this.pool, name, holder, leaseMs, at)
  }

  giveUp(name: string, holder: string): Promise<void> {
    return giveUp(this.pool, name, holder)
  }

  /** Moves a place by itself, for those who keep no rows. @throws ProjectorFencedError when it is elsewhere */
  advance(step: Step): Promise<void> {
    return advance(this.pool, step)
  }
}
