/**
 * Follows the log from a place that is kept with a lease, so that of several processes one follows and the others stand
 * by. What is done with a batch, and with it the moving of the place by compare-and-set, is the caller's.
 *
 * Modes: standing by (another holds the lease) -> following -> standing by (fenced, or log or database failed) -> …
 * -> stopped. A log that went backwards is an alarm: it keeps the mode `halted` until it is started again.
 */
import { randomUUID } from 'node:crypto'
import type { Logger } from 'pino'
import {
  type Checkpoint,
  type EventLog,
  LogWentBackwardsError,
  READ_LIMITS,
  type StoredEvent,
} from '../eventlog/event-log.ts'
import { ProjectorFencedError, type ReadModel, type Step } from './read-model.ts'

/** A step of a follower, but for when its newest event happened. */
export type Stride = Omit<Step, 'eventAt'>

export interface FollowerOptions {
  /** Of its place. */
  name: string
  log: EventLog
  places: Pick<ReadModel, 'acquire' | 'renew' | 'giveUp'>
  logger: Logger
  /** For the log and for people: `the projector`, `projecting`, `the read model was made`. */
  words: { who: string; does: string; made: string }
  /** Another may have been here since the lease was last held. */
  onTaken?: () => void
  /** Handles a batch and moves the place. @throws ProjectorFencedError when the place is elsewhere */
  onBatch: (batch: readonly StoredEvent[], stride: Stride, signal: AbortSignal) => Promise<void>
  /** Nothing is new, for now. */
  onIdle?: (signal: AbortSignal) => Promise<void>
  leaseMs?: number | undefined
  standbyMs?: number | undefined
}

/** The pause after a batch; the first event after a quiet time never waits. */
const GATHER_MS = 8
const RESTART_MS = { first: 100, longest: 2_000 }

export class Follower {
  readonly #options: FollowerOptions
  readonly #holder = randomUUID()
  readonly leaseMs: number
  #abort = new AbortController()
  #running: Promise<void> | null = null
  #checkpoint: Checkpoint | null = null
  #renewedAt = 0
  #pauseMs = RESTART_MS.first
  #failure: { since: number; reason: string } | null = null
  mode: 'stopped' | 'standing_by' | 'following' | 'halted' = 'stopped'
  /** Why it is halted and what to do, for people. */
  haltedBecause: string | null = null

  constructor(options: FollowerOptions) {
    this.#options = options
    this.leaseMs = options.leaseMs ?? 5_000
  }

  /** What goes wrong, and since when by `performance.now()`; null where nothing does. */
  get failure(): { since: number; reason: string } | null {
    return this.#failure
  }

  start(): void {
    if (this.#running) return
    this.#abort = new AbortController()
    this.#running = this.#run(this.#abort.signal).finally(() => {
      this.#running = null
      if (this.mode !== 'halted') this.mode = 'stopped'
    })
  }

  async stop(): Promise<void> {
    this.#abort.abort()
    await this.#running
  }

  /** Renews the lease where the place stands. @throws ProjectorFencedError when it stands elsewhere */
  async renew(): Promise<void> {
    const { places, name } = this.#options
    await places.renew(name, this.#holder, this.leaseMs, this.#checkpoint)
    this.#renewedAt = performance.now()
  }

  async #run(signal: AbortSignal): Promise<void> {
    const { places, name, log, logger, words, standbyMs = 1_000 } = this.#options
    while (!signal.aborted) {
      this.mode = 'standing_by'
      try {
        const held = await places.acquire(name, this.#holder, this.leaseMs)
        if (!held) {
          this.#failure = null
          await sleep(standbyMs, signal)
          continue
        }
        logger.info({ checkpoint: held.checkpoint }, words.does)
        this.mode = 'following'
        this.#checkpoint = held.checkpoint
        this.#renewedAt = performance.now()
        this.#options.onTaken?.()
        await log.follow(held.checkpoint, batch => this.#handle(batch, signal), signal)
      } catch (error) {
        if (error instanceof LogWentBackwardsError) {
          this.mode = 'standing_by'
          this.haltedBecause = await whyHalted(this.#checkpoint, log, words.made)
          this.mode = 'halted'
          logger.fatal({ err: error }, `${words.who} halts: ${this.haltedBecause}`)
          break
        }
        await this.#waitAfter(error, signal)
      }
    }
    await places
      .giveUp(name, this.#holder)
      .catch(error =>
        logger.warn({ err: error }, `the lease of ${words.who} could not be given up; it ends by itself`),
      )
  }

  async #handle(batch: readonly StoredEvent[], signal: AbortSignal): Promise<void> {
    const { name, log, onBatch, onIdle } = this.#options
    const last = batch.at(-1)
    if (last) {
      const to = { logId: log.id, position: last.position, eventId: last.id }
      const { leaseMs } = this
      await onBatch(batch, { name, holder: this.#holder, leaseMs, from: this.#checkpoint, to }, signal)
      this.#checkpoint = to
      this.#renewedAt = performance.now()
      this.#pauseMs = RESTART_MS.first
    } else {
      await onIdle?.(signal)
      if (performance.now() - this.#renewedAt >= this.leaseMs / 4) await this.renew()
    }
    this.#failure = null
    // A transaction costs much the same for one event as for a hundred, and a task that moved twice meanwhile is
    // written once, so events that follow each other closely gather for a moment. Where more are waiting already there is
    // no need to.
    if (last && batch.length < READ_LIMITS.events) await sleep(GATHER_MS, signal)
  }

  async #waitAfter(error: unknown, signal: AbortSignal): Promise<void> {
    const { logger, words } = this.#options
    this.mode = 'standing_by'
    if (signal.aborted) return
    if (error instanceof ProjectorFencedError) logger.warn({ err: error }, 'standing by')
    else {
      logger.error({ err: error }, `${words.does} failed, beginning again from the checkpoint`)
      const reason = error instanceof Error ? error.message : String(error)
      this.#failure = { since: this.#failure?.since ?? performance.now(), reason }
    }
    await sleep(this.#pauseMs, signal)
    this.#pauseMs = Math.min(this.#pauseMs * 2, RESTART_MS.longest)
  }
}

async function whyHalted(checkpoint: Checkpoint | null, log: EventLog, made: string): Promise<string> {
  const id = idOf(log)
  const movedTo = await log.sealedFor().catch(() => null)
  if (id && checkpoint && checkpoint.logId === movedTo)
    return `log ${id} was moved to log ${movedTo}, and the read model with it: start the services with the new --log`
  return checkpoint && id && checkpoint.logId !== id
    ? `${made} from log ${checkpoint.logId}, and this is log ${id}: start with the --log of before, or move that ` +
        'log here with rollcall log copy'
    : `the log went backwards: it does not hold what ${made} from; docs/operations.md says what to do`
}

/** Null where what was reached has no identity. */
function idOf(log: EventLog): string | null {
  try {
    return log.id
  } catch {
    return null
  }
}

/** Waits, or ends early when the signal is aborted. */
function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    if (signal.aborted) return resolve()
    const done = (): void => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
  })
}
