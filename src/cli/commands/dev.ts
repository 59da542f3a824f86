import type { Command } from 'commander'
import { terminalOf } from '../connection.ts'
import { EXIT, SELF, usageError } from '../failures.ts'
import type { Instance } from '../instance.ts'
import type { KafkaOptions } from '../kafka-choice.ts'
import type { LogReached } from '../log-reached.ts'
import { type StopSignals, stopSignals } from '../stop-signals.ts'
import { outliveReader, type Terminal } from '../terminal.ts'
import { collect, parsePort, wholeNumber } from '../values.ts'

interface DevOptions extends KafkaOptions {
  port?: number
  host?: string
  dataDir?: string
  log?: string
  config?: string
  logLevel?: string
  requireKeys?: boolean
  withoutKeys?: boolean
  rateLimit?: number
}

interface Begun {
  instance: Instance
  dataDir: string
  log: string
  kafkaTypes: string[]
}

const DEFAULT_DATA_DIR = '.rollcall'
/**
 * Asked to stop in the middle of a start, it stops in order when that is done; that of a broker may take minutes, so then
 * it waits only so long, and guards end what has begun.
 */
const START_PATIENCE_MS = 3_000

export function addDev(program: Command): void {
  program
    .command('dev')
    .description('run everything on this machine: a database in a data folder, the service, its timers')
    .option('--port <port>', 'where to listen (default: 8080)', parsePort)
    .option('--host <host>', 'the address to listen on (default: 127.0.0.1)')
    .option('--data-dir <folder>', `where data is kept (default: ${DEFAULT_DATA_DIR})`)
    .option(
      '--log <log>',
      'where the event log is: postgres, or esdb://… (default: ROLLCALL_LOG or postgres)',
    )
    .option('--kafka', 'run a Kafka broker too, its data in the data folder; needs Java, and Maven once')
    .option('--kafka-port <port>', "that broker's port, 0 for a free one (default: 9092)", parsePort)
    .option(
      '--kafka-brokers <addresses>',
      'use a Kafka that runs already, host:port (default: ROLLCALL_KAFKA_BROKERS or none)',
      collect,
    )
    .option('--kafka-types <types>', 'types of task that go to workers through Kafka', collect)
    .option('--config <file>', 'configuration file (types, lifecycles)')
    .option('--log-level <level>', 'what goes to rollcall.log in the data folder (default: info)')
    .option('--require-keys', 'ask for an access key on this machine too')
    .option('--without-keys', 'ask for none beyond it either: whoever reaches the address may do everything')
    .option(
      '--rate-limit <n>',
      'requests of each key, or address, in a second (default: none on this machine, 2000 beyond it)',
      wholeNumber(0, 1_000_000),
    )
    .action(async (options: DevOptions, command: Command) => {
      const terminal = terminalOf(command)
      outliveReader()
      await runDev(options, terminal, stopSignals())
    })
}

async function runDev(options: DevOptions, terminal: Terminal, signals: StopSignals): Promise<void> {
  let started: Instance | null = null
  void signals.askedAgain.then(() => {
    process.exitCode = EXIT.no
    // While there is nothing yet to stop, the process just ends; guards of their own end the database and the broker.
    return started ? started.stopNow() : process.exit()
  })
  if (options.kafka)
    void signals.asked.then(() => setTimeout(() => started || process.exit(), START_PATIENCE_MS).unref())
  terminal.hint(
    options.kafka ? "starting… (the first time Kafka's jars are collected, a minute or so)" : 'starting…',
  )
  const begun = await start(options, terminal)
  const { instance, log } = begun
  started = instance
  endLoudlyOnBugs(instance)
  const { askLog } = await import('../log-reached.ts')
  const reached = await askLog(instance.service.log, log, terminal)
  if (!signals.stopping) await sayReady(begun, reached, terminal)

  const failure = await Promise.race([signals.asked.then(() => null), instance.failed])
  if (failure) process.exitCode = terminal.fail(failure, instance.url)
  else terminal.hint('stopping…')
  await instance.stop()
  process.exit()
}

async function start(options: DevOptions, terminal: Terminal): Promise<Begun> {
  const [config, { startInstance }, { attentionOnStderr }, choice] = await Promise.all([
    import('../../runtime/config.ts'),
    import('../instance.ts'),
    import('../log-file.ts'),
    import('../kafka-choice.ts'),
  ])
  const kafka = choice.ownKafka(options)
  const { roles: _roles, databaseUrl: _url, ...read } = config.readEnvironment()
  const environment = kafka ? choice.withoutKafka(read) : read
  const { databaseUrl: _own, ...settings } = config.serviceConfig(
    options,
    // Its address is known when it runs; until then this stands for it.
    kafka ? { kafkaBrokers: [`127.0.0.1:${kafka.port}`] } : {},
    environment,
    { databaseUrl: 'postgres://embedded' },
  )
  if (options.kafkaTypes && settings.kafkaBrokers.length === 0)
    throw usageError('--kafka-types needs a Kafka: add --kafka, or --kafka-brokers host:port.')
  const file = choice.withKafkaTypes(
    config.readConfigFile(options.config ?? environment.config),
    options.kafkaTypes,
  )
  const dataDir = options.dataDir ?? environment.dataDir ?? DEFAULT_DATA_DIR
  const { yellow, dim } = terminal.errorColors
  const instance = await startInstance({
    ...settings,
    dataDir,
    file,
    kafka,
    onAttention: attentionOnStderr({ json: terminal.json || !process.stderr.isTTY, yellow, dim }),
  })
  return { instance, dataDir, log: settings.log, kafkaTypes: Object.keys(config.kafkaTypes(file)) }
}

async function sayReady(
  { instance, dataDir, kafkaTypes }: Begun,
  reached: LogReached,
  terminal: Terminal,
): Promise<void> {
  const { url, logPath, kafkaBrokers } = instance
  const told = { ready: true, url, pid: process.pid, dataDir, ...reached, kafkaBrokers, kafkaTypes }
  terminal.result(told, () => {
    const address = terminal.colors.bold(terminal.colors.cyan(url))
    const parts = [
      `data in ${dataDir}`,
      ...(reached.log === 'postgres' ? [] : [`event log at ${reached.log}`]),
      ...(kafkaBrokers.length === 0 ? [] : [`Kafka at ${kafkaBrokers.join(',')}`]),
      'stop with Ctrl-C',
    ]
    return `rollcall is ready at ${address} (${parts.join(', ')})`
  })
  const { sayHowToUse } = await import('../kafka-choice.ts')
  sayHowToUse(kafkaBrokers, kafkaTypes, terminal)
  terminal.hint(`its log is ${logPath}; in another terminal try: ${SELF} submit echo '"hello"'`)
}

/** A bug ends the process, as it should; the log says why, and the database is ended by its guard. */
function endLoudlyOnBugs({ logger }: Instance): void {
  process.on('uncaughtException', error => {
    logger.fatal({ err: error }, 'the process ends by an error nobody caught')
    process.stderr.write(`${error.stack ?? error}\n`)
    process.exit(EXIT.no)
  })
}
