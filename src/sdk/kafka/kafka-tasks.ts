/**
 * Tasks out of Kafka: one consumer for each type. A message is passed when its START is answered, for from then on the
 * log owns the task; while the worker has no slot free, or nobody answers, its partition waits.
 *
 *   waiting for a slot ──> START asked, again and again ──accepted──> handed to the worker, and passed
 *          │                      └──refused, or known already──> passed
 *          └──stop──> not passed: it comes to whoever has the partition next
 */
import type { ClaimedTask, StartResult } from '../../api/schemas/workers.ts'
import type { Broker, Consumer, HandledPart, IncomingRecord } from '../../broker/broker.ts'
import { tasksTopic } from '../../broker/topics.ts'
import type { TaskMessage } from '../../workers/task-message.ts'
import { attemptKey } from '../attempt.ts'
import { isPassing, isServiceAway, RollcallError } from '../errors.ts'
import { newId } from '../ids.ts'
import type { SourcePort, TaskSource } from '../link.ts'
import type { Outage } from '../outage.ts'
import { backoffMs, monotonicMs, sleep, Wakeup } from '../waiting.ts'
import type { WorkerSettings } from '../worker-options.ts'
import type { Start } from './start.ts'
import { parseTaskMessage } from './task-message.ts'

const STARTS_MAX = 500
const TIMEOUT_MS = 10_000
const BACKOFF = { initialMs: 50, maxMs: 2_000 }
/** An answer that blames the request (a wrong url, an older service) is not asked again as fast. */
const REFUSED_BACKOFF = { initialMs: 1_000, maxMs: 30_000 }
const RETRY_AFTER_MAX_MS = 30_000
/** A task on which the service alone fails again and again is passed; the log owns it and offers it again. */
const PUT_OFF_MAX = 10
/** A START on its way when the worker stops may be answered in this time. */
const STOP_PATIENCE_MS = 1_000
const SETTLE_TRIES = 3
const SETTLE_TIMEOUT_MS = 1_000
/** Attempts remembered as begun, so that a message that comes again begins no second handler. */
const BEGUN_MAX = 20_000

/** `heldAt`: since when their leases run, at the least. */
type OnStarted = (tasks: ClaimedTask[], heldAt: number) => void

export interface KafkaTasksOptions {
  broker(): Promise<Broker>
  /** What the groups' names begin with. */
  group: string
  settings: WorkerSettings
  leaseToken: string
  start: Start
  /**
   * Whether a handler begins when its message is passed, and not before. Where nobody confirms a START, a task that ends
   * the process of its worker would come to the next one again, and to the next.
   */
  beginsWhenPassed: boolean
  port: SourcePort
  outage: Outage
}

/** The worker stops; what it has not begun is left to others. */
class StoppingError extends Error {
  override readonly name = 'StoppingError'
}

export class KafkaTasks implements TaskSource {
  readonly #options: KafkaTasksOptions
  readonly #stopping = new AbortController()
  readonly #giveUp = new AbortController()
  readonly #changed = new Wakeup()
  readonly #begun = new Set<string>()
  #consumers: Consumer[] = []
  /** Slots of tasks whose START is on its way. */
  #starting = 0

  constructor(options: KafkaTasksOptions) {
    this.#options = options
  }

  async run(): Promise<void> {
    const { signal } = this.#stopping
    for (let failures = 1; !signal.aborted && this.#consumers.length === 0; failures++) {
      try {
        this.#consume(await this.#options.broker())
      } catch (error) {
        this.#options.outage.failed(error)
        await sleep(backoffMs(REFUSED_BACKOFF, failures), signal)
      }
    }
    while (!signal.aborted) await this.#changed.wait()
    await Promise.allSettled(this.#consumers.map(consumer => consumer.stop()))
  }

  wake(): void {
    this.#changed.wake()
  }

  stop(): void {
    if (this.#stopping.signal.aborted) return
    this.#stopping.abort(new StoppingError('the worker is stopping'))
    // First, so that what is rejected below is known to be for a stop; `run` waits for it.
    for (const consumer of this.#consumers) consumer.stop().catch(() => {})
    this.#changed.wake()
    setTimeout(() => this.#giveUp.abort(this.#stopping.signal.reason), STOP_PATIENCE_MS).unref()
  }

  #consume(broker: Broker): void {
    if (this.#stopping.signal.aborted) return
    const { group, settings } = this.#options
    this.#consumers = [...settings.types.keys()].map(type =>
      broker.consume({
        group: `${group}.${type}`,
        topics: [tasksTopic(type)],
        recordsAtOnce: Math.min(STARTS_MAX, settings.concurrency),
        onBatch: records => this.#onBatch(type, records),
      }),
    )
  }

  /** As many as there are slots for; resolves when they are begun, or are not this worker's to begin. */
  async #onBatch(type: string, records: readonly IncomingRecord[]): Promise<HandledPart> {
    const { port, leaseToken, beginsWhenPassed } = this.#options
    const slots = await this.#reserve(records.length)
    const started: { tasks: ClaimedTask[]; heldAt: number }[] = []
    const begin = (): void => {
      for (const { tasks, heldAt } of started.splice(0)) port.take(tasks, leaseToken, heldAt)
      this.#starting -= slots
      this.#changed.wake()
    }
    try {
      await this.#begin(this.#readable(type, records.slice(0, slots)), (tasks, heldAt) => {
        if (beginsWhenPassed) started.push({ tasks, heldAt })
        else port.take(tasks, leaseToken, heldAt)
      })
    } catch (error) {
      begin()
      throw error
    }
    if (!beginsWhenPassed) begin()
    return { count: slots, onPassed: beginsWhenPassed ? begin : () => {} }
  }

  #readable(type: string, records: readonly IncomingRecord[]): TaskMessage[] {
    const { port, settings } = this.#options
    return records.flatMap(record => {
      const { message, fault } = parseTaskMessage(record, type)
      if (message) return [message]
      const { topic, partition, offset } = record
      port.skipped(1)
      settings.logger.warn({ topic, partition, offset, fault }, 'a message is no task and was passed')
      return []
    })
  }

  /** Takes slots, at least one, as soon as there are; at once, since the partitions' batches ask side by side. */
  async #reserve(max: number): Promise<number> {
    for (;;) {
      this.#stopping.signal.throwIfAborted()
      const room = Math.min(STARTS_MAX, max, this.#options.port.room() - this.#starting)
      if (room > 0) {
        this.#starting += room
        return room
      }
      await this.#changed.wait()
    }
  }

  async #begin(messages: readonly TaskMessage[], onStarted: OnStarted): Promise<void> {
    const fresh = messages.filter(message => !this.#begun.has(keyOf(message)))
    this.#options.port.skipped(messages.length - fresh.length)
    if (fresh.length > 0) await this.#start(fresh, onStarted)
  }

  /** Starts them, however long the service takes to answer. Rejects when the worker stops first. */
  async #start(messages: readonly TaskMessage[], onStarted: OnStarted): Promise<void> {
    const { start, outage } = this.#options
    const commandId = newId()
    const since = monotonicMs()
    let open = messages
    for (let failures = 0, refusals = 0, rounds = 1; ; ) {
      const askedAt = failures === 0 ? monotonicMs() : since
      let waitMs: number
      try {
        const results = await start(open, commandId, TIMEOUT_MS, this.#giveUp.signal)
        open = this.#sort(open, results, rounds++, tasks => onStarted(tasks, askedAt))
        if (open.length === 0) return outage.over()
        outage.failed(new Error('the service put tasks off'), { putOff: open.length })
        waitMs = backoffMs(BACKOFF, rounds)
      } catch (error) {
        if (this.#stopping.signal.aborted)
          return this.#settle(open, commandId, tasks => onStarted(tasks, since))
        outage.failed(error, { waiting: open.length })
        failures++
        waitMs = isRepeatable(error)
          ? Math.max(backoffMs(BACKOFF, failures), askedToWait(error))
          : backoffMs(REFUSED_BACKOFF, ++refusals)
      }
      await sleep(waitMs, this.#stopping.signal)
      if (this.#stopping.signal.aborted)
        return failures > 0 ? this.#settle(open, commandId, tasks => onStarted(tasks, since)) : this.#leave()
    }
  }

  /** Asks once more for what may have been started, to hand it back; a few tries, then leases end. */
  async #settle(
    open: readonly TaskMessage[],
    commandId: string,
    onStarted: (tasks: ClaimedTask[]) => void,
  ): Promise<void> {
    for (let tries = 1; tries <= SETTLE_TRIES; tries++) {
      try {
        const never = new AbortController().signal
        const results = await this.#options.start(open, commandId, SETTLE_TIMEOUT_MS, never)
        if (this.#sort(open, results, PUT_OFF_MAX, onStarted).length === 0) return
        break
      } catch {
        if (tries < SETTLE_TRIES) await sleep(backoffMs(BACKOFF, tries))
      }
    }
    this.#leave()
  }

  #leave(): never {
    throw this.#stopping.signal.reason
  }

  /** Hands on what is started; returns what the service put off. */
  #sort(
    messages: readonly TaskMessage[],
    results: readonly StartResult[],
    round: number,
    onStarted: (tasks: ClaimedTask[]) => void,
  ): TaskMessage[] {
    const { port, settings } = this.#options
    const putOff: TaskMessage[] = []
    const started: ClaimedTask[] = []
    messages.forEach((message, index) => {
      const result = results[index]!
      const { taskId, attempt } = message
      if (result.kind !== 'refused') {
        this.#remember(keyOf(message))
        started.push(claimedTask(message, result))
      } else if (isServiceAway(result.code) || (isPassing(result.code) && round < PUT_OFF_MAX))
        putOff.push(message)
      else {
        port.skipped(1)
        const { code, message: refusal } = result
        settings.logger.debug(
          { taskId, attempt, code, refusal },
          'a task was not to be started and was passed',
        )
      }
    })
    if (started.length > 0) onStarted(started)
    return putOff
  }

  #remember(key: string): void {
    this.#begun.add(key)
    if (this.#begun.size <= BEGUN_MAX) return
    for (const oldest of this.#begun) {
      this.#begun.delete(oldest)
      return
    }
  }
}

const keyOf = ({ taskId, attempt }: TaskMessage): string => attemptKey(taskId, attempt)

function claimedTask(message: TaskMessage, result: Exclude<StartResult, { kind: 'refused' }>): ClaimedTask {
  const { taskId, type, run, attempt, maxAttempts, attemptsCharged } = message
  const { payload, context, labels, correlationId, leaseMs } = message
  const { leaseUntil, executionDeadlineAt } = result
  return {
    taskId,
    type,
    run,
    attempt,
    maxAttempts,
    attemptsCharged,
    payload,
    context,
    labels,
    correlationId,
    leaseMs,
    leaseUntil,
    executionDeadlineAt,
  }
}

function isRepeatable(error: unknown): boolean {
  return !(error instanceof RollcallError) || error.retryable || error.status >= 500
}

const askedToWait = (error: unknown): number =>
  Math.min(RETRY_AFTER_MAX_MS, error instanceof RollcallError ? (error.retryAfterMs ?? 0) : 0)
