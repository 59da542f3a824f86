/**
 * Work state and read model in memory, by the rules of the two ports: what Postgres does in one statement happens
 * here in one turn. A test holds the answers of the two beside each other.
 */
import { isDelayed, nextDeadline } from '../../src/domain/deadlines.ts'
import type { Instant } from '../../src/domain/events.ts'
import { AHEAD_MAX, type Position, positionBehind } from '../../src/domain/signals.ts'
import {
  isOpen,
  type OpenTask,
  type PendingTask,
  type ProcessingTask,
  type Task,
} from '../../src/domain/task.ts'
import type { Checkpoint } from '../../src/eventlog/event-log.ts'
import {
  ProjectorFencedError,
  type ReadModel,
  type SetAside,
  type Step,
  type Written,
} from '../../src/projections/read-model.ts'
import {
  type CancelNotice,
  type DispatchQuery,
  type DueDeadline,
  type DueQuery,
  dispatchId,
  type Heartbeat,
  type LeaseSignals,
  type LostLease,
  type LostWork,
  leaseKey,
  OFFER_HOLD_MAX_MS,
  OFFER_HOLD_MS,
  type Signals,
  type Taken,
  type TakeQuery,
  type ToDispatch,
  type WorkState,
} from '../../src/workers/work-state.ts'

export interface Deadline {
  dueAt: Instant
  timer: DueDeadline['timer']
  attempt: number
}
export interface Ready {
  type: string
  priority: number
  pendingSince: Instant
  attempt: number
  timesOffered: number
  tenant: string | null
}
export interface Offer extends Ready {
  claimId: string
  heldUntil: Instant
}
export interface Lease {
  attempt: number
  leaseTokenHash: string
  claimId: string
  worker: string
  leaseMs: number
  heldUntil: Instant
  lost: boolean
  lastHeartbeatAt: Instant | null
  progress: number | null
}
interface Projecting {
  checkpoint: Checkpoint | null
  holder: string | null
  heldUntil: Instant
}

const RUNNING_LIMITS: ReadonlySet<DueDeadline['timer']> = new Set(['execution', 'step', 'total'])

const leaseSignals = ({ heldUntil, lost, lastHeartbeatAt, progress }: Lease): LeaseSignals => ({
  heldUntil,
  lost,
  lastHeartbeatAt,
  progress,
})

type Entry<T> = [string, T]
const byKeys =
  <T>(...keys: ((entry: Entry<T>) => number | string)[]) =>
  (one: Entry<T>, other: Entry<T>): number => {
    for (const key of keys) {
      const [a, b] = [key(one), key(other)]
      if (a !== b) return a < b ? -1 : 1
    }
    return 0
  }

const IN_ORDER = byKeys<Ready>(
  ([, row]) => -row.priority,
  ([, row]) => row.pendingSince,
  ([id]) => id,
)

export class MemoryTables implements WorkState, ReadModel {
  readonly tasks = new Map<string, Task>()
  readonly deadlines = new Map<string, Deadline>()
  readonly ready = new Map<string, Ready>()
  readonly offers = new Map<string, Offer>()
  readonly leases = new Map<string, Lease>()
  readonly notices = new Map<string, CancelNotice>()
  readonly aside = new Map<string, SetAside>()
  lookedAt: Instant | null = null
  #gap = { beganAt: Number.NEGATIVE_INFINITY, endedAt: Number.NEGATIVE_INFINITY }
  readonly #projectors = new Map<string, Projecting>()
  readonly #now: () => Instant

  constructor(now: () => Instant) {
    this.#now = now
  }

  async take(claim: TakeQuery): Promise<Taken[]> {
    const again = new Map<string, Taken>()
    const isOurs = (taskId: string) =>
      claim.tenant === null || this.tasks.get(taskId)?.tenant === claim.tenant
    for (const [taskId, { claimId, attempt }] of [...this.leases, ...this.offers])
      if (claimId === claim.claimId && isOurs(taskId))
        again.set(`${taskId}/${attempt}`, { taskId, attempt, again: true })
    if (again.size > 0) return [...again.values()]
    const picked = this.#takeReady(claim, OFFER_HOLD_MS, OFFER_HOLD_MAX_MS)
    return picked.map(([taskId, { attempt }]) => ({ taskId, attempt, again: false }))
  }

  async takeToDispatch({ type, max, maxOutstanding, holdMs }: DispatchQuery): Promise<ToDispatch> {
    const claimId = dispatchId(type)
    const standing = [...this.offers.values()].filter(offer => offer.claimId === claimId).length
    const free = Math.max(0, Math.min(max, maxOutstanding - standing))
    const holdMaxMs = Math.max(holdMs, OFFER_HOLD_MAX_MS)
    const picked = this.#takeReady({ claimId, types: [type], max: free, tenant: null }, holdMs, holdMaxMs)
    return {
      taken: picked.map(([taskId, { attempt, timesOffered }]) => ({ taskId, attempt, timesOffered })),
      outstanding: standing + picked.length,
      offeredAt: this.#now(),
    }
  }

  #takeReady({ claimId, types, max, tenant }: TakeQuery, holdMs: number, holdMaxMs: number): Entry<Offer>[] {
    const picked = [...this.ready]
      .filter(([, row]) => types.includes(row.type) && (tenant === null || row.tenant === tenant))
      .sort(IN_ORDER)
      .slice(0, max)
    return picked.map(([taskId, row]) => {
      this.ready.delete(taskId)
      const heldMs = Math.min(holdMaxMs, holdMs * 2 ** row.timesOffered)
      const offer = { ...row, timesOffered: row.timesOffered + 1, claimId, heldUntil: this.#now() + heldMs }
      this.offers.set(taskId, offer)
      return [taskId, offer]
    })
  }

  async dropOffers(claimId: string, taskIds: readonly string[]): Promise<void> {
    for (const id of taskIds) if (this.offers.get(id)?.claimId === claimId) this.offers.delete(id)
  }

  async returnOverdueOffers(limit: number): Promise<{ type: string; tenant: string | null }[]> {
    const overdue = [...this.offers]
      .filter(([, { heldUntil }]) => heldUntil <= this.#now())
      .sort(byKeys<Offer>(([, row]) => row.heldUntil))
      .slice(0, limit)
    const returned: { type: string; tenant: string | null }[] = []
    for (const [taskId, { claimId, heldUntil, ...row }] of overdue) {
      this.offers.delete(taskId)
      if (this.ready.has(taskId)) continue
      this.ready.set(taskId, row)
      returned.push({ type: row.type, tenant: row.tenant })
    }
    return returned
  }

  async makeReady(tasks: readonly PendingTask[]): Promise<void> {
    for (const task of tasks) this.#makeReadyAgain(task)
  }

  async beat(beats: readonly Heartbeat[]): Promise<Map<string, Instant>> {
    const held = new Map<string, Instant>()
    for (const beat of beats) {
      const lease = this.leases.get(beat.taskId)
      if (!lease || lease.lost || leaseKey({ taskId: beat.taskId, ...lease }) !== leaseKey(beat)) continue
      lease.heldUntil = this.#now() + lease.leaseMs
      lease.lastHeartbeatAt = this.#now()
      lease.progress = beat.progress ?? lease.progress
      held.set(leaseKey(beat), lease.heldUntil)
    }
    return held
  }

  async grantLeases(tasks: readonly ProcessingTask[]): Promise<void> {
    for (const task of tasks) this.#grantLease(task)
  }

  async withdrawLeases(leases: readonly { taskId: string; attempt: number }[]): Promise<void> {
    for (const { taskId, attempt } of leases)
      if (this.leases.get(taskId)?.attempt === attempt) this.leases.delete(taskId)
  }

  async takeLostLeases(limit: number, gapMs: number): Promise<LostLease[]> {
    if (!this.#isTicking(gapMs)) return []
    const ended = [...this.leases]
      .filter(([, { heldUntil }]) => heldUntil <= this.#now())
      .sort(byKeys<Lease>(([, row]) => row.heldUntil))
      .slice(0, limit)
    return ended.map(([taskId, lease]) => {
      lease.lost = true
      const { attempt, heldUntil, lastHeartbeatAt } = lease
      return { taskId, attempt, heldUntil, lastHeartbeatAt }
    })
  }

  async dropLostLeases(taskIds: readonly string[]): Promise<void> {
    for (const id of taskIds) if (this.leases.get(id)?.lost) this.leases.delete(id)
  }

  async markTold(told: readonly { taskId: string; attempt: number; worker: string }[]): Promise<void> {
    for (const { taskId, attempt, worker } of told) {
      const notice = this.notices.get(taskId)
      if (notice) notice.toldAt ??= this.#now()
      else this.notices.set(taskId, { attempt, worker, toldAt: this.#now() })
    }
  }

  async signals({ taskId, attempt, status }: Task): Promise<Signals> {
    const lease = status === 'PROCESSING' ? this.leases.get(taskId) : undefined
    const offers = status === 'PENDING' ? [this.offers.get(taskId), this.ready.get(taskId)] : []
    const offer = offers.find(row => row?.attempt === attempt)
    const notice = status === 'CANCELLED' ? this.notices.get(taskId) : undefined
    const waits = offer !== undefined && offer === this.ready.get(taskId)
    return {
      lease: lease?.attempt === attempt ? leaseSignals(lease) : null,
      offer: offer
        ? { heldUntil: (offer as Partial<Offer>).heldUntil ?? null, timesOffered: offer.timesOffered }
        : null,
      position: waits ? this.#positionOf(taskId, offer) : null,
      cancelNotice: notice ?? null,
    }
  }

  async leaseSignals(tasks: readonly ProcessingTask[]): ReturnType<WorkState['leaseSignals']> {
    const held = tasks.flatMap(({ taskId, attempt }) => {
      const lease = this.leases.get(taskId)
      return lease?.attempt === attempt ? [[taskId, leaseSignals(lease)] as const] : []
    })
    return new Map(held)
  }

  #positionOf(taskId: string, row: Ready): Position {
    const order = [...this.ready].filter(([, { type }]) => type === row.type).sort(IN_ORDER)
    const ahead = order.findIndex(([id]) => id === taskId)
    return positionBehind(Math.min(ahead, AHEAD_MAX + 1))
  }

  async beginLook(gapMs: number): Promise<{ gapMs: number; leases: number } | null> {
    const gap = this.#now() - (this.lookedAt ?? 0)
    if (gap < gapMs) {
      this.lookedAt = this.#now()
      return null
    }
    let leases = 0
    for (const lease of this.leases.values()) {
      const until = this.#now() + lease.leaseMs
      if (lease.lost || lease.heldUntil >= until) continue
      lease.heldUntil = until
      leases++
    }
    this.#gap = { beganAt: this.lookedAt ?? 0, endedAt: this.#now() }
    this.lookedAt = this.#now()
    return { gapMs: gap, leases }
  }

  async keepLook(gapMs: number): Promise<boolean> {
    if (!this.#isTicking(gapMs)) return false
    this.lookedAt = this.#now()
    return true
  }

  #isTicking(gapMs: number): boolean {
    return this.lookedAt !== null && this.lookedAt > this.#now() - gapMs
  }

  /** Nobody leaves a look to another process here: those that look at once meet more of each other. */
  async isLookedAt(): Promise<boolean> {
    return false
  }

  async dueDeadlines({ after, limit, graceMs }: DueQuery): Promise<DueDeadline[]> {
    const isPast = ([taskId, { dueAt }]: Entry<Deadline>): boolean =>
      after === null || dueAt > after.dueAt || (dueAt === after.dueAt && taskId > after.taskId)
    const now = this.#now()
    const { beganAt, endedAt } = this.#gap
    const inGrace = ([taskId, { timer, attempt, dueAt }]: Entry<Deadline>): boolean => {
      const lease = this.leases.get(taskId)
      const fellInGap = dueAt >= beganAt - graceMs && dueAt <= endedAt
      const held = lease?.attempt === attempt && !lease.lost
      return RUNNING_LIMITS.has(timer) && endedAt + graceMs > now && fellInGap && held
    }
    return [...this.deadlines]
      .filter(entry => entry[1].dueAt <= now && isPast(entry) && !this.aside.has(entry[0]))
      .sort(
        byKeys<Deadline>(
          ([, row]) => row.dueAt,
          ([id]) => id,
        ),
      )
      .slice(0, limit)
      .map(entry => ({ taskId: entry[0], ...entry[1], inGrace: inGrace(entry) }))
  }

  async passNotBefore(tasks: readonly PendingTask[]): Promise<void> {
    for (const task of tasks) {
      this.#makeReadyAgain(task)
      const armed = this.deadlines.get(task.taskId)
      const next = nextDeadline(task, 'not_before')
      if (armed?.timer === 'not_before' && armed.attempt === task.attempt && next)
        this.deadlines.set(task.taskId, { dueAt: next.at, timer: next.timer, attempt: task.attempt })
    }
  }

  async lostWork(status: OpenTask['status'], after: LostWork['next'], limit: number): Promise<LostWork> {
    const page = [...this.tasks.values()]
      .filter(task => task.status === status)
      .sort((one, other) => one.createdAt - other.createdAt || (one.taskId < other.taskId ? -1 : 1))
      .filter(
        ({ createdAt, taskId }) =>
          after === null ||
          createdAt > after.createdAt ||
          (createdAt === after.createdAt && taskId > after.taskId),
      )
      .slice(0, limit)
    const isLost = ({ taskId }: Task): boolean => {
      const deadline = this.deadlines.get(taskId)
      if (!deadline) return true
      if (status === 'PROCESSING') return !this.leases.has(taskId)
      if (status === 'RETRYING') return false
      return !this.ready.has(taskId) && !this.offers.has(taskId) && deadline.timer !== 'not_before'
    }
    const last = page.at(-1)
    return {
      taskIds: page.filter(isLost).map(({ taskId }) => taskId),
      next: last && page.length === limit ? { createdAt: last.createdAt, taskId: last.taskId } : null,
    }
  }

  async armDeadlines(tasks: readonly OpenTask[]): Promise<void> {
    for (const task of tasks)
      if (!this.deadlines.has(task.taskId) && this.tasks.get(task.taskId)?.revision === task.revision)
        this.#arm(task)
  }

  async pruneCancelNotices(): Promise<void> {
    // A story lasts minutes, a notice days.
  }

  async acquire(name: string, holder: string, leaseMs: number) {
    const row = this.#projectors.get(name) ?? { checkpoint: null, holder: null, heldUntil: 0 }
    this.#projectors.set(name, row)
    if (row.holder !== holder && row.holder !== null && row.heldUntil >= this.#now()) return null
    row.holder = holder
    row.heldUntil = this.#now() + leaseMs
    return { checkpoint: row.checkpoint }
  }

  async write(tasks: readonly Task[], unread: readonly SetAside[], step: Step): Promise<Written> {
    const row = this.#projectors.get(step.name)
    if (row?.holder !== step.holder || row.checkpoint?.position !== step.from?.position)
      throw new ProjectorFencedError(`projector ${step.name} was taken over by another process`)
    const moved = tasks.filter(task => (this.tasks.get(task.taskId)?.revision ?? -1) < task.revision)
    for (const task of moved) this.#project(task)
    for (const one of unread) if (!this.aside.has(one.taskId)) this.aside.set(one.taskId, one)
    row.checkpoint = step.to
    row.heldUntil = this.#now() + step.leaseMs
    return { moved, aside: unread }
  }

  async renew(name: string, holder: string, leaseMs: number, at: Checkpoint | null): Promise<void> {
    const row = this.#projectors.get(name)
    if (row?.holder === holder && row.checkpoint?.position === at?.position)
      row.heldUntil = this.#now() + leaseMs
    else throw new ProjectorFencedError(`projector ${name} was taken over by another process`)
  }

  /** How far a projector has come. */
  placeOf(name: string): string | undefined {
    return this.#projectors.get(name)?.checkpoint?.position
  }

  async giveUp(name: string, holder: string): Promise<void> {
    const row = this.#projectors.get(name)
    if (row?.holder === holder) row.holder = null
  }

  /** What hangs on the row of a task that moved, in the order of the SQL. */
  #project(task: Task): void {
    const { taskId } = task
    this.tasks.set(taskId, task)
    if (isOpen(task)) this.#arm(task)
    else this.deadlines.delete(taskId)
    if (task.status !== 'PENDING') {
      this.ready.delete(taskId)
      this.offers.delete(taskId)
    }
    const ended = task.endedAttempts.at(-1)
    if (task.status === 'CANCELLED' && ended?.ended === 'cancelled' && !this.notices.has(taskId))
      this.notices.set(taskId, { attempt: ended.attempt, worker: ended.worker, toldAt: null })
    if (task.status !== 'PROCESSING') this.leases.delete(taskId)
    if (task.status === 'PENDING' && !isDelayed(task)) this.#makeReady(task)
    if (task.status === 'PROCESSING') this.#grantLease(task)
  }

  #arm(task: OpenTask): void {
    const next = nextDeadline(task)
    if (next) this.deadlines.set(task.taskId, { dueAt: next.at, timer: next.timer, attempt: task.attempt })
  }

  /** For those who read the task before: it may have moved on. */
  #makeReadyAgain(task: PendingTask): void {
    const row = this.tasks.get(task.taskId)
    if (row?.status === 'PENDING' && row.attempt === task.attempt) this.#makeReady(task)
  }

  #makeReady(task: PendingTask): void {
    const { taskId, type, priority, attempt, tenant } = task
    if (this.isOffered(taskId, attempt)) return
    const stands = this.ready.get(taskId)
    if (stands && stands.attempt >= attempt) return
    const pendingSince = Math.max(task.pendingSince, task.runAt)
    if (stands) {
      stands.pendingSince = pendingSince
      stands.attempt = attempt
      stands.timesOffered = 0
    } else this.ready.set(taskId, { type, priority, pendingSince, attempt, timesOffered: 0, tenant })
  }

  /** The offer match: an attempt that is handed out already is not made claimable once more. */
  protected isOffered(taskId: string, attempt: number): boolean {
    return this.offers.get(taskId)?.attempt === attempt
  }

  #grantLease(task: ProcessingTask): void {
    const { taskId, attempt, leaseTokenHash, startCommandId: claimId, worker } = task
    const lease = this.leases.get(taskId)
    if (lease && lease.attempt >= attempt) return
    const { leaseMs } = task.timeouts
    this.leases.set(taskId, {
      attempt,
      leaseTokenHash,
      claimId,
      worker,
      leaseMs,
      heldUntil: this.#now() + leaseMs,
      lost: false,
      lastHeartbeatAt: null,
      progress: null,
    })
  }
}
