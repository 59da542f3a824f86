/**
 * The worker: takes tasks, runs a handler for each, keeps their leases, reports what became of them.
 *
 *   idle ──start──> running ──stop──> draining ──handlers done or time up──> stopped
 *
 * Nothing a handler does ends the loop. Stopping lets handlers finish for `drainMs`, then aborts them and hands
 * their tasks back.
 */
import type { ClaimedTask } from '../api/schemas/workers.ts'
import { Attempt, type AttemptPort, attemptKey, type Ending } from './attempt.ts'
import { isPassing } from './errors.ts'
import { Heartbeats } from './heartbeats.ts'
import { Http } from './http.ts'
import { HttpLink } from './http-link.ts'
import { KafkaLink } from './kafka/kafka-link.ts'
import type { Link, Report, TaskSource } from './link.ts'
import { nodeTransport } from './node-transport.ts'
import { Outage } from './outage.ts'
import { outcomeOfThrow, permanent } from './outcome.ts'
import { type Delivery, Reports } from './reports.ts'
import { monotonicMs, Wakeup, waitUntil } from './waiting.ts'
import { type Handler, settingsOf, type WorkerOptions, type WorkerSettings } from './worker-options.ts'

export type { FailureOptions, FieldError } from './errors.ts'
export {
  CancelledError,
  LeaseLostError,
  PermanentError,
  RetryLater,
  RollcallError,
  ShutdownError,
} from './errors.ts'
export type { KafkaWorkerOptions } from './kafka/options.ts'
export type { LogFields, Logger } from './logger.ts'
export { done } from './outcome.ts'
export { runWorkerUntilSignal } from './until-signal.ts'
export type { Handler, HandlerContext, Task, WorkerOptions } from './worker-options.ts'

/** What a worker has done since it was made. */
export interface WorkerCounts {
  /** Tasks taken, from the service or from Kafka. */
  claimed: number
  /** Messages from Kafka that were passed by: another had the task, it was over, or they were no tasks. */
  skipped: number
  succeeded: number
  failed: number
  released: number
  /** Stopped because the task was cancelled. */
  cancelled: number
  /** Stopped because the attempt was over or another's. */
  lost: number
  /** Outcomes the service refused: it had decided otherwise before they came. */
  refused: number
  /** Reports not delivered when the worker had to end; their leases end by themselves. */
  undelivered: number
}

export interface Worker {
  /** The worker's name, as the history shows it. */
  readonly name: string
  /** Handlers at work now. */
  readonly running: number
  readonly counts: Readonly<WorkerCounts>
  /** Resolves when the worker has stopped, whoever asked for it. */
  readonly stopped: Promise<void>
  /** Begins to take tasks; again is nothing. A worker that was stopped stays so. */
  start(): void
  /**
   * Takes no more, lets handlers finish for `drainMs`, hands back what is left, delivers all reports.
   * Asked again it answers the same promise; a shorter `drainMs` then cuts the wait short. Never rejects.
   */
  stop(options?: { drainMs?: number }): Promise<void>
}

/** Makes a worker. Throws a TypeError for options that cannot be meant; it connects when started. */
export function createWorker(options: WorkerOptions): Worker {
  const settings = settingsOf(options)
  const { url } = options
  const http = url === undefined ? null : new Http({ ...options, url }, nodeTransport)
  return new TaskWorker(linkOf(http, settings), settings)
}

function linkOf(http: Http | null, settings: WorkerSettings): Link {
  const { kafka } = settings
  if (kafka) return new KafkaLink(settings, kafka, kafka.confirm === 'api' ? http : null)
  if (http) return new HttpLink(http, settings)
  throw new Error('bug: settings without url were accepted')
}

/** Undelivered outcomes beyond which no more work is taken: memory is bounded while the service is away. */
const UNDELIVERED_PER_SLOT = 4
const UNDELIVERED_MIN = 100
const UNDELIVERED_MAX_BYTES = 32 * 1024 * 1024
/** Between the abort and the release: time for a handler to stop by itself, or to finish all the same. */
const ABORT_GRACE_MS = 500
const FLUSH_MS = 5_000
/** A handler that was told to stop and has not after so long is named in the log. */
const IGNORED_ABORT_MS = 30_000
const SHUTTING_DOWN: Ending = { kind: 'released', reason: 'worker is shutting down' }
const NOT_ASKED_FOR: Ending = { kind: 'released', reason: 'worker has no free slot for it, or no handler' }
type Refused = Extract<Delivery, { kind: 'refused' }>
/** Refusals that say how the attempt stands; others blame the report itself. */
const STANDING = new Set([
  'not_found',
  'illegal_transition',
  'task_finished',
  'already_started',
  'stale_attempt',
  'unknown_attempt',
  'not_lease_holder',
  'superseded',
  'set_aside',
])

class TaskWorker implements Worker {
  readonly counts: WorkerCounts = {
    claimed: 0,
    skipped: 0,
    succeeded: 0,
    failed: 0,
    released: 0,
    cancelled: 0,
    lost: 0,
    refused: 0,
    undelivered: 0,
  }
  readonly #settings: WorkerSettings
  readonly #reports: Reports
  readonly #heartbeats: Heartbeats
  readonly #source: TaskSource
  readonly #link: Link
  readonly #attempts = new Map<string, Attempt>()
  readonly #changed = new Wakeup()
  readonly #port: AttemptPort
  readonly stopped: Promise<void>
  #sayEnded: () => void = () => {}
  #taking: Promise<void> | null = null
  #stopping = false
  #drainUntil = Number.POSITIVE_INFINITY

  constructor(link: Link, settings: WorkerSettings) {
    this.#settings = settings
    this.stopped = new Promise(resolve => {
      this.#sayEnded = resolve
    })
    const { logger } = settings
    this.#link = link
    this.#reports = new Reports(link, new Outage(settings, 'reporting'))
    this.#heartbeats = new Heartbeats(
      link,
      new Outage(settings, 'the heartbeat'),
      (attempt, how, reason) => this.#end(attempt, how, reason),
      (attempt, silentMs) =>
        logger.warn(
          { ...namesOf(attempt), silentMs: Math.round(silentMs), leaseMs: attempt.task.leaseMs },
          'no heartbeat was answered for longer than the lease; the task goes on, the log decides its outcome',
        ),
    )
    this.#source = link.source({
      room: () => this.#room(),
      take: (tasks, leaseToken, heldAt) => this.#take(tasks, leaseToken, heldAt),
      skipped: count => {
        this.counts.skipped += count
      },
    })
    this.#port = {
      logger,
      sendStep: report => this.#sendStep(report),
      progressChanged: attempt => this.#heartbeats.progressChanged(attempt),
    }
  }

  get name(): string {
    return this.#settings.worker
  }

  get running(): number {
    return this.#attempts.size
  }

  start(): void {
    if (this.#stopping) throw new Error('The worker was stopped; make another with createWorker.')
    if (this.#taking) return
    const { logger, worker, types, concurrency } = this.#settings
    logger.info({ worker, types: [...types.keys()], concurrency }, 'the worker starts')
    this.#taking = this.#source.run()
  }

  stop({ drainMs = this.#settings.drainMs }: { drainMs?: number } = {}): Promise<void> {
    this.#drainUntil = Math.min(this.#drainUntil, monotonicMs() + drainMs)
    this.#changed.wake()
    if (!this.#stopping) {
      this.#stopping = true
      void this.#drain().then(this.#sayEnded)
    }
    return this.stopped
  }

  async #drain(): Promise<void> {
    const { logger, worker } = this.#settings
    logger.info(
      { worker, running: this.running },
      'the worker stops: no more tasks, running tasks may finish',
    )
    this.#source.stop()
    const idle = () => this.#attempts.size === 0
    while (!idle() && monotonicMs() < this.#drainUntil) {
      const until = this.#drainUntil
      // A second stop may move the end of the drain closer; its wake looks again.
      await waitUntil(() => idle() || this.#drainUntil < until, this.#changed, until - monotonicMs())
    }
    // Before anything is handed back: a claim that still waits would take it again.
    await this.#taking
    for (const attempt of this.#attempts.values()) attempt.shutDown()
    await waitUntil(idle, this.#changed, ABORT_GRACE_MS)
    const ignoring = [...this.#attempts.values()]
    for (const attempt of ignoring) if (!attempt.over) this.#report(attempt, SHUTTING_DOWN)
    this.counts.undelivered = await this.#reports.end(FLUSH_MS)
    this.#heartbeats.stop()
    await this.#link.close()
    this.#sayStopped(ignoring)
  }

  #sayStopped(ignoring: readonly Attempt[]): void {
    const { logger, worker } = this.#settings
    const { undelivered } = this.counts
    if (undelivered > 0)
      logger.error(
        { worker, undelivered },
        'reports were not delivered; the leases of their tasks end by themselves',
      )
    if (ignoring.length > 0) {
      const taskIds = ignoring.slice(0, 10).map(({ task }) => task.taskId)
      logger.warn(
        { worker, count: ignoring.length, taskIds },
        'handlers ignored their signal and may still run',
      )
    }
    logger.info({ worker, ...this.counts }, 'the worker has stopped')
  }

  #room(): number {
    const { concurrency } = this.#settings
    const { undelivered, undeliveredBytes } = this.#reports
    if (undelivered > Math.max(UNDELIVERED_MIN, UNDELIVERED_PER_SLOT * concurrency)) return 0
    if (undeliveredBytes > UNDELIVERED_MAX_BYTES) return 0
    return concurrency - this.#attempts.size
  }

  #take(tasks: readonly ClaimedTask[], leaseToken: string, heldAt: number): void {
    for (const task of tasks) {
      if (this.#attempts.has(attemptKey(task.taskId, task.attempt))) continue
      this.counts.claimed++
      const attempt = new Attempt(task, leaseToken, this.#port)
      const handler = this.#settings.types.get(task.type)
      if (this.#stopping || !handler || this.#attempts.size >= this.#settings.concurrency) {
        attempt.settled = true
        this.#report(attempt, this.#stopping ? SHUTTING_DOWN : NOT_ASKED_FOR)
        continue
      }
      this.#attempts.set(attempt.key, attempt)
      this.#heartbeats.add(attempt, heldAt)
      void this.#work(attempt, handler)
    }
  }

  /** Runs the handler and sees to its end. Never rejects. */
  async #work(attempt: Attempt, handler: Handler): Promise<void> {
    const outcome = await attempt.run(handler)
    this.#attempts.delete(attempt.key)
    if (attempt.over) this.counts[attempt.over]++
    else this.#report(attempt, outcome ?? SHUTTING_DOWN)
    this.#source.wake()
    this.#changed.wake()
  }

  /** Sends how an attempt ended, once. A real outcome takes the place of a release that was not sent yet. */
  #report(attempt: Attempt, ending: Ending): void {
    const report = attempt.reportOf(ending)
    const { reported } = attempt
    if (reported) {
      if (ending.kind !== 'released' && this.#reports.replace(reported.sent, report)) reported.ending = ending
      return
    }
    attempt.reported = { ending, sent: this.#reports.send(report) }
    void this.#follow(attempt, attempt.reported)
  }

  async #follow(attempt: Attempt, reported: NonNullable<Attempt['reported']>): Promise<void> {
    const delivery = await reported.sent.delivered
    const { ending } = reported
    if (delivery.kind === 'refused') {
      this.#settings.logger.warn(
        { ...namesOf(attempt), ending: ending.kind, code: delivery.code, refusal: delivery.message },
        'a report was refused',
      )
      this.counts.refused++
      const instead = insteadOf(attempt, ending, delivery)
      if (instead) {
        attempt.reported = null
        return this.#report(attempt, instead)
      }
    } else if (delivery.kind !== 'undelivered') this.counts[ending.kind]++
    this.#heartbeats.remove(attempt)
    this.#source.wake()
  }

  #sendStep(report: Report): Promise<Delivery> {
    const { delivered } = this.#reports.send(report)
    void delivered.then(() => this.#source.wake())
    return delivered
  }

  #end(attempt: Attempt, how: 'cancelled' | 'lost', reason: string | null): void {
    // A handler that has settled has its outcome on its way, and the log decides on that.
    if (attempt.settled) return
    const { logger } = this.#settings
    logger.info({ ...namesOf(attempt), how, reason }, 'the attempt ended while its handler works')
    attempt.end(how, reason)
    this.#heartbeats.remove(attempt)
    setTimeout(() => {
      if (!attempt.settled)
        logger.warn(
          namesOf(attempt),
          'a handler ignores its abort signal; it keeps its slot until it settles',
        )
    }, IGNORED_ABORT_MS).unref()
  }
}

/**
 * What to report where a report was refused, so that the task does not hang until its lease ends; null where
 * the refusal says that the attempt is over.
 */
function insteadOf(attempt: Attempt, ending: Ending, { code, message }: Refused): Ending | null {
  // What is the service's own trouble says nothing of the result: the lease ends, another attempt may do.
  if (STANDING.has(code) || isPassing(code)) return null
  if (ending.kind === 'succeeded') return permanent('result_refused', `The result was refused: ${message}`)
  if (attempt.dropSaved()) return ending
  if (code === 'release_limit') return outcomeOfThrow(new Error(`The worker shut down. ${message}`))
  return null
}

const namesOf = ({ task }: Attempt) => ({ taskId: task.taskId, attempt: task.attempt, type: task.type })
