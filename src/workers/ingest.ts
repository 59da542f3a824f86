/**
 * Ingest: worker events come in as records, whole batches go to the engine, and a batch is passed when all of it is
 * durable: as events, as refusals of tasks, or as dead letters.
 *
 * stopped -> preparing (the topic, again and again while the broker is away) -> consuming -> stopped
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { Broker, Consumer, IncomingRecord } from '../broker/broker.ts'
import { WORKER_EVENTS } from '../broker/topics.ts'
import type { Engine } from '../engine/engine.ts'
import type { DeadLetters, DeadRecord } from './dead-letters.ts'
import { EventHandling } from './event-handling.ts'
import type { Leases } from './leases.ts'

export interface IngestOptions {
  broker: Broker
  engine: Engine
  leases: Leases
  deadLetters: DeadLetters
  logger: Logger
  /** Of the topic of worker events, where it has to be created. */
  partitions?: number
}

/** Well below what the engine lets wait, so that several partitions at once do not overload it. */
const RECORDS_AT_ONCE = 2_000
/** A record on which the service failed so often is set apart, or it would hold up its partition for ever. */
const INTERNAL_ERRORS_MAX = 5
const FAILING_MAX = 10_000
const PREPARE_PAUSE_MS = { first: 500, longest: 10_000 }
const GROUP = 'rollcall-ingest'
const PARTITIONS = 12

/** A batch could not be handled now; it comes again as it is. */
export class BatchNotHandledError extends Error {
  readonly code: string

  constructor(code: string, message: string) {
    super(message)
    this.code = code
  }
}

export class Ingest {
  readonly #options: IngestOptions
  readonly #handling: EventHandling
  readonly #stopping = new AbortController()
  /** How often the service failed on a record, by its place. */
  readonly #failing = new Map<string, number>()
  #consumer: Consumer | null = null
  #preparing: Promise<void> | null = null
  #waitsBecause = 'it was not started'
  #stopped: Promise<void> | null = null

  constructor(options: IngestOptions) {
    this.#options = options
    this.#handling = new EventHandling(options.engine, options.leases)
  }

  /** Begins to consume as soon as the broker answers; safe to call twice. */
  start(): void {
    this.#preparing ??= this.#prepare()
  }

  /** Whether records are being handled: the consumer's own health, once there is one. */
  health(): { ok: boolean; reason: string | null } {
    return this.#consumer?.health() ?? { ok: false, reason: this.#waitsBecause }
  }

  /** Stops consuming; what is under way is handled, or comes again to whoever is next. Safe to call twice. */
  stop(): Promise<void> {
    this.#stopped ??= this.#stop()
    return this.#stopped
  }

  async #stop(): Promise<void> {
    this.#stopping.abort()
    await this.#preparing
    await this.#consumer?.stop()
  }

  async #prepare(): Promise<void> {
    const { broker, logger, partitions = PARTITIONS } = this.#options
    const { signal } = this.#stopping
    for (let pauseMs = PREPARE_PAUSE_MS.first; !signal.aborted; ) {
      try {
        await broker.ensureTopics([{ name: WORKER_EVENTS, partitions, compacted: false }])
        break
      } catch (error) {
        this.#waitsBecause = `the topic ${WORKER_EVENTS} is not there: ${(error as Error).message}`
        logger.warn(
          { err: error, topic: WORKER_EVENTS },
          'the broker cannot be asked for the topic; trying again',
        )
      }
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
      pauseMs = Math.min(pauseMs * 2, PREPARE_PAUSE_MS.longest)
    }
    if (signal.aborted) return
    this.#consumer = broker.consume({
      group: GROUP,
      topics: [WORKER_EVENTS],
      onBatch: (records, signal) => this.handleBatch(records, signal),
    })
  }

  /**
   * Handles a batch of one partition. Resolves when it may be passed.
   *
   * @throws BatchNotHandledError, or whatever the database throws, when it has to come again
   */
  async handleBatch(records: readonly IncomingRecord[], signal: AbortSignal): Promise<void> {
    for (let from = 0; from < records.length; from += RECORDS_AT_ONCE) {
      signal.throwIfAborted()
      await this.#handle(records.slice(from, from + RECORDS_AT_ONCE))
    }
  }

  async #handle(records: readonly IncomingRecord[]): Promise<void> {
    const outcomes = await this.#handling.handle(records)
    const dead: DeadRecord[] = []
    let passing: BatchNotHandledError | null = null
    outcomes.forEach((outcome, index) => {
      const record = records[index]!
      if (outcome.kind === 'dead') dead.push({ record, fault: outcome.fault })
      else if (outcome.kind === 'passing') {
        const { code, message, taskId } = outcome
        if (code === 'internal_error' && this.#failsOften(record))
          dead.push({ record, fault: { code, message, taskId } })
        else passing ??= new BatchNotHandledError(code, `Task ${taskId}: ${message}`)
      }
    })
    // Before the batch is passed, and also when it is not: they are known as what they are.
    if (dead.length > 0) await this.#keep(dead)
    if (passing) throw passing
    // Not before: a letter that comes again with a batch that waits for another is still one that fails.
    for (const record of records) this.#failing.delete(placeOf(record))
  }

  async #keep(dead: readonly DeadRecord[]): Promise<void> {
    await this.#options.deadLetters.keep(dead)
    for (const { record, fault } of dead) {
      const { topic, partition, offset } = record
      const { code, taskId, message } = fault
      this.#options.logger.error({ topic, partition, offset, code, taskId, reason: message }, 'a dead letter')
    }
  }

  #failsOften(record: IncomingRecord): boolean {
    const place = placeOf(record)
    const times = (this.#failing.get(place) ?? 0) + 1
    // A service that fails on so many has another fault than a record.
    if (times === 1 && this.#failing.size >= FAILING_MAX) this.#failing.clear()
    this.#failing.set(place, times)
    return times >= INTERNAL_ERRORS_MAX
  }
}

const placeOf = ({ topic, partition, offset }: IncomingRecord): string => `${topic}/${partition}/${offset}`
