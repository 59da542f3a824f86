/**
 * Sweeps put back work state that got lost: an open task that no timer would ever end, a waiting one that nobody can
 * claim, a running one without a lease. A page of each status at a time, so that a million open tasks cost no more
 * at once than a few.
 */
import { isDelayed } from '../domain/deadlines.ts'
import { OPEN_STATUSES } from '../domain/lifecycle.ts'
import { isOpen, type OpenTask, type PendingTask, type ProcessingTask } from '../domain/task.ts'
import type { Clock } from '../engine/clock.ts'
import type { Engine } from '../engine/engine.ts'
import type { WorkSignal } from './work-signal.ts'
import type { LostWork, WorkState } from './work-state.ts'

const PAGE = 2_000
const EVERY_MS = 1_000
const PRUNE_EVERY_MS = 60_000

export class Sweeps {
  readonly #workState: WorkState
  readonly #engine: Engine
  readonly #clock: Clock
  readonly #signal: WorkSignal
  readonly #places = new Map<OpenTask['status'], LostWork['next']>()
  #sweptAt = Number.NEGATIVE_INFINITY
  #prunedAt = Number.NEGATIVE_INFINITY

  constructor(workState: WorkState, engine: Engine, clock: Clock, signal: WorkSignal) {
    this.#workState = workState
    this.#engine = engine
    this.#clock = clock
    this.#signal = signal
  }

  /** Looks at the next page of open tasks in each status; at most once a second. */
  async sweep(): Promise<void> {
    const now = this.#clock.now()
    if (now - this.#sweptAt < EVERY_MS) return
    this.#sweptAt = now
    for (const status of OPEN_STATUSES) await this.#sweepStatus(status)
    if (now - this.#prunedAt < PRUNE_EVERY_MS) return
    this.#prunedAt = now
    await this.#workState.pruneCancelNotices(PAGE)
  }

  async #sweepStatus(status: OpenTask['status']): Promise<void> {
    const page = await this.#workState.lostWork(status, this.#places.get(status) ?? null, PAGE)
    this.#places.set(status, page.next)
    if (page.taskIds.length === 0) return
    const loaded = await this.#engine.readMany(page.taskIds)
    const open = [...loaded.values()].flatMap(one =>
      one.kind === 'task' && isOpen(one.task) ? [one.task] : [],
    )
    await this.#workState.armDeadlines(open)
    const isWaiting = (task: OpenTask): task is PendingTask =>
      task.status === 'PENDING' && (!isDelayed(task) || task.runAt <= this.#clock.now())
    const waiting = open.filter(isWaiting)
    await this.#workState.makeReady(waiting)
    if (waiting.length > 0) this.#signal.ready(waiting)
    await this.#workState.grantLeases(
      open.filter((task): task is ProcessingTask => task.status === 'PROCESSING'),
    )
  }
}
