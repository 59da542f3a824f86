/**
 * Sweeps put back work state that got lost: a waiting task that nobody can claim, a running one without a lease.
 * One page a sweep, so that a million open tasks cost no more at once than a few.
 */
import type { Pool } from 'pg'
import { isDelayed } from '../domain/deadlines.ts'
import type { PendingTask, ProcessingTask } from '../domain/task.ts'
import type { Clock } from '../engine/clock.ts'
import type { Engine } from '../engine/engine.ts'
import { grantLeases, makeReady } from '../projections/work-state.ts'
import { countByType, type WorkSignal } from './work-signal.ts'

const PAGE = 2_000
const EVERY_MS = 1_000
const START = { createdAt: '-infinity', taskId: '00000000-0000-0000-0000-000000000000' }

type Place = typeof START
interface PageRow {
  task_id: string
  created_at: string
  missing: boolean
}

// A delayed task stands nowhere but in the deadlines until its time comes.
const LOST_WAITING = `NOT EXISTS (SELECT 1 FROM rollcall.ready r WHERE r.task_id = p.task_id)
  AND NOT EXISTS (SELECT 1 FROM rollcall.offers o WHERE o.task_id = p.task_id)
  AND NOT EXISTS (SELECT 1 FROM rollcall.deadlines d WHERE d.task_id = p.task_id AND d.timer = 'not_before')`
const LOST_RUNNING = 'NOT EXISTS (SELECT 1 FROM rollcall.leases l WHERE l.task_id = p.task_id)'

export class Sweeps {
  readonly #pool: Pool
  readonly #engine: Engine
  readonly #clock: Clock
  readonly #signal: WorkSignal
  #waiting: Place = START
  #running: Place = START
  #sweptAt = Number.NEGATIVE_INFINITY

  constructor(pool: Pool, engine: Engine, clock: Clock, signal: WorkSignal) {
    this.#pool = pool
    this.#engine = engine
    this.#clock = clock
    this.#signal = signal
  }

  /** Looks at the next page of waiting and of running tasks; at most once a second. */
  async sweep(): Promise<void> {
    if (performance.now() - this.#sweptAt < EVERY_MS) return
    this.#sweptAt = performance.now()
    const waiting = await this.#page('PENDING', this.#waiting, LOST_WAITING)
    this.#waiting = waiting.next
    const lostWaiting = (await this.#read(waiting.missing)).filter(
      (task): task is PendingTask =>
        task.status === 'PENDING' && (!isDelayed(task) || task.runAt <= this.#clock.now()),
    )
    await makeReady(this.#pool, lostWaiting)
    if (lostWaiting.length > 0) this.#signal.ready(countByType(lostWaiting))
    const running = await this.#page('PROCESSING', this.#running, LOST_RUNNING)
    this.#running = running.next
    await grantLeases(
      this.#pool,
      (await this.#read(running.missing)).filter(
        (task): task is ProcessingTask => task.status === 'PROCESSING',
      ),
    )
  }

  async #page(status: string, from: Place, missing: string): Promise<{ missing: string[]; next: Place }> {
    const page = await this.#pool.query<PageRow>({
      name: `sweep-${status}`,
      text: `WITH p AS (SELECT task_id, created_at FROM rollcall.tasks
                         WHERE status = $1 AND (created_at, task_id) > ($2::timestamptz, $3::uuid)
                         ORDER BY created_at, task_id LIMIT ${PAGE})
             SELECT p.task_id, p.created_at::text AS created_at, ${missing} AS missing
               FROM p ORDER BY p.created_at, p.task_id`,
      values: [status, from.createdAt, from.taskId],
    })
    const last = page.rows.at(-1)
    return {
      missing: page.rows.filter(row => row.missing).map(row => row.task_id),
      next: last && page.rows.length === PAGE ? { createdAt: last.created_at, taskId: last.task_id } : START,
    }
  }

  async #read(taskIds: readonly string[]) {
    if (taskIds.length === 0) return []
    const loaded = await this.#engine.readMany(taskIds)
    return [...loaded.values()].flatMap(one => (one.kind === 'task' ? [one.task] : []))
  }
}
