import type { Command } from 'commander'
import { terminalOf } from '../connection.ts'
import { EXIT, SELF } from '../failures.ts'
import type { Instance } from '../instance.ts'
import type { LogReached } from '../log-reached.ts'
import { type StopSignals, stopSignals } from '../stop-signals.ts'
import { outliveReader, type Terminal } from '../terminal.ts'
import { parsePort } from '../values.ts'

interface DevOptions {
  port?: number
  host?: string
  dataDir?: string
  log?: string
  config?: string
  logLevel?: string
  withoutKeys?: boolean
}

const DEFAULT_DATA_DIR = '.rollcall'

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
    .option('--config <file>', 'configuration file (types, lifecycles)')
    .option('--log-level <level>', 'what goes to rollcall.log in the data folder (default: info)')
    .option('--without-keys', 'serve an address beyond this machine although there are no access keys')
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
    // While there is nothing yet to stop, the process just ends; a guard of its own ends the database.
    return started ? started.stopNow() : process.exit()
  })
  terminal.hint('starting…')
  const { instance, dataDir, log } = await start(options, terminal)
  started = instance
  endLoudlyOnBugs(instance)
  const { askLog } = await import('../log-reached.ts')
  const reached = await askLog(instance.service.log, log, terminal)
  if (!signals.stopping) sayReady(instance, dataDir, reached, terminal)

  const failure = await Promise.race([signals.asked.then(() => null), instance.failed])
  if (failure) process.exitCode = terminal.fail(failure, instance.url)
  else terminal.hint('stopping…')
  await instance.stop()
  process.exit()
}

async function start(
  options: DevOptions,
  terminal: Terminal,
): Promise<{ instance: Instance; dataDir: string; log: string }> {
  const [{ readConfigFile, readEnvironment, serviceConfig }, { startInstance }, { attentionOnStderr }] =
    await Promise.all([import('../../runtime/config.ts'), import('../instance.ts'), import('../log-file.ts')])
  const { roles: _roles, databaseUrl: _url, ...environment } = readEnvironment()
  const { databaseUrl: _own, ...config } = serviceConfig(options, environment, {
    databaseUrl: 'postgres://embedded',
  })
  const dataDir = options.dataDir ?? environment.dataDir ?? DEFAULT_DATA_DIR
  const { yellow, dim } = terminal.errorColors
  const instance = await startInstance({
    ...config,
    dataDir,
    file: readConfigFile(options.config ?? environment.config),
    onAttention: attentionOnStderr({ json: terminal.json || !process.stderr.isTTY, yellow, dim }),
  })
  return { instance, dataDir, log: config.log }
}

function sayReady(
  { url, logPath }: Instance,
  dataDir: string,
  reached: LogReached,
  terminal: Terminal,
): void {
  terminal.result({ ready: true, url, pid: process.pid, dataDir, ...reached }, () => {
    const address = terminal.colors.bold(terminal.colors.cyan(url))
    const elsewhere = reached.log === 'postgres' ? '' : `, event log at ${reached.log}`
    return `rollcall is ready at ${address} (data in ${dataDir}${elsewhere}, stop with Ctrl-C)`
  })
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
