import { type Command, Option } from 'commander'
import type { TaskList, TaskRow } from '../../api/schemas/tasks.ts'
import type { Client, ListFilter, TaskFilter } from '../../sdk/client.ts'
import { connect } from '../connection.ts'
import { countLines } from '../count-text.ts'
import { SELF } from '../failures.ts'
import { paintStatus, printable, relative, STATUS_WIDTH } from '../format.ts'
import { type Status, statusOption } from '../status-option.ts'
import type { Column } from '../table.ts'
import type { Terminal } from '../terminal.ts'
import { collectLabels, parseTime, wholeNumber } from '../values.ts'

interface ListOptions {
  status?: Status[]
  type?: string
  tenant?: string
  label?: Record<string, string>
  correlationId?: string
  error?: string
  createdAfter?: string
  createdBefore?: string
  limit: number
  oldest?: boolean
  all?: boolean
  counts?: boolean
}

const PAGE_MAX = 500

export function addList(program: Command): void {
  program
    .command('list')
    .description('list tasks, the newest first')
    .addOption(statusOption())
    .option('--type <type>', 'only of this type')
    .option('--tenant <tenant>', 'only of this tenant')
    .option('--label <key=value>', 'only with this label (repeat for more)', collectLabels)
    .option('--correlation-id <id>', 'only of this request of yours')
    .option('--error <text>', 'only with this in the error message, or with this error code')
    .option('--created-after <time>', 'only from this time on (2030-01-31T09:00:00Z)', parseTime)
    .option('--created-before <time>', 'only before this time', parseTime)
    .option('--limit <n>', 'how many at most', wholeNumber(1, PAGE_MAX), 50)
    .option('--oldest', 'the oldest first')
    .option('--all', 'all of them, page after page')
    .addOption(
      new Option('--counts', 'how many there are of each status').conflicts(['limit', 'oldest', 'all']),
    )
    .action(async (options: ListOptions, command: Command) => {
      const { client, terminal } = connect(command)
      if (options.counts) return printCounts(client, options, terminal)
      const pages = pagesOf(client, options)
      if (terminal.json) await printJson(pages, terminal)
      else await printTable(pages, terminal)
    })
}

/** What list and counts have in common. */
function filterOf(options: ListOptions): TaskFilter {
  const { status, type, tenant, label, correlationId, error, createdAfter, createdBefore } = options
  return {
    ...(status && { status }),
    ...(type !== undefined && { type }),
    ...(tenant !== undefined && { tenant }),
    ...(label && { labels: label }),
    ...(correlationId !== undefined && { correlationId }),
    ...(error !== undefined && { error }),
    ...(createdAfter !== undefined && { createdAfter }),
    ...(createdBefore !== undefined && { createdBefore }),
  }
}

async function printCounts(client: Client, options: ListOptions, terminal: Terminal): Promise<void> {
  const counted = await client.counts(filterOf(options))
  terminal.result(counted, () => countLines(counted, terminal).join('\n'))
}

async function* pagesOf(client: Client, options: ListOptions): AsyncGenerator<TaskList, void, undefined> {
  const filter: ListFilter = {
    order: options.oldest ? 'oldest' : 'newest',
    limit: options.all ? PAGE_MAX : options.limit,
    ...filterOf(options),
  }
  for (let cursor: string | null | undefined; cursor !== null; ) {
    const page: TaskList = await client.list(cursor === undefined ? filter : { ...filter, cursor })
    yield page
    cursor = options.all ? page.nextCursor : null
  }
}

/** The answer's shape also for many pages, written as they come: a million tasks need no memory. */
async function printJson(pages: AsyncIterable<TaskList>, terminal: Terminal): Promise<void> {
  let begun = false
  let rest = {}
  for await (const { tasks, ...others } of pages) {
    rest = others
    if (!begun) process.stdout.write('{"tasks":[')
    const separator = begun && tasks.length > 0 ? ',' : ''
    process.stdout.write(separator + tasks.map(task => JSON.stringify(task)).join(','))
    begun = true
  }
  terminal.line(`],${JSON.stringify(rest).slice(1)}`)
}

async function printTable(pages: AsyncIterable<TaskList>, terminal: Terminal): Promise<void> {
  const { tableLines } = await import('../table.ts')
  const { dim } = terminal.colors
  let columns: Column[] | null = null
  let count = 0
  let last: TaskList | null = null
  for await (const page of pages) {
    last = page
    if (page.tasks.length === 0) continue
    const withTitles = columns === null
    const rows = page.tasks.map(task => cellsOf(task, terminal))
    columns ??= columnsFor(rows, terminal)
    const { length } = columns
    const cells = rows.map(row => row.slice(0, length))
    for (const line of tableLines(columns, cells, dim, withTitles)) terminal.line(line)
    count += page.tasks.length
  }
  if (count === 0) terminal.aside('no tasks')
  else if (last?.nextCursor) terminal.hint(`${count} shown, there are more: --limit, --all`)
  if (last && last.lagSeconds >= 1)
    terminal.aside(`the list is ${last.lagSeconds} s behind; ${SELF} get never is`)
}

/** Remarks are left out where there is no room to say anything. */
const REMARK_MIN = 12

/** The last column takes what the terminal has left. */
function columnsFor(rows: readonly (readonly string[])[], terminal: Terminal): Column[] {
  const columns: Column[] = [
    { title: 'TASK', width: 36 },
    widest('TYPE', rows, 1, 32),
    { title: 'STATUS', width: STATUS_WIDTH },
    { title: 'TRY', width: 3, align: 'right' },
    widest('CHANGED', rows, 4, 16),
  ]
  const taken = columns.reduce((sum, { width }) => sum + width + 2, 0)
  const left = terminal.width - taken
  return left < REMARK_MIN ? columns : [...columns, { title: 'REMARK', width: left - 2 }]
}

function widest(title: string, rows: readonly (readonly string[])[], place: number, max: number): Column {
  const cells = rows.map(row => row[place]!.length)
  return { title, width: Math.min(max, Math.max(title.length, ...cells)) }
}

function cellsOf(task: TaskRow, { colors }: Terminal): string[] {
  return [
    task.taskId,
    printable(task.type),
    paintStatus(task.status, colors),
    String(task.attempt),
    relative(task.updatedAt),
    remarkOf(task),
  ]
}

function remarkOf({
  status,
  step,
  worker,
  errorCode,
  errorMessage,
  nextDeadline,
  resultUrl,
}: TaskRow): string {
  if (status === 'PROCESSING') return printable([step, worker].filter(part => part !== null).join(' by '))
  if (status === 'SUCCESS') return resultUrl === null ? '' : printable(resultUrl)
  if (status === 'CANCELLED') return printable(errorMessage ?? '')
  if (errorCode !== null) return printable(`${errorCode}: ${errorMessage ?? ''}`)
  return nextDeadline?.timer === 'not_before' ? `starts ${relative(nextDeadline.at)}` : ''
}
