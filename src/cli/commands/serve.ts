import type { Command } from 'commander'
import { terminalOf } from '../connection.ts'
import { assertMigrated } from '../database.ts'
import { EXIT } from '../failures.ts'
import { listenError } from '../port.ts'
import { type StopSignals, stopSignals } from '../stop-signals.ts'
import { outliveReader, type Terminal } from '../terminal.ts'
import { collect, parsePort, wholeNumber } from '../values.ts'

interface ServeOptions {
  roles?: string[]
  databaseUrl?: string
  log?: string
  port?: number
  host?: string
  kafkaBrokers?: string[]
  config?: string
  logLevel?: string
  requireKeys?: boolean
  withoutKeys?: boolean
  rateLimit?: number
}

/** Work under way gets this long when the service is asked to stop. */
const STOP_MS = 4_500

export function addServe(program: Command): void {
  program
    .command('serve')
    .description('run roles of the service on a database of yours, migrated before by rollcall migrate')
    .option(
      '--roles <roles>',
      'which, separated by commas (default: ROLLCALL_ROLES or api,projector,timers, with Kafka dispatcher,ingest,publisher too)',
      collect,
    )
    .option(
      '--kafka-brokers <addresses>',
      'host:port of Kafka, separated by commas (default: ROLLCALL_KAFKA_BROKERS or none)',
      collect,
    )
    .option('--database-url <address>', 'the database, postgres://… (default: ROLLCALL_DATABASE_URL)')
    .option(
      '--log <log>',
      'where the event log is: postgres, or esdb://… (default: ROLLCALL_LOG or postgres)',
    )
    .option(
      '--port <port>',
      'where to listen (default: 8080; without the role api nothing, or health and metrics at this port)',
      parsePort,
    )
    .option('--host <host>', 'the address to listen on (default: 127.0.0.1)')
    .option('--config <file>', 'configuration file (types, lifecycles)')
    .option('--log-level <level>', 'what goes to stderr as JSON lines (default: info)')
    .option('--require-keys', 'ask for an access key on this machine too')
    .option('--without-keys', 'ask for none beyond it either: whoever reaches the address may do everything')
    .option(
      '--rate-limit <n>',
      'requests of each key, or address, in a second (default: none on this machine, 2000 beyond it)',
      wholeNumber(0, 1_000_000),
    )
    .action(async (options: ServeOptions, command: Command) => {
      outliveReader()
      await runService(options, terminalOf(command), stopSignals())
    })
}

async function runService(options: ServeOptions, terminal: Terminal, signals: StopSignals): Promise<void> {
  void signals.askedAgain.then(() => process.exit(EXIT.no))
  const [{ readConfigFile, readEnvironment, serviceConfig }, { createLogger }, { startService }, { askLog }] =
    await Promise.all([
      import('../../runtime/config.ts'),
      import('../../runtime/logging.ts'),
      import('../../runtime/service.ts'),
      import('../log-reached.ts'),
    ])
  const environment = readEnvironment()
  const config = serviceConfig(options, environment)
  const file = readConfigFile(options.config ?? environment.config)
  await assertMigrated(config.databaseUrl)
  const logger = createLogger(config.logLevel)
  const service = await startService({ ...config, file, logger }).catch(error => {
    throw listenError(error, config.host, config.port)
  })
  const { roles } = config
  const reached = await askLog(service.log, config.log, terminal)
  if (!signals.stopping)
    terminal.result({ ready: true, url: service.url, pid: process.pid, roles, ...reached }, () =>
      service.url === null
        ? `rollcall is ready (${roles.join(', ')})`
        : `rollcall is ready at ${terminal.colors.cyan(service.url)} (${roles.join(', ')})`,
    )
  await signals.asked
  // Whatever does not end in time is cut by the end of the process; the log and the leases bear that.
  setTimeout(() => process.exit(EXIT.ok), STOP_MS).unref()
  await service.stop()
  process.exit(EXIT.ok)
}
