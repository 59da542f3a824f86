import type { Command } from 'commander'
import type { HistoryEvent } from '../../api/schemas/tasks.ts'
import type { Client, Refusal, TaskRefusals } from '../../sdk/client.ts'
import { connect } from '../connection.ts'
import { changeOf } from '../event-text.ts'
import { CliError, EXIT } from '../failures.ts'
import { clockTime, printable } from '../format.ts'
import type { Column } from '../table.ts'
import type { Terminal } from '../terminal.ts'

const SHORT_HASH = 8
/** Below so many columns the table leaves out what it can. */
const NARROW = 110
/** A stream is bounded by the limits on steps, notes and attempts; far beyond that it is not a task's. */
const EVENTS_MAX = 100_000
/** The history is not kept waiting for what stands beside it. */
const REFUSALS_MS = 3_000

export function addHistory(program: Command): void {
  program
    .command('history')
    .description('show what happened to a task, and check its chain of hashes')
    .argument('<id>', 'id of the task')
    .action(async (id: string, _options: unknown, command: Command) => {
      const { client, terminal } = connect(command)
      const events: HistoryEvent[] = []
      for await (const event of client.events(id, { limit: 1_000 })) {
        events.push(event)
        if (events.length > EVENTS_MAX)
          throw new CliError('too_large', `Task ${id} has more than ${EVENTS_MAX} events.`, EXIT.no)
      }
      const fault = chainFault(events)
      const taskId = id.toLowerCase()
      const refusals = await refusalsOf(client, taskId, terminal)
      const lines = terminal.json
        ? []
        : [...(await historyLines(events, terminal)), ...refusalLines(refusals)]
      terminal.result({ taskId, events, chain: { whole: fault === null, fault }, refusals }, () =>
        lines.join('\n'),
      )
      if (fault !== null)
        throw new CliError('chain_broken', `The history of ${taskId} is broken: ${fault}.`, EXIT.no)
      terminal.hint(`${events.length} events, the chain of hashes is whole`)
    })
}

/**
 * Where the chain is broken, null where it is whole: revisions without a gap, each event naming the hash of the
 * one before it. Whether a hash is that of its event's bytes is checked where the bytes are, by the service.
 */
export function chainFault(
  events: readonly Pick<HistoryEvent, 'revision' | 'hash' | 'prevHash'>[],
): string | null {
  let before: string | null = null
  for (const [index, { revision, hash, prevHash }] of events.entries()) {
    if (revision !== index) return `event ${index} is missing`
    if (prevHash !== before) return `event ${revision} does not name the hash of the event before it`
    before = hash
  }
  return null
}

/** The history is the log's; that the database beside it is away is no reason to keep it back. */
async function refusalsOf(client: Client, taskId: string, terminal: Terminal): Promise<TaskRefusals | null> {
  try {
    return await client.refusals(taskId, { timeoutMs: REFUSALS_MS })
  } catch (error) {
    terminal.aside(`What was refused cannot be shown: ${(error as Error).message}`)
    return null
  }
}

function refusalLines(refusals: TaskRefusals | null): string[] {
  if (!refusals || refusals.count === 0) return []
  const { count, first, last } = refusals
  const left = count - first.length - last.length
  return [
    '',
    count === 1 ? '1 command was refused:' : `${count} commands were refused:`,
    ...first.map(refusalLine),
    ...(left > 0 ? [`  (${left} more)`] : []),
    ...last.map(refusalLine),
  ]
}

const refusalLine = ({ at, trigger, actor, code, message, revision }: Refusal): string => {
  const where = revision === null ? '' : ` at revision ${revision}`
  return printable(`  ${clockTime(at)}  ${trigger} by ${actor.kind} ${actor.id}${where}: ${code}. ${message}`)
}

async function historyLines(events: readonly HistoryEvent[], terminal: Terminal): Promise<string[]> {
  const { tableLines, widthOf } = await import('../table.ts')
  const narrow = terminal.width < NARROW
  const rows = events.map(event => [
    String(event.revision),
    // To the millisecond where there is no room for the date: what follows each other tells more.
    narrow ? event.at.slice(11, 23) : clockTime(event.at),
    event.type,
    printable(`${event.actor.kind} ${event.actor.id}`),
    event.hash.slice(0, SHORT_HASH),
    changeOf(event),
  ])
  const column = (title: string, place: number, max: number): Column => {
    const cells = rows.map(row => row[place]!)
    return { title, width: widthOf(title, cells, max) }
  }
  const columns = [
    { ...column('REV', 0, 6), align: 'right' as const },
    column('TIME', 1, 20),
    column('EVENT', 2, 20),
    column('WHO', 3, narrow ? 18 : 30),
    { title: 'HASH', width: SHORT_HASH },
  ]
  const taken = columns.reduce((sum, { width }) => sum + width + 2, 0)
  columns.push({ title: 'WHAT', width: Math.max(10, terminal.width - taken - 2) })
  return tableLines(columns, rows, terminal.colors.dim)
}
