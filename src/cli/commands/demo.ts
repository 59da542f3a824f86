import { createHash } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { Command } from 'commander'
import { within } from '../../eventlog/within.ts'
import { terminalOf } from '../connection.ts'
import type { DemoReport } from '../demo/report.ts'
import { CliError, EXIT, usageError } from '../failures.ts'
import { type StopSignals, stopSignals } from '../stop-signals.ts'
import { outliveReader, type Terminal } from '../terminal.ts'
import { wholeNumber } from '../values.ts'

interface DemoOptions {
  tasks: number
  workers: number
  keep?: boolean
  dataDir?: string
  log?: string
  kafka?: boolean
  pictures: string
}

/** Tasks at once in one worker: two keep a core busy while one of them waits for the service. */
const CONCURRENCY = 2
/** A log that does not answer by then is not there. */
const LOG_MS = 10_000

export function addDemo(program: Command): void {
  program
    .command('demo')
    .description('see it at work: real pictures, failing, hanging and killed workers, and a count at the end')
    .option('--tasks <n>', 'how many', wholeNumber(10, 5_000), 200)
    .option('--workers <n>', 'worker processes', wholeNumber(1, 16), 3)
    .option('--keep', 'keep the database afterwards, for a look with rollcall dev')
    .option('--data-dir <folder>', 'use and keep this data folder instead of a temporary one')
    .option(
      '--log <log>',
      'where the event log is: postgres, or esdb://… (default: ROLLCALL_LOG or postgres)',
    )
    .option('--kafka', 'hand the tasks out through a Kafka broker of its own; needs Java, and Maven once')
    .option('--pictures <folder>', 'where the pictures go', join('.rollcall', 'demo'))
    .action(async (options: DemoOptions, command: Command) => {
      outliveReader()
      await runDemo(options, terminalOf(command), stopSignals())
    })
}

async function runDemo(options: DemoOptions, terminal: Terminal, signals: StopSignals): Promise<void> {
  // The workers end with this process, and the database has a guard.
  void signals.askedAgain.then(() => process.exit(EXIT.interrupted))
  const { makePicturesFolder } = await import('../demo/pictures.ts')
  const folder = await makePicturesFolder(options.pictures).catch(cause => {
    const why = `The pictures cannot be written to ${options.pictures}: ${cause.message}.`
    throw usageError(`${why} Choose another folder with --pictures.`, 'usage', { cause })
  })
  const dataDir = options.dataDir ?? (await mkdtemp(join(tmpdir(), 'rollcall-demo-')))
  const cleanUp: (() => Promise<void> | void)[] = []
  let kept = options.dataDir !== undefined || options.keep === true
  try {
    const report = await watchDemo({ options, terminal, signals, dataDir, folder, cleanUp })
    // What went wrong can be looked into.
    kept ||= !report.ok
    await undo(cleanUp)
    const told: DemoReport = { ...report, dataDir: kept ? dataDir : null }
    const { reportText } = await import('../demo/report.ts')
    terminal.result(told, () => reportText(told, terminal.colors))
    process.exitCode = report.ok ? EXIT.ok : EXIT.no
  } catch (error) {
    if (!signals.stopping) throw error
    process.exitCode = EXIT.interrupted
  } finally {
    await undo(cleanUp)
    if (!kept) await rm(dataDir, { recursive: true, force: true, maxRetries: 3 })
  }
  process.exit()
}

/** In reverse order; each is tried, whatever becomes of the others. */
async function undo(cleanUp: (() => Promise<void> | void)[]): Promise<void> {
  for (const one of cleanUp.splice(0).reverse()) await Promise.resolve(one()).catch(() => {})
}

interface Watch {
  options: DemoOptions
  terminal: Terminal
  signals: StopSignals
  dataDir: string
  /** For the pictures. */
  folder: string
  cleanUp: (() => Promise<void> | void)[]
}

async function watchDemo(watch: Watch): Promise<DemoReport> {
  const { options, terminal, signals, dataDir, folder, cleanUp } = watch
  const since = performance.now()
  const [display, fleets, instances, pictures, plans, rollCalls, runs, logs, config] = await Promise.all([
    import('../demo/display.ts'),
    import('../demo/fleet.ts'),
    import('../instance.ts'),
    import('../demo/pictures.ts'),
    import('../demo/plan.ts'),
    import('../demo/roll-call.ts'),
    import('../demo/run.ts'),
    import('../../runtime/open-log.ts'),
    import('../../runtime/config.ts'),
  ])
  const { databaseUrl: _own, ...settings } = config.serviceConfig(
    { log: options.log },
    { log: config.readEnvironment().log },
    { databaseUrl: 'postgres://embedded', port: 0, ...(options.kafka && { kafkaBrokers: ['127.0.0.1:0'] }) },
  )
  const address = demoLog(settings.log, dataDir)
  const shown = terminal.json
    ? display.silentDisplay
    : display.createDisplay(process.stdout, terminal.colors, options.tasks)
  cleanUp.push(() => shown.end())
  const servers = options.kafka ? 'a database, a Kafka broker' : 'a database'
  shown.event(`${servers} and the service start in an empty folder`)
  const instance = await instances.startInstance({
    ...settings,
    log: address,
    dataDir,
    file: config.fileConfigSchema.parse(options.kafka ? { types: plans.kafkaTypes(options.workers) } : {}),
    kafka: options.kafka ? { port: 0 } : null,
    // Mishaps are what the demo is made of; the log has them.
    onAttention: () => {},
  })
  cleanUp.push(() => instance.stop())
  signals.signal.throwIfAborted()
  await within(LOG_MS, instance.service.log.head(), 'at the start').catch(cause => {
    const where = logs.describeLog(address)
    throw new CliError(
      cause.code ?? 'log_unavailable',
      `The event log ${where}: ${cause.message}`,
      EXIT.unreachable,
    )
  })
  const served = await pictures.servePictures(folder)
  cleanUp.push(() => served.close())
  const fleet = new fleets.Fleet({
    url: instance.url,
    kafkaBrokers: instance.kafkaBrokers,
    folder,
    picturesUrl: served.url,
    concurrency: CONCURRENCY,
    logPath: join(dataDir, 'workers.log'),
  })
  cleanUp.push(() => (signals.stopping ? fleet.killAll() : fleet.stop()))

  const plan = plans.planTasks(options.tasks)
  const parts = { instance, fleet, workers: options.workers, plan, display: shown, signal: signals.signal }
  const ids = await Promise.race([runs.runPlan(parts), instance.failed.then(error => Promise.reject(error))])
  await fleet.stop()

  const log = await logs.openLog(address, { databaseUrl: instance.databaseUrl })
  cleanUp.push(() => log.close())
  const { rollCall, tasks } = await rollCalls.callTheRoll(log, ids)
  const checked = await pictures.checkPictures(tasks.values())
  const surprises = runs.surprises(plan, ids, tasks)
  const gallery = await pictures.writeGallery(folder, tasks.values())
  const ok = rollCalls.isComplete(rollCall) && surprises.length === 0 && checked.faults.length === 0
  const seconds = Math.round((performance.now() - since) / 100) / 10
  const told = { log: logs.describeLog(address), dataDir, seconds }
  return { ok, rollCall, surprises, pictures: { ...checked, folder, gallery }, ...told }
}

/**
 * A server of EventStoreDB may be shared, and what the demo submits stays there: it gets a namespace of its own, the same
 * for the same data folder, unless one is given.
 */
function demoLog(address: string, dataDir: string): string {
  if (address === 'postgres' || /[?&]namespace=/i.test(address)) return address
  const folder = createHash('sha256').update(resolve(dataDir)).digest('hex')
  return `${address}${address.includes('?') ? '&' : '?'}namespace=demo_${folder.slice(0, 12)}`
}
