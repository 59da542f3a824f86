/**
 * The timers look at the database's clock for what is due, a bounded part of it at a time, and ask the engine: what
 * happens is decided at the log, not on their view of it. Any number of processes may run them.
 */
import { LRUCache } from 'lru-cache'
import type { Logger } from 'pino'
import type { Command, CommandEnvelope } from '../domain/commands.ts'
import { nextDeadline } from '../domain/deadlines.ts'
import type { Instant } from '../domain/events.ts'
import type { PendingTask } from '../domain/task.ts'
import type { Answer, AnyRefusalCode } from '../engine/answer.ts'
import type { Clock } from '../engine/clock.ts'
import type { Engine } from '../engine/engine.ts'
import { Sweeps } from './sweeps.ts'
import type { WorkSignal } from './work-signal.ts'
import type { DueDeadline, WorkState } from './work-state.ts'

export interface TimersOptions {
  workState: WorkState
  engine: Engine
  clock: Clock
  signal: WorkSignal
  logger: Logger
  /** Name in the history of what fires. */
  id?: string
  /** From the beginning of one look to that of the next. */
  intervalMs?: number
  /** How long limits of running attempts that fell due in a gap wait after it, so that their workers may report. */
  graceMs?: number
}

/**
 * What one look may ask of the log, deadlines and leases together: about 1,500 a second. What is overdue after an
 * outage is worked off at this rate.
 */
export const FIRES_PER_LOOK = 300
/**
 * A look asks in portions, since whoever submits meanwhile waits for at most one of them: it is one append and one
 * projection. A portion that follows late is larger, up to a bound, so that a busy machine keeps the rate.
 */
const PORTION = { least: 30, most: 150, everyMs: 16 }
const DUE_PAGE = 500
/** Deadlines looked at in one look, most of them in vain, before the next look goes on. */
const DUE_PER_LOOK = 2_000
const OFFERS_PER_LOOK = 1_000
/** A pause between two looks longer than this means that workers may have gone unheard. */
const GAP_MS = 2_000
/** A look that takes longer says that it goes on: a commit, so not with every portion. */
const KEEP_MS = 300
const GRACE_MS = 10_000
const LONGEST_PAUSE_MS = 5_000
/** Left to others between two looks that take longer than the interval. */
const SHORTEST_PAUSE_MS = 20
/** Where another process has looked within so many intervals, this one leaves it to that one. */
const OTHERS_INTERVALS = 3
/** The pause after a look to which the log did not answer: long enough for another process to take over. */
const YIELD_INTERVALS = 6
/** A deadline that was refused for good is asked again after this, in case somebody repaired its task meanwhile. */
const REFUSED_MS = 60_000
/** One that fired is asked again after this, in case the projector is behind. */
const FIRED_MS = 5_000
const ASKED_MAX = 20_000

/** Refusals that pass: the lease stands as lost, the deadline as due, and is asked again at the next look. */
const PASSING: ReadonlySet<AnyRefusalCode> = new Set([
  'conflict',
  'overloaded',
  'log_unavailable',
  'shutting_down',
  'internal_error',
])

export class Timers {
  readonly #options: TimersOptions
  readonly #intervalMs: number
  readonly #sweeps: Sweeps
  #cursor: { dueAt: Instant; taskId: string } | null = null
  /** Deadlines that the log has answered, and until when they are not asked again unless their rows change. */
  readonly #asked = new LRUCache<string, { row: string; until: Instant }>({ max: ASKED_MAX })
  #timer: NodeJS.Timeout | null = null
  #ticking: Promise<void> | null = null
  #started = false
  #failures = 0
  #logIsAway = false
  /** How many the next portion asks for. */
  #portion = PORTION.least
  #tookMs = 0

  constructor(options: TimersOptions) {
    this.#options = options
    this.#intervalMs = options.intervalMs ?? 200
    this.#sweeps = new Sweeps(options.workState, options.engine, options.clock, options.signal)
  }

  start(): void {
    if (this.#started) return
    this.#started = true
    // A look that is still under way since a stop plans the next one itself.
    if (!this.#ticking) this.#plan()
  }

  async stop(): Promise<void> {
    this.#started = false
    if (this.#timer) clearTimeout(this.#timer)
    await this.#ticking
  }

  /** Jittered, so that many processes do not look in step; slower while the database or the log does not answer. */
  #plan(): void {
    const intervals = this.#logIsAway ? YIELD_INTERVALS : 2 ** this.#failures
    const everyMs = Math.min(this.#intervalMs * intervals, LONGEST_PAUSE_MS) * (0.8 + 0.4 * Math.random())
    this.#timer = setTimeout(
      () => {
        const since = performance.now()
        this.#ticking = this.#tickUnlessOthers()
          .then(
            () => {
              this.#failures = 0
            },
            error => {
              this.#failures = Math.min(this.#failures + 1, 10)
              this.#options.logger.error({ err: error }, 'the timers could not look')
            },
          )
          .finally(() => {
            this.#tookMs = performance.now() - since
            this.#ticking = null
            if (this.#started) this.#plan()
          })
      },
      Math.max(everyMs - this.#tookMs, Math.min(SHORTEST_PAUSE_MS, everyMs)),
    )
  }

  /**
   * Of several processes one looks, as long as it does: two that look together would fire the same rows, twice the
   * load for the same outcome.
   */
  async #tickUnlessOthers(): Promise<void> {
    if (await this.#options.workState.isLookedAt(OTHERS_INTERVALS * this.#intervalMs)) return
    await this.tick()
  }

  /** One look at everything that may be due. */
  async tick(): Promise<void> {
    const { workState, logger } = this.#options
    const gap = await workState.beginLook(GAP_MS)
    if (gap && gap.leases > 0) logger.warn(gap, 'the timers had a gap: leases are granted anew')
    this.#logIsAway = false
    await this.#fireDue()
    await this.#returnOverdueOffers()
    await this.#sweeps.sweep()
    await workState.keepLook(GAP_MS)
  }

  /** Portion after portion, with a pause in between, until nothing is due or the look has asked enough. */
  async #fireDue(): Promise<void> {
    const look = { fires: 0, seen: 0 }
    let keptAt = performance.now()
    while (!this.#logIsAway) {
      const began = performance.now()
      const before = look.fires
      const most = Math.min(this.#portion, FIRES_PER_LOOK - before)
      // At most half are leases, and the rest is left to the deadlines: neither waits for the other.
      look.fires += await this.#takeLostLeases(most >> 1)
      await this.#fireDeadlines(look, before + most)
      if (look.fires < before + most) {
        this.#portion = PORTION.least
        return
      }
      if (look.fires < FIRES_PER_LOOK) await sleep(PORTION.everyMs - (performance.now() - began))
      const late = ((performance.now() - began) / PORTION.everyMs) * PORTION.least
      this.#portion = Math.min(Math.max(PORTION.least, Math.floor(late)), PORTION.most)
      if (look.fires >= FIRES_PER_LOOK) return
      // A long look is no gap; one in which this process stood still is, and the next look begins with it.
      if (performance.now() - keptAt > KEEP_MS) {
        if (!(await this.#options.workState.keepLook(GAP_MS))) return
        keptAt = performance.now()
      }
    }
  }

  /** Fires what is due, up to so many commands; the next portion goes on where this one stopped. */
  async #fireDeadlines(look: { fires: number; seen: number }, most: number): Promise<void> {
    const { workState, graceMs = GRACE_MS } = this.#options
    // Most rows can be acted on; only behind some that cannot are longer pages worth it.
    for (let limit = most - look.fires; look.seen < DUE_PER_LOOK && look.fires < most; limit = DUE_PAGE) {
      const page = await workState.dueDeadlines({ after: this.#cursor, limit, graceMs })
      const firing: DueDeadline[] = []
      let seen = 0
      for (; seen < page.length && look.fires + firing.length < most; seen++)
        if (!page[seen]!.inGrace && !this.#isAsked(page[seen]!)) firing.push(page[seen]!)
      look.seen += seen
      look.fires += firing.length
      const last = page[seen - 1]
      // The page moves past every row it has seen, so rows that cannot be acted on hold nobody up (S09).
      const isEnd = seen === page.length && page.length < limit
      this.#cursor = last && !isEnd ? { dueAt: last.dueAt, taskId: last.taskId } : null
      await this.#fire(firing)
      if (!this.#cursor) return
    }
  }

  async #fire(due: readonly DueDeadline[]): Promise<void> {
    if (due.length === 0) return
    await this.#passNotBefore(due.filter(({ timer }) => timer === 'not_before'))
    const asked = due.filter(({ timer }) => timer !== 'not_before')
    const answers = await this.#execute(asked.map(one => this.#commandOf(one)))
    asked.forEach((one, index) => {
      this.#keepAnswer(one, answers[index]!)
    })
  }

  /** Tasks that this process does not know are read beforehand: in the append's own flight others would wait for it. */
  async #execute(commands: readonly CommandEnvelope[]): Promise<Answer[]> {
    const { engine } = this.#options
    const unknown = commands.map(({ taskId }) => taskId).filter(id => engine.known(id) === null)
    // Where that fails the commands say so.
    if (unknown.length > 0) await engine.readMany(unknown).catch(() => {})
    const answers = await engine.executeMany(commands)
    if (answers.some(one => one.kind === 'refused' && one.code === 'log_unavailable')) this.#logIsAway = true
    return answers
  }

  #isAsked(due: DueDeadline): boolean {
    const asked = this.#asked.get(due.taskId)
    return asked !== undefined && asked.row === rowText(due) && this.#options.clock.now() < asked.until
  }

  /**
   * A view that is behind, or wrong, is not asked again at every look: until its row changes, or the task's own
   * deadline comes. That may be in a few milliseconds: the database's clock can be ahead of what the engine has
   * sampled of it.
   */
  #keepAnswer(due: DueDeadline, answer: Answer): void {
    if (answer.kind === 'refused' && PASSING.has(answer.code)) return
    const isRefused = answer.kind === 'refused'
    const next = isRefused && answer.code === 'not_due' && answer.task ? nextDeadline(answer.task) : null
    const wait = this.#options.clock.now() + (isRefused ? REFUSED_MS : FIRED_MS)
    const until = Math.min(wait, next?.at ?? Number.POSITIVE_INFINITY)
    this.#asked.set(due.taskId, { row: rowText(due), until })
  }

  #commandOf({ taskId, timer, attempt, dueAt }: DueDeadline): CommandEnvelope {
    const commandId = `timer:${attempt}:${new Date(dueAt).toISOString()}`
    if (timer === 'retry' || timer === 'not_before')
      return this.#envelope(taskId, commandId, { trigger: 'RETRY', reason: null })
    // The timers of the task as a whole outlast its attempts.
    const ofAttempt = timer === 'queue' || timer === 'total' ? null : attempt
    return this.#envelope(taskId, commandId, {
      trigger: 'TIMEOUT',
      timer,
      attempt: ofAttempt,
      lastHeartbeatAt: null,
    })
  }

  /** The same deadline gives the same command id: of several processes that fire it the later ones are repetitions. */
  #envelope(taskId: string, commandId: string, command: Command): CommandEnvelope {
    return {
      taskId,
      command,
      commandId,
      actor: { kind: 'timer', id: this.#options.id ?? 'timers' },
      source: 'timer',
      correlationId: null,
      causationId: null,
      trace: null,
      ifRevision: null,
    }
  }

  /** A delayed task whose time has come becomes claimable and its next deadline takes the row over. */
  async #passNotBefore(due: readonly DueDeadline[]): Promise<void> {
    if (due.length === 0) return
    const { workState, engine, clock, signal } = this.#options
    const loaded = await engine.readMany(due.map(({ taskId }) => taskId))
    const passed: PendingTask[] = []
    for (const one of loaded.values())
      if (one.kind === 'task' && one.task.status === 'PENDING' && one.task.runAt <= clock.now())
        passed.push(one.task)
    await workState.passNotBefore(passed)
    signal.ready(passed)
  }

  /** @returns how many were asked of the log */
  async #takeLostLeases(most: number): Promise<number> {
    const { workState } = this.#options
    const lost = await workState.takeLostLeases(most, GAP_MS)
    if (lost.length === 0) return 0
    const answers = await this.#execute(
      lost.map(({ taskId, attempt, heldUntil, lastHeartbeatAt }) =>
        this.#envelope(taskId, `timer:${attempt}:lease`, {
          trigger: 'TIMEOUT',
          timer: 'lease',
          attempt,
          lastHeartbeatAt,
          leaseEndedAt: heldUntil,
        }),
      ),
    )
    // Where the log says that the attempt is over, or where it just ended it, the lease has no purpose left.
    const over = lost.filter((_, index) => !mayPass(answers[index]!)).map(({ taskId }) => taskId)
    await workState.dropLostLeases(over)
    return lost.length
  }

  async #returnOverdueOffers(): Promise<void> {
    const returned = await this.#options.workState.returnOverdueOffers(OFFERS_PER_LOOK)
    if (returned.length > 0) this.#options.signal.ready(returned)
  }
}

/** `not_due` passes: the row was taken by the database's clock itself, which can be ahead of what the engine has. */
const mayPass = (answer: Answer): boolean =>
  answer.kind === 'refused' && (answer.code === 'not_due' || PASSING.has(answer.code))

/** Also gives everybody else a turn where nothing is left to wait for. */
const sleep = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, Math.max(0, ms)))

const rowText = ({ timer, attempt, dueAt }: DueDeadline): string => `${timer}:${attempt}:${dueAt}`
