import type { Command } from 'commander'
import type { EventLog } from '../../eventlog/event-log.ts'
import type { Copied, CopyStep } from '../../projections/copy-log.ts'
import { terminalOf } from '../connection.ts'
import { assertMigrated, databaseError } from '../database.ts'
import { CliError, EXIT, SELF, usageError } from '../failures.ts'
import { printable } from '../format.ts'
import { stopSignals } from '../stop-signals.ts'
import type { Terminal } from '../terminal.ts'

interface CopyOptions {
  from: string
  to: string
  databaseUrl?: string
}

interface StatusOptions {
  log: string
  databaseUrl?: string
}

const LOG_VALUES = 'postgres (in the database), postgres://… or esdb://…'
const DATABASE_HELP = 'the database with the read model, postgres://… (default: ROLLCALL_DATABASE_URL)'
const PROGRESS_MS = 1_000
/** Events are counted no further. */
const COUNT_MAX = 20_000

export function addLog(program: Command): void {
  const log = program.command('log').description('the event log: where it stands, and moving to another one')
  log
    .command('copy')
    .description('move to another event log while the services run: copy, seal, copy the rest, compare, move')
    .requiredOption('--from <log>', `the log in use: ${LOG_VALUES}`)
    .requiredOption('--to <log>', `an empty log, or the one that was moved away from: ${LOG_VALUES}`)
    .option('--database-url <address>', DATABASE_HELP)
    .action(async (options: CopyOptions, command: Command) => runCopy(options, terminalOf(command)))
  log
    .command('status')
    .description('which log it is, its newest event and whether it is sealed')
    .requiredOption('--log <log>', LOG_VALUES)
    .option('--database-url <address>', DATABASE_HELP)
    .action(async (options: StatusOptions, command: Command) => runStatus(options, terminalOf(command)))
}

/** The database's address, checked. */
async function databaseOf(given: string | undefined): Promise<string> {
  const { readEnvironment, serviceConfig } = await import('../../runtime/config.ts')
  const databaseUrl = given ?? readEnvironment().databaseUrl
  if (databaseUrl === undefined)
    throw usageError('Say which database: --database-url postgres://user:password@host:port/name')
  return serviceConfig({ databaseUrl }).databaseUrl
}

async function runCopy(options: CopyOptions, terminal: Terminal): Promise<void> {
  const databaseUrl = await databaseOf(options.databaseUrl)
  await assertMigrated(databaseUrl)
  const [{ default: pg }, { openLog, describeLog }, { copyLog }] = await Promise.all([
    import('pg'),
    import('../../runtime/open-log.ts'),
    import('../../projections/copy-log.ts'),
  ])
  const signals = stopSignals()
  void signals.askedAgain.then(() => process.exit(EXIT.interrupted))
  const pool = new pg.Pool({
    connectionString: databaseUrl,
    max: 4,
    application_name: 'rollcall-log-copy',
    connectionTimeoutMillis: 10_000,
    options: '-c timezone=UTC -c datestyle=ISO',
  })
  // What fails is reported by the query that needed the connection.
  pool.on('error', () => {})
  const opened: EventLog[] = []
  const told = progressLines(terminal)
  let last: CopyStep['step'] | null = null
  try {
    const from = await openLog(options.from, { databaseUrl })
    opened.push(from)
    const to = await openLog(options.to, { databaseUrl, pastSeal: true })
    opened.push(to)
    const copied = await copyLog({
      from,
      to,
      pool,
      signal: signals.signal,
      onProgress: progress => {
        last = progress.step
        told(progress)
      },
    })
    const where = describeLog(options.to)
    terminal.result({ ...copied, to: where }, () => reportLines(copied, where, terminal).join('\n'))
  } catch (error) {
    if (signals.stopping && error === signals.signal.reason) throw interrupted(last)
    throw isOfTheLog(error) ? error : databaseError(error, databaseUrl)
  } finally {
    await Promise.all(opened.map(log => log.close().catch(() => {})))
    await pool.end().catch(() => {})
    signals.release()
  }
}

/** What the logs and the copy say is not about the database of the read model. */
const isOfTheLog = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && /^(log|copy)_/.test(String(error.code))

const AFTER_SEAL: readonly (CopyStep['step'] | null)[] = ['sealing', 'sealed', 'moving']

function interrupted(last: CopyStep['step'] | null): CliError {
  const state = AFTER_SEAL.includes(last)
    ? 'The source may be sealed already, and then takes no commands until you do. To take them again without moving, ' +
      `run ${SELF} log copy with --from and --to swapped.`
    : 'The source takes commands as before.'
  return new CliError(
    'interrupted',
    `Stopped. The same command goes on from here. ${state}`,
    EXIT.interrupted,
  )
}

const number = (value: number): string => value.toLocaleString('en-US')

const STEPS: Record<CopyStep['step'], (progress: CopyStep) => string> = {
  copying: ({ events, left }) =>
    `copied ${number(events)} events, ${left === null ? 'many' : number(left)} to go`,
  comparing: ({ events }) => `comparing up to ${number(events)} events`,
  sealing: () => 'sealing the source: from here on commands are refused, reads go on',
  sealed: () => 'the source is sealed; copying and comparing the rest',
  moving: () => 'both are the same; moving the read model',
  moved: () => 'the read model follows the target; opening it',
  opened: () => 'the target takes commands',
}

/** Each step once, and within a long one now and then. */
function progressLines(terminal: Terminal): (progress: CopyStep) => void {
  let step: CopyStep['step'] | null = null
  let saidAt = 0
  return progress => {
    const now = performance.now()
    if (progress.step === step && now - saidAt < PROGRESS_MS) return
    step = progress.step
    saidAt = now
    terminal.hint(STEPS[progress.step](progress))
  }
}

function reportLines(copied: Copied, where: string, { colors }: Terminal): string[] {
  const { green, yellow, bold } = colors
  const { sourceId, targetId, events, chains, sealedMs, already } = copied
  const lines = already
    ? [green(bold(`log ${sourceId} was moved to log ${targetId} already; the target takes commands`))]
    : [
        green(
          bold(
            `log ${sourceId} was moved to log ${targetId}: ${number(events)} events, the same byte by byte`,
          ),
        ),
        `commands were refused for ${(sealedMs / 1_000).toFixed(1)} s`,
      ]
  if (chains.broken > 0)
    lines.push(
      yellow(`${number(chains.broken)} chains of hashes are broken, in the source as in the target:`),
      ...chains.named.map(({ stream, revision }) => `  event ${revision} of ${printable(stream)}`),
    )
  lines.push(`Stop the services and start them with the new log: --log ${where}`)
  return lines
}

async function runStatus(options: StatusOptions, terminal: Terminal): Promise<void> {
  const databaseUrl = options.log === 'postgres' ? await databaseOf(options.databaseUrl) : ''
  const { openLog } = await import('../../runtime/open-log.ts')
  const log = await openLog(options.log, { databaseUrl })
  try {
    const [head, sealedFor] = await Promise.all([log.head(), log.sealedFor()])
    const events = await log.countAfter(null, COUNT_MAX)
    const status = { id: log.id, events, head, sealedFor }
    terminal.result(status, () =>
      [
        `log ${log.id}: ${number(events)}${events === COUNT_MAX ? ' or more' : ''} events`,
        head ? `newest event ${head.eventId} at position ${head.position}` : 'it is empty',
        sealedFor === null
          ? 'it takes commands'
          : `it is sealed: log ${sealedFor} has taken its place, or is being copied into it`,
      ].join('\n'),
    )
  } finally {
    await log.close().catch(() => {})
  }
}
