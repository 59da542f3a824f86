import { type Command, InvalidArgumentError, Option } from 'commander'
import { keyOf, terminalOf, urlOf } from '../connection.ts'
import { EXIT, usageError } from '../failures.ts'
import { cut, printable, spell } from '../format.ts'
import { stopSignals } from '../stop-signals.ts'
import { outliveReader, type Terminal } from '../terminal.ts'
import { collect, parseDuration, wholeNumber } from '../values.ts'

interface WorkerOptions {
  type: string[]
  exec: string
  concurrency: number
  name?: string
  kafkaBrokers?: string[]
  confirm?: 'api' | 'none'
  drain: number
  grace: number
}

/** Which service, and as whom. */
interface Service {
  url: string
  key: string | undefined
}

/** The grace of programs when a worker is asked to stop a second time. */
const HURRY_MS = 1_000

const HELP = `
The program runs through the shell (sh -c) once for every attempt:
  stdin    the payload, as JSON
  stdout   the result: JSON if it is JSON, otherwise text; 256 KiB at most
  exit     0 succeeded; 100 failed for good; anything else failed, and is tried again while attempts are left.
           The end of stderr is the error message.
  environment
           ROLLCALL_TASK_ID, ROLLCALL_TYPE, ROLLCALL_ATTEMPT, and ROLLCALL_CONTEXT, what an earlier attempt
           left behind (JSON, or empty)
When the task is cancelled or its lease is lost, the program and its children get SIGTERM, and after --grace SIGKILL.
It may run more than once for a task (a crash, a lost lease), so its effects are to be safe to repeat.`

export function addWorker(program: Command): void {
  program
    .command('worker')
    .description('work on tasks with a program of yours')
    .requiredOption('--type <type>', 'the type of task it works on (repeat for more)', collectTypes)
    .requiredOption('--exec <command>', 'the program, with its arguments')
    .option('--concurrency <n>', 'programs at once', wholeNumber(1, 1_000), 1)
    .option('--name <name>', "the worker's name in histories (default: host, pid and a random part)")
    .option(
      '--kafka-brokers <addresses>',
      'take tasks from Kafka, host:port, instead of claiming them over HTTP',
      collect,
    )
    .addOption(
      new Option(
        '--confirm <who>',
        'with Kafka: the service confirms that a task is ours before the program runs, and tells of cancels; or nobody (default: api)',
      ).choices(['api', 'none']),
    )
    .addOption(
      new Option('--drain <duration>', 'how long running programs may go on when the worker is stopped')
        .argParser(parseDuration)
        .default(10_000, '10s'),
    )
    .addOption(
      new Option('--grace <duration>', 'between SIGTERM and SIGKILL for a program')
        .argParser(parseDuration)
        .default(5_000, '5s'),
    )
    .addHelpText('after', HELP)
    .action(async (options: WorkerOptions, command: Command) => {
      outliveReader()
      await runWorker(options, { url: urlOf(command), key: keyOf(command) }, terminalOf(command))
    })
}

function collectTypes(text: string, before: readonly string[] = []): string[] {
  const types = collect(text, before)
  const wrong = types.find(type => !/^[a-z0-9][a-z0-9._-]{0,63}$/.test(type))
  if (wrong !== undefined || types.length === 0)
    throw new InvalidArgumentError('A type is written in small letters, digits, dot, dash and underscore.')
  return types
}

async function runWorker(options: WorkerOptions, service: Service, terminal: Terminal): Promise<void> {
  const [{ createWorker }, { ExecHandler }, { commandFault }] = await Promise.all([
    import('../../sdk/worker.ts'),
    import('../exec/handler.ts'),
    import('../exec/check-command.ts'),
  ])
  const fault = await commandFault(options.exec)
  if (fault !== null) throw usageError(`--exec ${JSON.stringify(options.exec)} cannot be run: ${fault}.`)
  const source = await sourceOf(options, service)

  const signals = stopSignals()
  let sayGone: (why: string) => void = () => {}
  const gone = new Promise<string>(resolve => {
    sayGone = resolve
  })
  const handler = new ExecHandler({
    command: options.exec,
    graceMs: options.grace,
    onRan: ran => terminal.result(ran, () => ranLine(ran, terminal)),
    onGone: sayGone,
  })
  const worker = createWorker({
    ...source.options,
    types: Object.fromEntries(options.type.map(type => [type, handler.handle])),
    concurrency: options.concurrency,
    // What runs when the time is over is ended below, before the tasks go back.
    drainMs: options.drain + options.grace,
    logger: loggerFor(terminal),
    ...(options.name !== undefined && { worker: options.name }),
  })
  // Whatever ends this process, an error nobody caught included: its programs end with it.
  process.on('exit', () => handler.killAll())
  worker.start()
  terminal.hint(`${worker.name} works on ${options.type.join(', ')} from ${source.from} (stop with Ctrl-C)`)

  const why = await Promise.race([signals.asked.then(() => null), gone])
  terminal.hint('stopping: what runs may finish…')
  const stopped = worker.stop()
  const hurry = Promise.race([signals.askedAgain, gone])
  const hurried = await untilIdle(worker, options.drain, hurry)
  await handler.endAll(hurried ? Math.min(HURRY_MS, options.grace) : options.grace)
  // Nothing runs any more: the tasks go back now, not when the time is over.
  await worker.stop({ drainMs: 0 })
  await stopped
  if (why !== null) throw usageError(`--exec ${JSON.stringify(options.exec)} cannot be run any more: ${why}.`)
  process.exit(EXIT.ok)
}

/** Where tasks come from, and as whom Kafka is spoken to: that is set in the environment. */
async function sourceOf(options: WorkerOptions, { url, key }: Service) {
  const { kafkaBrokers, confirm } = options
  if (!kafkaBrokers) {
    if (confirm) throw usageError('--confirm is for tasks that come through Kafka: add --kafka-brokers.')
    return { options: { url, key }, from: url }
  }
  const [{ readEnvironment, serviceConfig }, { onlyKafka }] = await Promise.all([
    import('../../runtime/config.ts'),
    import('../kafka-choice.ts'),
  ])
  const noDatabase = { databaseUrl: 'postgres://none' }
  const config = serviceConfig({ kafkaBrokers }, onlyKafka(readEnvironment()), noDatabase)
  const kafka = { brokers: config.kafkaBrokers, ...config.kafkaSecurity, confirm: confirm ?? 'api' }
  const from = `Kafka at ${config.kafkaBrokers.join(',')}`
  return confirm === 'none'
    ? { options: { kafka }, from }
    : { options: { url, key, kafka }, from: `${from}, confirmed by ${url}` }
}

/** Resolves when nothing runs, after `ms`, or when it is to be quick, and says whether it is. */
async function untilIdle(worker: { running: number }, ms: number, hurry: Promise<unknown>): Promise<boolean> {
  let hurried = false
  void hurry.then(() => {
    hurried = true
  })
  const deadline = performance.now() + ms
  while (worker.running > 0 && performance.now() < deadline && !hurried)
    await new Promise(resolve => setTimeout(resolve, 20))
  return hurried
}

interface RanFields {
  taskId: string
  type: string
  attempt: number
  outcome: 'succeeded' | 'failed' | 'stopped'
  durationMs: number
  message: string | null
}

function ranLine(
  { taskId, type, attempt, outcome, durationMs, message }: RanFields,
  { colors }: Terminal,
): string {
  const paint = { succeeded: colors.green, failed: colors.red, stopped: colors.gray }[outcome]
  const why = message === null ? '' : `  ${cut(printable(message), 200)}`
  const again = attempt > 1 ? `  attempt ${attempt}` : ''
  return `${taskId}  ${type}  ${paint(outcome)}  ${spell(durationMs)}${again}${why}`
}

type Fields = Record<string, unknown>

/** What the worker itself has to say: lost connections and refused reports. */
function loggerFor(terminal: Terminal) {
  const { yellow, red, dim } = terminal.errorColors
  const say = (level: 'warning' | 'error') => (fields: Fields, message: string) => {
    if (terminal.json) process.stderr.write(`${JSON.stringify({ level, message, ...fields })}\n`)
    else {
      const rest = Object.entries(fields).map(
        ([key, value]) => `${key}=${printable(typeof value === 'string' ? value : JSON.stringify(value))}`,
      )
      const paint = level === 'error' ? red : yellow
      process.stderr.write(`${paint(`${level}:`)} ${message} ${dim(rest.join(' '))}\n`)
    }
  }
  return { debug: () => {}, info: () => {}, warn: say('warning'), error: say('error') }
}
