/**
 * Publishes each change of a task's status or step to `rollcall.task-status`, for other services: at least once, those
 * of a task in their order, from the beginning of the log. Of several processes one publishes, the others stand by.
 *
 * A batch: events of the log -> their changes -> sent, again and again until the broker has them -> the place is moved
 * by compare-and-set. What breaks off before the place is moved is sent again by whoever publishes next.
 *
 * What a send may upset that arrives late is put right by `status-amends.ts`.
 */
import type { Logger } from 'pino'
import { type Broker, RecordRefusedError } from '../broker/broker.ts'
import { growing, pause } from '../broker/deadline.ts'
import { TASK_STATUS } from '../broker/topics.ts'
import type { Instant } from '../domain/events.ts'
import type { Clock } from '../engine/clock.ts'
import type { EventLog, StoredEvent } from '../eventlog/event-log.ts'
import { Follower, type Stride } from '../projections/follower.ts'
import { ProjectorFencedError, type Step } from '../projections/read-model.ts'
import { StatusAmends, type StatusDoubts } from './status-amends.ts'
import { StatusChanges } from './status-changes.ts'
import { type StatusChange, shortened, statusRecord } from './status-message.ts'

/** Where the publisher's place and lease are kept. */
export type StatusPlaces = ConstructorParameters<typeof Follower>[0]['places'] & {
  /** @throws ProjectorFencedError when the place is elsewhere: nothing was moved */
  advance(step: Step): Promise<void>
}

/** Told of what becomes of the changes. */
export interface StatusObserver {
  published(count: number): void
  /** `unavailable`: the broker did not answer, what was sent may have arrived. `refused`: it will not take it. */
  failed(reason: 'unavailable' | 'refused'): void
}

export interface StatusPublisherOptions {
  log: EventLog
  places: StatusPlaces
  doubts: StatusDoubts
  broker: Broker
  clock: Clock
  observer?: StatusObserver
  logger: Logger
  /** Of the topic, when it is made. */
  partitions?: number
  leaseMs?: number
  standbyMs?: number
  /** For how long a send can still arrive after it failed: its attempts and their requests are bounded. */
  settleMs?: number
}

/** Of its place in `rollcall.projectors`. */
export const STATUS_PUBLISHER = 'task-status'
const PARTITIONS = 12
const LEASE_MS = 10_000
const SETTLE_MS = 120_000
const RETRY = { firstMs: 250, lastMs: 5_000 }
/** What fails for so long is reported: a broker that starts anew takes a few seconds. */
const REPORT_MS = 10_000
/** What is being sent at a stop gets so long. */
const STOP_MS = 3_000

type Failure = { since: number; reason: string }

export class StatusPublisher {
  readonly #options: StatusPublisherOptions
  readonly #follower: Follower
  readonly #changes: StatusChanges
  readonly #amends: StatusAmends
  #topicIsThere = false
  /** What was published before may be sent at the same time by the one that was replaced. */
  #isFirst = true
  #failures = 0
  #failure: Failure | null = null
  /** Of the oldest event that is being published; null where nothing is. */
  #waitingSince: Instant | null = null

  constructor(options: StatusPublisherOptions) {
    this.#options = options
    const { log, places, doubts, logger, leaseMs = LEASE_MS, standbyMs, settleMs = SETTLE_MS } = options
    this.#changes = new StatusChanges(log, logger)
    this.#amends = new StatusAmends({
      doubts,
      changes: this.#changes,
      send: (changes, signal) => settledOr(this.#send(changes), signal),
      stillPublishing: () => this.#follower.renew(),
      settleMs,
      logger,
    })
    this.#follower = new Follower({
      name: STATUS_PUBLISHER,
      log,
      places,
      logger,
      words: {
        who: 'the publisher of task statuses',
        does: 'publishing task statuses',
        made: 'task statuses were published',
      },
      onTaken: () => {
        this.#isFirst = true
      },
      onBatch: (batch, stride, signal) => this.#handle(batch, stride, signal),
      onIdle: signal => this.#prepare(signal),
      leaseMs,
      standbyMs,
    })
  }

  /** `following` is who publishes; of several processes that is one. */
  get mode(): Follower['mode'] {
    return this.#follower.mode
  }

  start(): void {
    this.#follower.start()
  }

  /** Waits for what is being sent for a bounded time; safe to call twice. */
  async stop(): Promise<void> {
    await this.#follower.stop()
  }

  /** Not well while nothing can be published, and for good when the log went backwards. */
  health(): { ok: boolean; reason: string | null } {
    if (this.mode === 'halted') return { ok: false, reason: this.#follower.haltedBecause }
    const latest = performance.now() - REPORT_MS
    const failing = [this.#failure, this.#follower.failure].find(one => one && one.since < latest)
    return { ok: !failing, reason: failing?.reason ?? null }
  }

  /** For how long the oldest event that is not published has been waiting; null where another publishes. */
  lagSeconds(): number | null {
    if (this.mode !== 'following') return null
    return this.#waitingSince === null
      ? 0
      : Math.max(0, (this.#options.clock.now() - this.#waitingSince) / 1_000)
  }

  /** Makes the topic before there is anything to send, so that readers find it and health says where it cannot be made. */
  async #prepare(signal: AbortSignal): Promise<void> {
    this.#waitingSince = this.#topicIsThere ? null : this.#options.clock.now()
    if (!this.#topicIsThere) await this.#publish([], signal)
    this.#waitingSince = null
    await this.#amends.putRight(signal)
  }

  async #handle(batch: readonly StoredEvent[], stride: Stride, signal: AbortSignal): Promise<void> {
    await this.#amends.putRight(signal)
    const changes = await this.#changes.among(batch)
    this.#waitingSince = changes[0]?.at ?? null
    try {
      // A publisher that died in the middle of a send was sending this batch, or the beginning of it.
      if (this.#isFirst) await this.#amends.add(tasksOf(changes))
      if (changes.length > 0) await this.#publish(changes, signal)
      await this.#options.places.advance({ ...stride, eventAt: changes.at(-1)?.at ?? null })
      this.#isFirst = false
      this.#waitingSince = null
      this.#options.observer?.published(changes.length)
    } catch (error) {
      // What remains is the follower's to report.
      this.#failure = null
      // Another publishes, and what was sent here may stand after what that one has sent.
      if (error instanceof ProjectorFencedError)
        await this.#amends
          .add(tasksOf(changes), 0)
          .catch(err => this.#options.logger.warn({ err }, 'what was sent too late is not put right'))
      throw error
    }
  }

  /** Until the broker has them; the lease is kept meanwhile. */
  async #publish(changes: readonly StatusChange[], signal: AbortSignal): Promise<void> {
    const ending = new AbortController()
    const stop = () => ending.abort(signal.reason)
    signal.addEventListener('abort', stop)
    const keeping = setInterval(() => {
      // Where the database does not answer, the move of the place will say who publishes.
      this.#follower.renew().catch(error => {
        if (error instanceof ProjectorFencedError) ending.abort(error)
      })
    }, this.#follower.leaseMs / 3)
    try {
      signal.throwIfAborted()
      await this.#sendUntilTaken(changes, ending.signal)
    } finally {
      clearInterval(keeping)
      signal.removeEventListener('abort', stop)
    }
  }

  /** @throws the signal's reason when it is aborted */
  async #sendUntilTaken(changes: readonly StatusChange[], signal: AbortSignal): Promise<void> {
    let sent = changes
    for (;;) {
      signal.throwIfAborted()
      try {
        await this.#makeTopic(signal)
        await this.#sendOnce(sent, signal)
        this.#wentWell()
        return
      } catch (error) {
        signal.throwIfAborted()
        this.#fails(error)
        const shorter = error instanceof RecordRefusedError && sent === changes
        // Which of them is refused nobody says, and those of a task are to stay in their order.
        if (shorter) sent = changes.map(shortened)
        else await pause(growing(this.#failures, RETRY), signal)
      }
    }
  }

  async #sendOnce(changes: readonly StatusChange[], signal: AbortSignal): Promise<void> {
    try {
      await settledOr(this.#send(changes), signal)
    } catch (error) {
      if (!(error instanceof RecordRefusedError)) await this.#amends.add(tasksOf(changes))
      throw error
    }
  }

  async #send(changes: readonly StatusChange[]): Promise<void> {
    if (changes.length === 0) return
    await this.#options.broker.send(TASK_STATUS, changes.map(statusRecord))
  }

  async #makeTopic(signal: AbortSignal): Promise<void> {
    if (this.#topicIsThere) return
    const { broker, partitions = PARTITIONS } = this.#options
    await settledOr(broker.ensureTopics([{ name: TASK_STATUS, partitions, compacted: true }]), signal)
    this.#topicIsThere = true
  }

  #wentWell(): void {
    if (this.#failure) this.#options.logger.info('task statuses are published again')
    this.#failure = null
    this.#failures = 0
  }

  #fails(error: unknown): void {
    const { observer, logger } = this.#options
    // It may be what is missing.
    this.#topicIsThere = false
    observer?.failed(error instanceof RecordRefusedError ? 'refused' : 'unavailable')
    if (this.#failure === null)
      logger.warn({ err: error }, 'task statuses cannot be published; this goes on until they can')
    const reason = error instanceof Error ? error.message : String(error)
    this.#failure = { since: this.#failure?.since ?? performance.now(), reason }
    this.#failures++
  }
}

const tasksOf = (changes: readonly StatusChange[]): string[] => [
  ...new Set(changes.map(({ status }) => status.taskId)),
]

/** As the promise settles; once the signal has fired it gets a little time yet, then the signal's reason is thrown. */
function settledOr(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    let timer: NodeJS.Timeout | undefined
    const end = (settle: () => void) => {
      clearTimeout(timer)
      signal.removeEventListener('abort', onAbort)
      settle()
    }
    const onAbort = () => {
      timer = setTimeout(() => end(() => reject(signal.reason)), STOP_MS)
    }
    promise.then(
      () => end(resolve),
      error => end(() => reject(error)),
    )
    if (signal.aborted) onAbort()
    else signal.addEventListener('abort', onAbort)
  })
}
