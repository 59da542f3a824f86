/** What a worker is told, and its check: bad options fail where the worker is made, not where a task is lost. */
import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import type { ClaimedTask } from '../api/schemas/workers.ts'
import { wholeNumber } from './checks.ts'
import type { HttpOptions } from './http.ts'
import { type KafkaSettings, type KafkaWorkerOptions, kafkaSettingsOf } from './kafka/options.ts'
import { type Logger, safeLogger, stderrLogger } from './logger.ts'

/** A task in a handler's hands. `context` is what an earlier attempt left behind, null where none did. */
export type Task<Payload> = Omit<ClaimedTask, 'payload'> & { readonly payload: Payload }

/** What a handler may say and ask while it works. */
export interface HandlerContext {
  readonly taskId: string
  readonly attempt: number
  /**
   * Aborted when the work is to stop: `reason` is a CancelledError, a LeaseLostError or a ShutdownError. Hand
   * it on to whatever takes a signal; a handler that ignores it keeps its slot until it settles.
   */
  readonly signal: AbortSignal
  /**
   * Enters a step (`DOWNLOADING`). Resolves once it is stored, with `context` for the next attempt if given (up
   * to 16 KiB of JSON). Rejects with the signal's reason when the attempt ends first, with a RollcallError
   * when it is refused.
   */
  step(name: string, context?: unknown): Promise<void>
  /** Says how far the work is, 0 to 1. Cheap: only the latest is sent, a few times a second at most. */
  progress(fraction: number): void
  /** Hands this to the next attempt should this one fail or be handed back (up to 16 KiB of JSON). */
  save(context: unknown): void
  /** Writes to the worker's log, with the task's id. */
  readonly log: Logger
}

/**
 * Does one task. What it returns is the result (JSON, up to 256 KiB); what it throws fails the attempt. It may
 * run more than once for a task (a crash, a lost lease), so its effects are to be safe to repeat.
 */
// biome-ignore lint/suspicious/noExplicitAny: a payload is whatever was submitted; the handler says its type.
export type Handler = (task: Task<any>, context: HandlerContext) => unknown

export interface WorkerOptions extends Omit<HttpOptions, 'url'> {
  /**
   * Where the service answers, for example `http://127.0.0.1:8080`; a path before `/v1` may follow. Left out only with
   * `kafka` and `confirm: 'none'`.
   */
  url?: string | undefined
  /** Takes tasks from Kafka instead of claiming them over HTTP, and reports through it. */
  kafka?: KafkaWorkerOptions | undefined
  /** A handler per task type. */
  types: Record<string, Handler>
  /** Tasks at once. Default 4. */
  concurrency?: number
  /** Shown in the history and the roll call. Default `host:pid:random`. */
  worker?: string
  /** How long `stop` lets running handlers go on before it hands their tasks back. Default 10,000. */
  drainMs?: number
  /** How long one request waits at the service for work, up to 30,000. Default 20,000. */
  waitMs?: number
  /** Default: warnings and errors to stderr. Any pino logger fits. */
  logger?: Logger
  /** Told of each failure that the worker itself survives: lost connections, refused reports. */
  onError?: (error: unknown) => void
}

export interface WorkerSettings {
  /** Null where tasks are claimed over HTTP. */
  kafka: KafkaSettings | null
  types: ReadonlyMap<string, Handler>
  concurrency: number
  worker: string
  drainMs: number
  waitMs: number
  logger: Logger
  onError: (error: unknown) => void
}

const TYPE_PATTERN = /^[a-z0-9][a-z0-9._-]{0,63}$/
const WORKER_PATTERN = /^[\p{L}\p{N}\p{P}\p{S} ]{1,128}$/u
const TYPES_MAX = 32
const CONCURRENCY_MAX = 10_000
const WAIT_MAX_MS = 30_000

/** The options, checked and complete. Throws a TypeError that names the one at fault. */
export function settingsOf(options: WorkerOptions): WorkerSettings {
  const types = new Map(Object.entries(options.types ?? {}))
  if (types.size === 0 || types.size > TYPES_MAX)
    throw new TypeError(`types must name 1 to ${TYPES_MAX} task types, each with its handler`)
  for (const [type, handler] of types) {
    if (!TYPE_PATTERN.test(type))
      throw new TypeError(
        `types: ${JSON.stringify(type)} is no task type; it must match [a-z0-9][a-z0-9._-]{0,63}`,
      )
    if (typeof handler !== 'function')
      throw new TypeError(`types: the handler of ${type} must be a function, not ${typeof handler}`)
  }
  const worker = options.worker ?? defaultName()
  if (!WORKER_PATTERN.test(worker)) throw new TypeError('worker must be 1 to 128 printable characters')
  const { onError = () => {} } = options
  const kafka = options.kafka === undefined ? null : kafkaSettingsOf(options.kafka)
  if (options.url === undefined && kafka?.confirm !== 'none')
    throw new TypeError("url must say where the service answers; only kafka.confirm 'none' does without")
  return {
    kafka,
    types,
    worker,
    concurrency: wholeNumber('concurrency', options.concurrency ?? 4, 1, CONCURRENCY_MAX),
    drainMs: wholeNumber('drainMs', options.drainMs ?? 10_000, 0, 24 * 60 * 60 * 1_000),
    waitMs: wholeNumber('waitMs', options.waitMs ?? 20_000, 0, WAIT_MAX_MS),
    logger: safeLogger(options.logger ?? stderrLogger()),
    onError: error => {
      try {
        onError(error)
      } catch {
        // A hook that fails must not take the worker along.
      }
    },
  }
}

/** The random part tells two workers of one process apart, and a restarted one from the one before. */
function defaultName(): string {
  const host =
    hostname()
      .replace(/[^A-Za-z0-9._-]/g, '-')
      .slice(0, 80) || 'host'
  return `${host}:${process.pid}:${randomBytes(3).toString('hex')}`
}
