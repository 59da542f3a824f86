/**
 * Hands the waiting tasks of one type to its topic.
 *
 * A round: the topic is made if it may be missing -> tasks are taken out of `ready` and held as offers, in one commit ->
 * they are read from the log -> sent. What breaks off after the commit needs nothing: an offer that is not started in
 * its time goes back to `ready` (the timers do that), and a message that comes twice, late or for a task that has ended
 * is answered by the log. A send that failed is tried again while its offers are held and takes no others meanwhile.
 */
import { randomUUID } from 'node:crypto'
import { BrokerUnavailableError, type OutgoingRecord, RecordRefusedError } from '../broker/broker.ts'
import { growing, pause } from '../broker/deadline.ts'
import { tasksTopic } from '../broker/topics.ts'
import type { Command, CommandEnvelope } from '../domain/commands.ts'
import type { Instant } from '../domain/events.ts'
import type { PendingTask } from '../domain/task.ts'
import { taskIn } from '../engine/task-reader.ts'
import type { DispatcherOptions, DispatchSettings } from './dispatcher.ts'
import { taskRecord } from './task-message.ts'
import { LOOK_MS } from './work-signal.ts'
import { dispatchId, type ToDispatch } from './work-state.ts'
import { hashToken } from './worker-events.ts'

/** Tasks in one round; with the largest payloads these are 27 MB. */
const ROUND_MAX = 100
/** The pause where the window is full: nothing tells that a task was started, so it is looked for. */
const FULL_LOOK_MS = 25
const RETRY = { firstMs: 250, lastMs: 5_000 }
/** The part of the hold in which a send is tried again; after it another dispatcher may have the task. */
const RETRY_SHARE = 0.8

interface Message {
  task: PendingTask
  record: OutgoingRecord
}

export class TypeDispatcher {
  readonly type: string
  readonly #topic: string
  readonly #settings: DispatchSettings
  readonly #options: DispatcherOptions
  #topicIsThere = false
  #failures = 0
  #failure: { since: number; reason: string } | null = null
  #outstanding = 0
  #fullLookMs = FULL_LOOK_MS

  constructor(type: string, settings: DispatchSettings, options: DispatcherOptions) {
    this.type = type
    this.#topic = tasksTopic(type)
    this.#settings = settings
    this.#options = options
  }

  /** What goes wrong, and since when by `performance.now()`; null where nothing does. */
  get failure(): { since: number; reason: string } | null {
    return this.#failure
  }

  /** Round after round until the signal is aborted. Never rejects. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const look = this.#options.signal.look([this.type])
      try {
        const { taken, outstanding } = await this.#round(signal)
        const free = this.#settings.maxOutstanding - outstanding
        if (free <= 0) await this.#waitForRoom(taken.length > 0, outstanding, signal)
        else if (taken.length < ROUND_MAX) await look.wait(free, LOOK_MS, signal)
      } catch (error) {
        await this.#waitAfter(error, signal)
      } finally {
        look.end()
      }
    }
  }

  async #round(signal: AbortSignal): Promise<ToDispatch> {
    const { workState, observer } = this.#options
    const { maxOutstanding, offerHoldMs: holdMs } = this.#settings
    // Nothing is taken while it could not be sent.
    await this.#makeTopic()
    const until = performance.now() + holdMs * RETRY_SHARE
    const look = await workState.takeToDispatch({ type: this.type, max: ROUND_MAX, maxOutstanding, holdMs })
    observer?.outstanding(this.type, look.outstanding)
    if (look.taken.length === 0 || (await this.#deliver(look, until, signal))) this.#wentWell()
    return look
  }

  /** As often as it takes, while the offers are held. @returns whether it came to a good end */
  async #deliver(look: ToDispatch, until: number, signal: AbortSignal): Promise<boolean> {
    do {
      try {
        await this.#makeTopic()
        await this.#send(look.taken, look.offeredAt)
        return true
      } catch (error) {
        await this.#waitAfter(error, signal)
      }
    } while (!signal.aborted && performance.now() < until)
    return false
  }

  /** Reads anew each time: what was started or has ended meanwhile is not sent again. */
  async #send(taken: ToDispatch['taken'], offeredAt: Instant): Promise<void> {
    const { engine, workState, logger } = this.#options
    const loaded = await engine.readMany(taken.map(({ taskId }) => taskId))
    const messages: Message[] = []
    const useless: string[] = []
    for (const { taskId, attempt, timesOffered } of taken) {
      const task = taskIn(loaded.get(taskId))
      if (task?.status === 'PENDING' && task.attempt === attempt)
        messages.push({ task, record: taskRecord(task, timesOffered, offeredAt) })
      else useless.push(taskId)
    }
    await this.#sendMessages(messages)
    if (useless.length > 0)
      await workState.dropOffers(dispatchId(this.type), useless).catch(err =>
        // They end by themselves.
        logger.warn({ err, type: this.type }, 'offers of no use were not dropped'),
      )
  }

  async #sendMessages(messages: readonly Message[]): Promise<void> {
    if (messages.length === 0) return
    const { broker, observer } = this.#options
    try {
      await broker.send(
        this.#topic,
        messages.map(({ record }) => record),
      )
      observer?.dispatched(this.type, messages.length)
    } catch (error) {
      if (!(error instanceof RecordRefusedError)) throw error
      // One of several, and nobody says which: the others are not to suffer for it.
      if (messages.length > 1) for (const message of messages) await this.#sendMessages([message])
      else await this.#failTask(messages[0]!.task, error)
    }
  }

  /**
   * The broker will never take this task's message. Offered again and again it would only stand in the window; so the
   * attempt fails, with the reason where people look for it, and the task's own policy says what comes next.
   */
  async #failTask(task: PendingTask, error: RecordRefusedError): Promise<void> {
    const { engine, observer, logger } = this.#options
    observer?.failed(this.type, 'refused')
    logger.error(
      { err: error, taskId: task.taskId, type: this.type },
      'the broker refuses the message of a task',
    )
    const fence = { attempt: task.attempt, leaseTokenHash: hashToken(randomUUID()) }
    const started = await engine.execute(
      envelope(task, 'start', { trigger: 'START', worker: DISPATCHER, ...fence }),
    )
    if (started.kind === 'refused') return
    const text = 'The message broker refuses the message of this task, most likely because it is too large.'
    await engine.execute(
      envelope(task, 'refused', {
        trigger: 'FAIL',
        error: { code: 'message_refused', message: text, detail: error.message },
        retryable: true,
        retryAfterMs: null,
        ...fence,
      }),
    )
  }

  async #makeTopic(): Promise<void> {
    if (this.#topicIsThere) return
    const { partitions } = this.#settings
    await this.#options.broker.ensureTopics([{ name: this.#topic, partitions, compacted: false }])
    this.#topicIsThere = true
  }

  /** Soon again while tasks are being started, and less often where nothing moves. */
  async #waitForRoom(took: boolean, outstanding: number, signal: AbortSignal): Promise<void> {
    const moves = took || outstanding < this.#outstanding
    this.#outstanding = outstanding
    this.#fullLookMs = moves ? FULL_LOOK_MS : Math.min(2 * this.#fullLookMs, LOOK_MS)
    await pause(this.#fullLookMs, signal)
  }

  #wentWell(): void {
    if (this.#failure) this.#options.logger.info({ type: this.type }, 'tasks are handed out again')
    this.#failure = null
    this.#failures = 0
  }

  async #waitAfter(error: unknown, signal: AbortSignal): Promise<void> {
    const { observer, logger } = this.#options
    if (error instanceof BrokerUnavailableError || error instanceof RecordRefusedError) {
      // The topic may be what is missing.
      this.#topicIsThere = false
      observer?.failed(this.type, error instanceof RecordRefusedError ? 'refused' : 'unavailable')
    }
    if (this.#failure === null)
      logger.warn({ err: error, type: this.type }, 'tasks cannot be handed out; this goes on until they can')
    const reason = error instanceof Error ? error.message : String(error)
    this.#failure = { since: this.#failure?.since ?? performance.now(), reason }
    this.#failures++
    await pause(growing(this.#failures, RETRY), signal)
  }
}

const DISPATCHER = 'dispatcher'

const envelope = (task: PendingTask, what: string, command: Command): CommandEnvelope => ({
  taskId: task.taskId,
  command,
  commandId: `${DISPATCHER}:${task.attempt}:${what}`,
  actor: { kind: 'system', id: DISPATCHER },
  source: 'kafka',
  correlationId: null,
  causationId: null,
  trace: null,
  ifRevision: null,
})
