import type { Command } from 'commander'
import type { RollCallAnswer } from '../../sdk/client.ts'
import { connect } from '../connection.ts'
import { EXIT, SELF } from '../failures.ts'
import { clockTime, cut, paintStatus, printable, relative, STATUS_WIDTH, spell } from '../format.ts'
import type { Terminal } from '../terminal.ts'

export function addRollCall(program: Command): void {
  program
    .command('rollcall')
    .description('call the roll: every task by type and status, and those that do not answer')
    .action(async (_options: unknown, command: Command) => {
      const { client, terminal } = connect(command)
      const called = await client.rollCall()
      const lines = terminal.json ? [] : await reportLines(called, terminal)
      terminal.result(called, () => lines.join('\n'))
      if (called.unaccounted.total !== 0) process.exitCode = EXIT.no
    })
}

async function reportLines(called: RollCallAnswer, terminal: Terminal): Promise<string[]> {
  return [
    verdict(called, terminal),
    ...(await groupLines(called, terminal)),
    ...namedLines(called, terminal),
    ...letterLines(called, terminal),
    '',
    terminal.colors.dim(stateLine(called)),
  ]
}

const number = (value: number): string => value.toLocaleString('en-US')
const tasksText = (count: number): string => (count === 1 ? '1 task' : `${number(count)} tasks`)

/** The first line says it all. */
export function verdict({ tasks, unaccounted }: RollCallAnswer, { colors }: Terminal): string {
  const { total, unknownBecause } = unaccounted
  if (total === null) return colors.yellow(colors.bold(`nobody can tell: ${unknownBecause}`))
  if (total > 0) return colors.red(colors.bold(`${number(total)} of ${tasksText(tasks)} unaccounted for`))
  const all =
    tasks === 0
      ? 'there are no tasks'
      : tasks === 1
        ? 'the 1 task answered'
        : `all ${number(tasks)} tasks answered`
  return colors.green(colors.bold(all))
}

const TYPE_WIDTH_MAX = 32

async function groupLines({ groups, at, graceMs }: RollCallAnswer, { colors }: Terminal): Promise<string[]> {
  if (groups.length === 0) return []
  const { tableLines, widthOf } = await import('../table.ts')
  const now = Date.parse(at)
  const rows = groups.map(({ type, status, count, oldestCreatedAt, overdue }) => [
    printable(type),
    paintStatus(status, colors),
    number(count),
    relative(oldestCreatedAt, now),
    overdue === 0 ? colors.dim('0') : colors.red(number(overdue)),
  ])
  const cells = (place: number) => rows.map(row => row[place]!)
  const columns = [
    { title: 'TYPE', width: widthOf('TYPE', cells(0), TYPE_WIDTH_MAX) },
    { title: 'STATUS', width: STATUS_WIDTH },
    { title: 'COUNT', width: widthOf('COUNT', cells(2), 12), align: 'right' as const },
    { title: 'OLDEST', width: widthOf('OLDEST', cells(3), 20) },
    { title: `OVERDUE > ${spell(graceMs)}`, width: 16, align: 'right' as const },
  ]
  return ['', ...tableLines(columns, rows, colors.dim)]
}

const REASONS: Record<RollCallAnswer['unaccounted']['reasons'][number]['reason'], string> = {
  no_timer: 'open without a timer that ends it',
  overdue: 'overdue: no timer acted',
  set_aside: 'set aside: it cannot be folded',
  not_in_read_model: 'in the log, but in no row',
  drift: 'rows and stream differ',
}
const SHOWN_TASKS = 5
const ID_WIDTH = 38

function namedLines({ unaccounted, withoutLiveWorker }: RollCallAnswer, terminal: Terminal): string[] {
  const { bold, red, yellow, dim } = terminal.colors
  const block = (title: string, { count, tasks }: RollCallAnswer['withoutLiveWorker']): string[] => {
    if (count === 0) return []
    const shown = tasks.slice(0, SHOWN_TASKS)
    return [
      '',
      title,
      ...shown.map(
        ({ taskId, detail }) =>
          `  ${taskId}  ${cut(printable(detail), Math.max(20, terminal.width - ID_WIDTH - 2))}`,
      ),
      ...(count > shown.length ? [dim(`  and ${number(count - shown.length)} more`)] : []),
    ]
  }
  return [
    ...unaccounted.reasons.flatMap(one =>
      block(bold(red(`${number(one.count)} ${REASONS[one.reason]}`)), one),
    ),
    ...block(
      yellow(`${number(withoutLiveWorker.count)} running without a live worker; their leases end them`),
      withoutLiveWorker,
    ),
  ]
}

function letterLines({ deadLetters }: RollCallAnswer, { colors }: Terminal): string[] {
  if (deadLetters === 0) return []
  const text = deadLetters === 1 ? '1 dead letter waits' : `${number(deadLetters)} dead letters wait`
  return ['', colors.yellow(`${text} for a person: ${SELF} dead-letters list`)]
}

function stateLine({ at, lag, verified }: RollCallAnswer): string {
  const events =
    lag.events === null ? 'unknown' : `${lag.moreEvents ? 'more than ' : ''}${number(lag.events)} events`
  const walked =
    verified === null
      ? `not verified yet: ${SELF} verify`
      : `rows and log compared ${relative(verified.at, Date.parse(at))}`
  return `at ${clockTime(at)}; the read model is ${events}, ${spell(lag.seconds * 1_000)} behind; ${walked}`
}
