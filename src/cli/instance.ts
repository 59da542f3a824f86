/** A whole Rollcall in this process: embedded Postgres, migrations, all roles. For `dev` and for the demo. */
import { setTimeout as delay } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { FileConfig, ServiceConfig } from '../runtime/config.ts'
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../runtime/embedded-postgres.ts'
import { createLogger } from '../runtime/logging.ts'
import { migrate } from '../runtime/migrate.ts'
import { type Service, startService } from '../runtime/service.ts'
import { CliError, EXIT } from './failures.ts'
import { LogFile } from './log-file.ts'
import { assertPortFree, listenError } from './port.ts'

export interface InstanceOptions extends Omit<ServiceConfig, 'databaseUrl'> {
  dataDir: string
  file: FileConfig
  /** Warnings and errors as JSON lines; everything goes to `rollcall.log` in the data folder. */
  onAttention: (line: string) => void
}

export interface Instance {
  url: string
  databaseUrl: string
  logPath: string
  service: Service
  logger: Logger
  /** Resolves with what went wrong when the database has ended and cannot be brought back. */
  failed: Promise<Error>
  /** Ends everything in order, within 5 s. Safe to call twice. */
  stop(): Promise<void>
  /** Ends everything at once; the next start recovers the database. */
  stopNow(): Promise<void>
}

/** The service gets this long; then its connections are cut by the database's end. */
const SERVICE_STOP_MS = 2_000
/** From the beginning of the stop; then the database is told to end at once. */
const FORCE_MS = 3_800
/** A database that ends again and again has a reason that another start does not mend. */
const RESTARTS = { max: 3, withinMs: 5 * 60 * 1_000 }
const EARLY_LINES_MAX = 1_000

/** Starts it, or leaves nothing running. @throws CliError, ConfigError, EmbeddedPostgresError, … */
export async function startInstance(options: InstanceOptions): Promise<Instance> {
  await assertPortFree(options.host, options.port)
  const early: string[] = []
  let logger: Logger | null = null
  const onLog = (line: string): void => {
    if (logger) logger.info({ part: 'postgres' }, line)
    else if (early.length < EARLY_LINES_MAX) early.push(line)
  }
  const postgres = await startEmbeddedPostgres({ dataDir: options.dataDir, onLog })
  // Opened once the folder is ours: another Rollcall's log must not be turned over.
  let file: LogFile | null = null
  try {
    file = new LogFile(options.dataDir, { onAttention: options.onAttention })
    logger = createLogger(options.logLevel, file)
    for (const line of early) onLog(line)
    await migrate(postgres.url, logger)
    const service = await startService({ ...options, databaseUrl: postgres.url, logger }).catch(cause => {
      throw listenError(cause, options.host, options.port)
    })
    return new RunningInstance(options, postgres, service, logger, file, onLog)
  } catch (error) {
    // The caller tells it; the log keeps it.
    file?.hush()
    logger?.fatal({ err: error }, 'the start failed')
    await postgres.stop()
    file?.close()
    throw error
  }
}

class RunningInstance implements Instance {
  readonly url: string
  readonly databaseUrl: string
  readonly logPath: string
  readonly service: Service
  readonly logger: Logger
  readonly failed: Promise<Error>
  readonly #options: InstanceOptions
  readonly #file: LogFile
  readonly #onLog: (line: string) => void
  #postgres: EmbeddedPostgres
  /** A restart under way, so that a stop does not overtake it. */
  #restarting: Promise<unknown> = Promise.resolve()
  #stopped: Promise<void> | null = null
  #fail: (error: Error) => void = () => {}

  constructor(
    options: InstanceOptions,
    postgres: EmbeddedPostgres,
    service: Service,
    logger: Logger,
    file: LogFile,
    onLog: (line: string) => void,
  ) {
    if (service.url === null) throw new Error('bug: an instance has every role')
    this.url = service.url
    this.databaseUrl = postgres.url
    this.logPath = file.path
    this.service = service
    this.logger = logger
    this.#options = options
    this.#postgres = postgres
    this.#file = file
    this.#onLog = onLog
    this.failed = new Promise(resolve => {
      this.#fail = resolve
    })
    void this.#watch()
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stop()
    return this.#stopped
  }

  async stopNow(): Promise<void> {
    const stopped = this.stop()
    this.#endPostgresAtOnce()
    await stopped
  }

  async #stop(): Promise<void> {
    const forced = setTimeout(() => this.#endPostgresAtOnce(), FORCE_MS)
    await within(SERVICE_STOP_MS, this.service.stop())
    // Connections that the database ends first are no news any more.
    this.#file.hush()
    await this.#restarting
    await this.#postgres.stop()
    clearTimeout(forced)
    this.#file.close()
  }

  /** An immediate shutdown: what was committed is on disk, and the next start recovers it. */
  #endPostgresAtOnce(): void {
    try {
      process.kill(this.#postgres.pid, 'SIGQUIT')
    } catch {
      // It has ended already.
    }
  }

  /** Brings the database back when it ends by itself (killed, out of memory); the service reconnects. */
  async #watch(): Promise<void> {
    const restarts: number[] = []
    for (;;) {
      const exit = await this.#postgres.exited
      if (this.#stopped) return
      const how = exit.signal ?? `exit code ${exit.code}`
      const now = performance.now()
      restarts.push(now)
      const recent = restarts.filter(at => now - at < RESTARTS.withinMs).length
      if (recent > RESTARTS.max)
        return this.#fail(
          databaseError(`it ended ${recent} times in ${RESTARTS.withinMs / 60_000} minutes, last by ${how}`),
        )
      this.logger.error({ how, restart: recent }, 'the database ended by itself and is started again')
      try {
        await this.#restart()
      } catch (error) {
        return this.#fail(
          databaseError(`it ended by ${how} and does not start again: ${(error as Error).message}`),
        )
      }
    }
  }

  async #restart(): Promise<void> {
    const { dataDir } = this.#options
    const { port } = this.#postgres
    const started = startEmbeddedPostgres({ dataDir, port, onLog: this.#onLog })
    this.#restarting = started.catch(() => {})
    this.#postgres = await started
  }
}

const databaseError = (why: string): CliError =>
  new CliError('database_ended', `The database cannot be kept running: ${why}. The log says more.`, EXIT.no)

/** Waits for a promise, but not longer; a failure is its own to report. */
async function within(ms: number, work: Promise<void>): Promise<void> {
  const waited = new AbortController()
  await Promise.race([work.catch(() => {}), delay(ms, undefined, { signal: waited.signal }).catch(() => {})])
  waited.abort()
}
