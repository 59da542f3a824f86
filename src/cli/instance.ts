/**
 * A whole Rollcall in this process: embedded Postgres, where it is wanted a Kafka broker, migrations, all roles. For
 * `dev` and for the demo.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { FileConfig, ServiceConfig } from '../runtime/config.ts'
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../runtime/embedded-postgres.ts'
import type { KafkaBroker } from '../runtime/kafka-broker/kafka-broker.ts'
import { createLogger } from '../runtime/logging.ts'
import { migrate } from '../runtime/migrate.ts'
import { type Service, startService } from '../runtime/service.ts'
import { keepRunning } from './keep-running.ts'
import { LogFile } from './log-file.ts'
import { prepareKafka } from './own-kafka.ts'
import { assertPortFree, listenError } from './port.ts'

export interface InstanceOptions extends Omit<ServiceConfig, 'databaseUrl'> {
  dataDir: string
  file: FileConfig
  /** A broker of its own, which takes the place of `kafkaBrokers`; port 0 is a free one. */
  kafka?: { port: number } | null
  /** Warnings and errors as JSON lines; everything goes to `rollcall.log` in the data folder. */
  onAttention: (line: string) => void
}

export interface Instance {
  url: string
  databaseUrl: string
  /** Where Kafka is, its own or another; none where workers use HTTP alone. */
  kafkaBrokers: readonly string[]
  logPath: string
  service: Service
  logger: Logger
  /** Resolves with what went wrong when the database or the broker has ended and cannot be brought back. */
  failed: Promise<Error>
  /** Ends everything in order, within 5 s. Safe to call twice. */
  stop(): Promise<void>
  /** Ends everything at once; the next start recovers the database. */
  stopNow(): Promise<void>
}

/** The service gets this long; then its connections are cut by the database's end. */
const SERVICE_STOP_MS = 2_000
/** From the beginning of the stop; then database and broker are told to end at once. */
const FORCE_MS = 3_800
/** From the beginning of the stop; what is in the middle of a start then is ended by its guard, after this process. */
const GIVE_UP_MS = 4_600
const EARLY_LINES_MAX = 1_000

/** What runs beside the service, and has to end with it. */
interface Servers {
  postgres: EmbeddedPostgres
  kafka: KafkaBroker | null
}

/** Starts it, or leaves nothing running. @throws CliError, ConfigError, EmbeddedPostgresError, … */
export async function startInstance(options: InstanceOptions): Promise<Instance> {
  await assertPortFree(options.host, options.port)
  const startKafka = options.kafka ? await prepareKafka(options.kafka, options.dataDir) : null
  const early: string[] = []
  let logger: Logger | null = null
  const onLog = (line: string): void => {
    if (logger) logger.info({ part: 'postgres' }, line)
    else if (early.length < EARLY_LINES_MAX) early.push(line)
  }
  const servers: Servers = {
    postgres: await startEmbeddedPostgres({ dataDir: options.dataDir, onLog }),
    kafka: null,
  }
  // Opened once the folder is ours: another Rollcall's log must not be turned over.
  let file: LogFile | null = null
  try {
    file = new LogFile(options.dataDir, { onAttention: options.onAttention })
    logger = createLogger(options.logLevel, file)
    for (const line of early) onLog(line)
    await migrate(servers.postgres.url, logger)
    servers.kafka = startKafka && (await startKafka(logger.child({ part: 'kafka' })))
    const kafkaBrokers = [...(servers.kafka?.brokers ?? options.kafkaBrokers)]
    const databaseUrl = servers.postgres.url
    const service = await startService({ ...options, databaseUrl, kafkaBrokers, logger }).catch(cause => {
      throw listenError(cause, options.host, options.port)
    })
    return new RunningInstance({ ...options, kafkaBrokers }, servers, service, logger, file, onLog)
  } catch (error) {
    // The caller tells it; the log keeps it.
    file?.hush()
    logger?.fatal({ err: error }, 'the start failed')
    await Promise.all([servers.kafka?.stop(), servers.postgres.stop()])
    file?.close()
    throw error
  }
}

class RunningInstance implements Instance {
  readonly url: string
  readonly databaseUrl: string
  readonly kafkaBrokers: readonly string[]
  readonly logPath: string
  readonly service: Service
  readonly logger: Logger
  readonly failed: Promise<Error>
  readonly #options: InstanceOptions
  readonly #servers: Servers
  readonly #file: LogFile
  readonly #onLog: (line: string) => void
  /** A restart of the database under way, so that a stop does not overtake it; the broker sees to that itself. */
  #restarting: Promise<unknown> = Promise.resolve()
  #stopped: Promise<void> | null = null

  constructor(
    options: InstanceOptions,
    servers: Servers,
    service: Service,
    logger: Logger,
    file: LogFile,
    onLog: (line: string) => void,
  ) {
    if (service.url === null) throw new Error('bug: an instance has every role')
    this.url = service.url
    this.databaseUrl = servers.postgres.url
    this.kafkaBrokers = options.kafkaBrokers
    this.logPath = file.path
    this.service = service
    this.logger = logger
    this.#options = options
    this.#servers = servers
    this.#file = file
    this.#onLog = onLog
    this.failed = new Promise(resolve => {
      for (const kept of this.#keepRunning()) void kept.then(error => error && resolve(error))
    })
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stop()
    return this.#stopped
  }

  async stopNow(): Promise<void> {
    const stopped = this.stop()
    this.#endServersAtOnce()
    await stopped
  }

  async #stop(): Promise<void> {
    const since = performance.now()
    const forced = setTimeout(() => this.#endServersAtOnce(), FORCE_MS)
    await within(SERVICE_STOP_MS, this.service.stop())
    // Connections that the servers end first are no news any more.
    this.#file.hush()
    const stopPostgres = this.#restarting.then(() => this.#servers.postgres.stop())
    const left = GIVE_UP_MS - (performance.now() - since)
    const stopKafka = within(left, this.#servers.kafka?.stop() ?? Promise.resolve())
    await Promise.all([stopPostgres, stopKafka])
    clearTimeout(forced)
    this.#file.close()
  }

  /** What was committed is on disk, and the next start recovers it. */
  #endServersAtOnce(): void {
    const { postgres, kafka } = this.#servers
    endAtOnce(postgres.pid, 'SIGQUIT')
    if (kafka) endAtOnce(kafka.pid, 'SIGKILL')
  }

  /** The service reconnects by itself to what was brought back. */
  #keepRunning(): Promise<Error | null>[] {
    const { logger } = this
    const servers = this.#servers
    const stopping = () => this.#stopped !== null
    const database = keepRunning({
      name: 'the database',
      code: 'database_ended',
      exited: () => servers.postgres.exited,
      restart: () => this.#restartPostgres(),
      stopping,
      logger,
    })
    const { kafka } = servers
    if (!kafka) return [database]
    const broker = keepRunning({
      name: 'the Kafka broker',
      code: 'kafka_ended',
      exited: () => kafka.exited,
      restart: () => kafka.restart(),
      stopping,
      logger,
    })
    return [database, broker]
  }

  async #restartPostgres(): Promise<void> {
    const { dataDir } = this.#options
    const { port } = this.#servers.postgres
    const started = startEmbeddedPostgres({ dataDir, port, onLog: this.#onLog })
    this.#restarting = started.catch(() => {})
    this.#servers.postgres = await started
  }
}

function endAtOnce(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // It has ended already.
  }
}

/** Waits for a promise, but not longer; a failure is its own to report. */
async function within(ms: number, work: Promise<void>): Promise<void> {
  const waited = new AbortController()
  await Promise.race([work.catch(() => {}), delay(ms, undefined, { signal: waited.signal }).catch(() => {})])
  waited.abort()
}
