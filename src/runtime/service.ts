/** Builds the parts that a process's roles need, starts them in order and stops them in the reverse one. */
import pg from 'pg'
import type { Logger } from 'pino'
import { type App, buildApp } from '../api/app.ts'
import { Estimates } from '../api/estimates.ts'
import { KeyRing } from '../api/key-ring.ts'
import type { Keys } from '../api/keys.ts'
import { PostgresKeys } from '../api/postgres/postgres-keys.ts'
import { Submitter } from '../api/submit.ts'
import type { Broker } from '../broker/broker.ts'
import { openKafkaBroker } from '../broker/kafka/kafka-broker.ts'
import { TaskChanges } from '../engine/changes.ts'
import { Engine } from '../engine/engine.ts'
import { Lifecycles } from '../engine/lifecycles.ts'
import { TaskCache } from '../engine/task-cache.ts'
import type { EventLog } from '../eventlog/event-log.ts'
import { PostgresPlaces } from '../projections/postgres/postgres-places.ts'
import { PostgresReadModel } from '../projections/postgres/postgres-read-model.ts'
import { Projector } from '../projections/projector.ts'
import { Refusals } from '../projections/refusals.ts'
import { RollCall, rollCallFigures } from '../projections/roll-call.ts'
import { TypeStatisticsReader } from '../projections/type-statistics.ts'
import { Verifier } from '../projections/verifier.ts'
import { offerable } from '../projections/work-state.ts'
import { Claims } from '../workers/claims.ts'
import { Dispatcher } from '../workers/dispatcher.ts'
import { EventHandling } from '../workers/event-handling.ts'
import { Ingest } from '../workers/ingest.ts'
import { Leases } from '../workers/leases.ts'
import { PostgresDeadLetters } from '../workers/postgres/dead-letters.ts'
import { PostgresWorkState } from '../workers/postgres/postgres-work-state.ts'
import { PostgresStatusDoubts } from '../workers/postgres/status-doubts.ts'
import { Redrives } from '../workers/redrives.ts'
import { StatusPublisher } from '../workers/status-publisher.ts'
import { Timers } from '../workers/timers.ts'
import { WorkSignal } from '../workers/work-signal.ts'
import { type FileConfig, kafkaTypes, keysRequired, rateLimitOf, type ServiceConfig } from './config.ts'
import { DatabaseClock } from './database-clock.ts'
import { Metrics } from './metrics.ts'
import { describeLog, openLog } from './open-log.ts'
import { assertDurable } from './postgres-settings.ts'

export interface ServiceOptions extends ServiceConfig {
  file: FileConfig
  logger: Logger
  /** Tests alone run on a database that may forget. */
  requireDurable?: boolean
}

export interface Service {
  /** Where the API listens, or health and metrics alone without the role `api`; null where nothing does. */
  url: string | null
  log: EventLog
  changes: TaskChanges
  engine: Engine
  pool: pg.Pool
  projector: Projector | null
  timers: Timers | null
  dispatcher: Dispatcher | null
  ingest: Ingest | null
  publisher: StatusPublisher | null
  /** Stops taking work, finishes what is under way, closes; safe to call twice. */
  stop(): Promise<void>
}

const POOL_CONNECTIONS = 12
/** An append is given up after this, and begun again for as long: callers have their answer before their patience ends. */
const APPEND_MS = 3_000
const STATEMENT_TIMEOUT_MS = 30_000
/** Answers under way get this long at shutdown; then their connections are closed. */
const CLOSE_MS = 3_000

/**
 * Starts a service on a migrated database. A log in EventStoreDB need not be there yet: until it is, the process is alive
 * and not ready.
 *
 * @throws DurabilityError where the database may forget
 */
export async function startService(options: ServiceOptions): Promise<Service> {
  const { logger, databaseUrl } = options
  const stops: (() => Promise<void> | void)[] = []
  const stopAll = async (): Promise<void> => {
    for (const stop of stops.splice(0).reverse()) {
      try {
        await stop()
      } catch (error) {
        logger.error({ err: error }, 'a part did not stop cleanly')
      }
    }
  }
  try {
    const pool = openPool(databaseUrl, logger)
    stops.push(() => pool.end())
    if (options.requireDurable !== false) logger.info(await assertDurable(pool), 'the database is durable')
    logger.info({ log: describeLog(options.log) }, 'opening the log')
    const log = await openLog(options.log, {
      databaseUrl,
      appendTimeoutMs: APPEND_MS,
      logger: logger.child({ part: 'log' }),
    })
    stops.push(() => log.close())
    const clock = await DatabaseClock.start(pool, logger)
    stops.push(() => clock.stop())
    const lifecycles = new Lifecycles(log, options.file.lifecycles)
    lifecycles.start(logger.child({ part: 'lifecycles' }))
    stops.push(() => lifecycles.stop())
    const cache = new TaskCache()
    const rollCall = new RollCall(pool, log, options.file.rollCall)
    const deadLetters = new PostgresDeadLetters(pool)
    const metrics = new Metrics({
      types: Object.keys(options.file.types),
      rollCall: async () => rollCallFigures(await rollCall.read()),
    })
    const refusals = new Refusals({
      pool,
      clock,
      onDropped: count => metrics.refusalsDropped(count),
      logger: logger.child({ part: 'refusals' }),
    })
    stops.push(() => refusals.stop())
    const statistics = new TypeStatisticsReader(pool)
    const estimates = new Estimates({
      statistics: type => statistics.of(type),
      onSettled: (quantile, held) => metrics.estimateSettled(quantile, held),
    })
    const engine = new Engine({
      log,
      clock,
      lifecycles,
      cache,
      observer: (envelope, answer, ms) => {
        metrics.answered(envelope, answer, ms)
        refusals.record(envelope, answer)
        if (answer.kind === 'accepted') estimates.ended(answer.task)
      },
      followUp: task => (offerable(task) ? signal.hand(task) : null),
      appendDeadlineMs: APPEND_MS,
      logger: logger.child({ part: 'engine' }),
    })
    stops.push(() => engine.stop())
    const changes = new TaskChanges({
      log,
      definitionOf: task => engine.definitionOf(task),
      logger: logger.child({ part: 'changes' }),
    })
    stops.push(() => changes.stop())
    const workState = new PostgresWorkState(pool)
    const leases = new Leases(workState, engine)
    const signal = new WorkSignal(() => projector?.mode === 'projecting')
    const has = (role: ServiceConfig['roles'][number]): boolean => options.roles.includes(role)

    const projector = has('projector')
      ? new Projector({
          log,
          readModel: new PostgresReadModel(pool),
          cache,
          logger: logger.child({ part: 'projector' }),
          onMoved: tasks => signal.ready(tasks.filter(offerable)),
        })
      : null
    projector?.start()
    if (projector) stops.push(() => projector.stop())
    const verifier =
      projector &&
      new Verifier({
        pool,
        log,
        logger: logger.child({ part: 'verifier' }),
        active: () => projector.mode === 'projecting',
      })
    verifier?.start()
    if (verifier) stops.push(() => verifier.stop())
    const timers = has('timers')
      ? new Timers({ workState, engine, clock, signal, logger: logger.child({ part: 'timers' }) })
      : null
    timers?.start()
    if (timers) stops.push(() => timers.stop())

    const broker: Broker | null =
      has('dispatcher') || has('ingest') || has('publisher')
        ? openKafkaBroker({
            brokers: options.kafkaBrokers,
            ...options.kafkaSecurity,
            clientId: 'rollcall',
            logger: logger.child({ part: 'broker' }),
          })
        : null
    if (broker) stops.push(() => broker.close())
    const dispatcher =
      broker && has('dispatcher')
        ? new Dispatcher({
            broker,
            workState,
            engine,
            signal,
            types: kafkaTypes(options.file),
            observer: metrics.dispatch,
            logger: logger.child({ part: 'dispatcher' }),
          })
        : null
    dispatcher?.start()
    if (dispatcher) stops.push(() => dispatcher.stop())
    const ingest =
      broker && has('ingest')
        ? new Ingest({ broker, engine, leases, deadLetters, logger: logger.child({ part: 'ingest' }) })
        : null
    ingest?.start()
    if (ingest) stops.push(() => ingest.stop())
    const publisher =
      broker && has('publisher')
        ? new StatusPublisher({
            log,
            places: new PostgresPlaces(pool),
            doubts: new PostgresStatusDoubts(pool),
            broker,
            clock,
            observer: metrics.status,
            logger: logger.child({ part: 'publisher' }),
          })
        : null
    metrics.status.lagSeconds = () => publisher?.lagSeconds() ?? null
    publisher?.start()
    if (publisher) stops.push(() => publisher.stop())

    let url: string | null = null
    if (options.port !== null) {
      const keys = new PostgresKeys(pool)
      const app = buildApp(has('api') ? 'api' : 'health', {
        keys,
        ring: new KeyRing(keys),
        keysRequired: keysRequired(options),
        rateLimit: rateLimitOf(options),
        engine,
        log,
        changes,
        pool,
        clock,
        submitter: new Submitter(options.file, lifecycles),
        claims: new Claims(workState, engine, signal),
        leases,
        deadLetters,
        redrives: new Redrives({
          deadLetters,
          handling: new EventHandling(engine, leases),
          logger: logger.child({ part: 'dead letters' }),
        }),
        workState,
        estimates,
        refusals,
        metrics,
        rollCall,
        logger,
        health: () => [
          {
            name: 'projector',
            ok: projector?.mode !== 'halted',
            reason: projector?.mode === 'halted' ? projector.haltedBecause : null,
          },
          // An API takes and answers all it is asked while the broker is away.
          ...Object.entries({ dispatcher, ingest, publisher }).flatMap(([name, part]) =>
            part ? [{ name, ...part.health(), needed: !has('api') }] : [],
          ),
        ],
      })
      stops.push(() => closeWithin(app, CLOSE_MS))
      await sayWhoMayCome(options, keys)
      url = await app.listen({ host: options.host, port: options.port })
    }
    let stopping: Promise<void> | null = null
    return {
      url,
      log,
      changes,
      engine,
      pool,
      projector,
      timers,
      dispatcher,
      ingest,
      publisher,
      stop: () => {
        stopping ??= stopAll()
        return stopping
      },
    }
  } catch (error) {
    await stopAll()
    throw error
  }
}

/** A service that nobody can use, and one that everybody can, say so. */
async function sayWhoMayCome({ logger, ...options }: ServiceOptions, keys: Keys): Promise<void> {
  if (options.withoutKeys)
    logger.warn({ host: options.host }, 'the API is open: whoever reaches it may do everything')
  if (keysRequired(options) && !(await keys.any()))
    logger.warn('there is no access key yet: rollcall keys create --name … --scopes … --database-url …')
}

function openPool(databaseUrl: string, logger: Logger): pg.Pool {
  const pool = new pg.Pool({
    connectionString: databaseUrl,
    max: POOL_CONNECTIONS,
    application_name: 'rollcall',
    connectionTimeoutMillis: 5_000,
    statement_timeout: STATEMENT_TIMEOUT_MS,
    query_timeout: STATEMENT_TIMEOUT_MS + 5_000,
    idle_in_transaction_session_timeout: STATEMENT_TIMEOUT_MS,
    options: '-c timezone=UTC -c datestyle=ISO',
  })
  // An idle connection that breaks is no reason to end the process (PITFALLS P11).
  // Its error carries the whole connection along, which nobody wants to read in a log.
  pool.on('error', (error: Error & { code?: string }) =>
    logger.warn({ code: error.code, reason: error.message }, 'an idle database connection broke'),
  )
  return pool
}

/** Closes the application; what still holds it open after a while is cut. */
async function closeWithin(app: App, ms: number): Promise<void> {
  const timer = setTimeout(() => app.server.closeAllConnections(), ms)
  try {
    await app.close()
  } finally {
    clearTimeout(timer)
  }
}
