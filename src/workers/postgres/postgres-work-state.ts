/** The work state in Postgres; the statements are beside this file and in `src/projections/migrations`. */
import type { Pool } from 'pg'
import type { OpenTask, PendingTask, ProcessingTask, Task } from '../../domain/task.ts'
import type { DispatchQuery, DueQuery, Heartbeat, LostWork, WorkState } from '../work-state.ts'
import { leaseSignals } from './lease-signals.ts'
import { beat, dropLostLeases, grantLeases, takeLostLeases, withdrawLeases } from './leases.ts'
import { beginLook, dueDeadlines, isLookedAt, keepLook, passNotBefore } from './looks.ts'
import { armDeadlines, lostWork } from './lost-work.ts'
import { dropOffers, makeReady, returnOverdueOffers, take, takeToDispatch } from './offers.ts'
import { markTold, pruneCancelNotices, signals } from './signals.ts'

export class PostgresWorkState implements WorkState {
  readonly #pool: Pool
  /** By this the looks of other processes are told from one's own. */
  #ownTick: string | null = null

  constructor(pool: Pool) {
    this.#pool = pool
  }

  take = (claim: Parameters<WorkState['take']>[0]) => take(this.#pool, claim)
  takeToDispatch = (query: DispatchQuery) => takeToDispatch(this.#pool, query)
  dropOffers = (claimId: string, taskIds: readonly string[]) => dropOffers(this.#pool, claimId, taskIds)
  returnOverdueOffers = (limit: number) => returnOverdueOffers(this.#pool, limit)
  makeReady = (tasks: readonly PendingTask[]) => makeReady(this.#pool, tasks)

  beat = (beats: readonly Heartbeat[]) => beat(this.#pool, beats)
  grantLeases = (tasks: readonly ProcessingTask[]) => grantLeases(this.#pool, tasks)
  withdrawLeases = (leases: Parameters<WorkState['withdrawLeases']>[0]) => withdrawLeases(this.#pool, leases)
  takeLostLeases = (limit: number, gapMs: number) => takeLostLeases(this.#pool, limit, gapMs)
  dropLostLeases = (taskIds: readonly string[]) => dropLostLeases(this.#pool, taskIds)

  markTold = (told: Parameters<WorkState['markTold']>[0]) => markTold(this.#pool, told)
  pruneCancelNotices = (limit: number) => pruneCancelNotices(this.#pool, limit)
  signals = (task: Task) => signals(this.#pool, task)
  leaseSignals = (tasks: readonly ProcessingTask[]) => leaseSignals(this.#pool, tasks)

  beginLook = (gapMs: number) => beginLook(this.#pool, gapMs)
  keepLook = async (gapMs: number) => {
    const tick = await keepLook(this.#pool, gapMs)
    this.#ownTick = tick ?? this.#ownTick
    return tick !== null
  }
  isLookedAt = (withinMs: number) => isLookedAt(this.#pool, this.#ownTick, withinMs)
  dueDeadlines = (query: DueQuery) => dueDeadlines(this.#pool, query)
  passNotBefore = (tasks: readonly PendingTask[]) => passNotBefore(this.#pool, tasks)
  lostWork = (status: OpenTask['status'], after: LostWork['next'], limit: number) =>
    lostWork(this.#pool, status, after, limit)
  armDeadlines = (tasks: readonly OpenTask[]) => armDeadlines(this.#pool, tasks)
}
