/**
 * A worker's link over Kafka: tasks come as messages, reports go as worker events. What the worker wants to know at
 * once, whether a task is its own and whether it still is, it asks over HTTP, unless it is told to do without.
 */
import type { Logger as BrokerLogger } from 'pino'
import type { Beat, BeatResult } from '../../api/schemas/workers.ts'
import { type Broker, type OutgoingRecord, RecordRefusedError } from '../../broker/broker.ts'
import { WORKER_EVENTS } from '../../broker/topics.ts'
import { RollcallError } from '../errors.ts'
import type { Http } from '../http.ts'
import { beatOverHttp } from '../http-link.ts'
import { newId } from '../ids.ts'
import type { Delivered, Link, Report, SourcePort, TaskSource } from '../link.ts'
import { childLogger, type Logger } from '../logger.ts'
import { Outage } from '../outage.ts'
import { messageOf } from '../outcome.ts'
import type { WorkerSettings } from '../worker-options.ts'
import { KafkaTasks } from './kafka-tasks.ts'
import type { KafkaSettings } from './options.ts'
import { eventRecord, newLeaseToken, type Start, startByRecord, startOverHttp } from './start.ts'

/** A worker that stops, or looks for its broker, is quicker at it than a service. */
const TIMEOUTS = { stopMs: 3_000, lastRetryMs: 5_000 }

export class KafkaLink implements Link {
  readonly #settings: WorkerSettings
  readonly #kafka: KafkaSettings
  readonly #http: Http | null
  #opening: Promise<Broker> | null = null

  /** @param http null where nobody confirms */
  constructor(settings: WorkerSettings, kafka: KafkaSettings, http: Http | null) {
    this.#settings = settings
    this.#kafka = kafka
    this.#http = http
  }

  source(port: SourcePort): TaskSource {
    const { worker } = this.#settings
    const leaseToken = newLeaseToken()
    const start: Start = this.#http
      ? startOverHttp(this.#http, worker, leaseToken)
      : startByRecord((records, signal) => this.#send(records, signal), worker, leaseToken)
    return new KafkaTasks({
      broker: () => this.#broker(),
      group: this.#kafka.group,
      settings: this.#settings,
      leaseToken,
      start,
      beginsWhenPassed: this.#http === null,
      port,
      outage: new Outage(this.#settings, 'starting tasks'),
    })
  }

  async report(reports: readonly Report[], signal: AbortSignal): Promise<Delivered[]> {
    const worker = `{"worker":${JSON.stringify(this.#settings.worker)},`
    try {
      await this.#send(
        reports.map(({ taskId, json }) => eventRecord(taskId, worker + json.slice(1))),
        signal,
      )
    } catch (error) {
      if (!(error instanceof RecordRefusedError)) throw error
      throw new RollcallError(error.message, { code: error.code, status: 413, cause: error })
    }
    return reports.map(() => ({ kind: 'sent' }))
  }

  async beat(beats: readonly Beat[], timeoutMs: number, signal: AbortSignal): Promise<BeatResult[]> {
    const { worker } = this.#settings
    if (this.#http) return beatOverHttp(this.#http, worker, beats, timeoutMs, signal)
    const records = beats.map(({ progress, ...beat }) => {
      const says = progress === undefined ? { trigger: 'HEARTBEAT' } : { trigger: 'PROGRESS', progress }
      return eventRecord(beat.taskId, JSON.stringify({ ...says, ...beat, worker, commandId: newId() }))
    })
    await this.#send(records, signal)
    return beats.map(({ taskId, attempt }) => ({ taskId, attempt, state: 'held', until: null, reason: null }))
  }

  async close(): Promise<void> {
    const opening = this.#opening
    this.#opening = Promise.reject(new Error('the worker has ended'))
    this.#opening.catch(() => {})
    await opening?.then(broker => broker.close()).catch(() => {})
  }

  /** Rejects when the signal is aborted; whether the broker has them is then not known. */
  async #send(records: readonly OutgoingRecord[], signal: AbortSignal): Promise<void> {
    const broker = await this.#broker()
    signal.throwIfAborted()
    let abort: () => void = () => {}
    const aborted = new Promise<never>((_, reject) => {
      abort = () => reject(signal.reason)
    })
    signal.addEventListener('abort', abort, { once: true })
    try {
      await Promise.race([broker.send(WORKER_EVENTS, records), aborted])
    } finally {
      signal.removeEventListener('abort', abort)
    }
  }

  /** The client is loaded when it is first needed: a worker over HTTP never does. */
  #broker(): Promise<Broker> {
    this.#opening ??= this.#open().catch(error => {
      this.#opening = null
      throw error
    })
    return this.#opening
  }

  async #open(): Promise<Broker> {
    const { openKafkaBroker } = await import('../../broker/kafka/kafka-broker.ts')
    const { brokers, tls, sasl, timeouts } = this.#kafka
    return openKafkaBroker({
      brokers,
      clientId: 'rollcall-worker',
      logger: brokerLogger(this.#settings.logger),
      ...(tls === undefined ? {} : { tls }),
      ...(sasl === undefined ? {} : { sasl }),
      timeouts: { ...TIMEOUTS, ...timeouts },
    })
  }
}

/** The worker's logger as the broker's adapter wants it: with levels of its own, and with children. */
function brokerLogger(logger: Logger): BrokerLogger {
  const { debug, info, warn, error } = spoken(logger)
  const all = { trace: debug, debug, info, warn, error, fatal: error, silent: () => {} }
  // pino's logger has much that the adapter does not ask for.
  return {
    ...all,
    child: (more: object) => brokerLogger(childLogger(logger, { ...more })),
  } as unknown as BrokerLogger
}

/** Errors as text: whoever writes JSON would write an Error as {}. */
function spoken(logger: Logger): Logger {
  const write = (level: keyof Logger) => (fields: Record<string, unknown>, message: string) => {
    const { err, ...rest } = fields
    logger[level](err === undefined ? rest : { ...rest, error: messageOf(err) }, message)
  }
  return { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') }
}
