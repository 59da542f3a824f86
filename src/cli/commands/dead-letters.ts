import { writeFile } from 'node:fs/promises'
import type { Command } from 'commander'
import type {
  Client,
  DeadLetterFilter,
  DeadLetterList,
  DeadLetterView,
  DiscardAnswer,
  RedriveAnswer,
} from '../../sdk/client.ts'
import { connect } from '../connection.ts'
import { CliError, EXIT, SELF, usageError } from '../failures.ts'
import { clockTime, cut, printable, relative } from '../format.ts'
import type { Terminal } from '../terminal.ts'
import { wholeNumber } from '../values.ts'

const PAGE_MAX = 200
/** As many as the service takes in one request. */
const AT_ONCE = 100
/** A redrive is slowed down by the service. */
const REDRIVE_MS = 60_000
const SHOWN_BYTES = 2_048

interface ListOptions {
  status?: DeadLetterView['status']
  reason?: string
  task?: string
  limit: number
  cursor?: string
}

interface ChoiceOptions {
  all?: boolean
}

export function addDeadLetters(program: Command): void {
  const group = program
    .command('dead-letters')
    .description('records that could not be handled: look at them, redrive them, discard them')
    .helpCommand(false)
  addListLetters(group)
  addShowLetter(group)
  addRedrive(group)
  addDiscard(group)
}

function addListLetters(group: Command): void {
  group
    .command('list')
    .description('list dead letters, the newest first')
    .option('--status <status>', 'waiting, redriven or discarded (default: waiting)')
    .option('--reason <code>', 'only with this code, such as invalid_event')
    .option('--task <id>', 'only of this task')
    .option('--limit <n>', 'how many at most', wholeNumber(1, PAGE_MAX), 50)
    .option('--cursor <cursor>', 'go on after a page, with its nextCursor')
    .action(async ({ status, reason, task, limit, cursor }: ListOptions, command: Command) => {
      const { client, terminal } = connect(command)
      const filter: DeadLetterFilter = {
        limit,
        ...(status !== undefined && { status }),
        ...(reason !== undefined && { reason }),
        ...(task !== undefined && { taskId: task }),
        ...(cursor !== undefined && { cursor }),
      }
      const page = await client.deadLetters(filter)
      const lines = terminal.json ? [] : await listLines(page, terminal)
      terminal.result(page, () => lines.join('\n'))
    })
}

/** A message is of use only where there is room for it. */
const MESSAGE_WIDTH_MIN = 20

async function listLines({ letters, waiting, nextCursor }: DeadLetterList, terminal: Terminal) {
  const { red, dim } = terminal.colors
  const counted = dim(`${waiting} waiting in all`)
  if (letters.length === 0) return ['no dead letters', counted]
  const { tableLines, widthOf } = await import('../table.ts')
  const kept = letters.map(({ keptAt }) => relative(keptAt))
  const columns = [
    { title: 'LETTER', width: 36 },
    {
      title: 'REASON',
      width: widthOf(
        'REASON',
        letters.map(({ code }) => code),
        20,
      ),
    },
    { title: 'KEPT', width: widthOf('KEPT', kept, 16) },
    { title: 'TASK', width: 36 },
  ]
  const taken = columns.reduce((sum, { width }) => sum + width + 2, 0)
  const width = Math.max(MESSAGE_WIDTH_MIN, terminal.width - taken - 2)
  const rows = letters.map(({ letterId, code, taskId, message }, index) => [
    letterId,
    red(code),
    kept[index]!,
    taskId ?? dim('not known'),
    cut(printable(message), width),
  ])
  return [
    ...tableLines([...columns, { title: 'MESSAGE', width }], rows, dim),
    counted,
    ...(nextCursor === null ? [] : [dim(`there are older ones: --cursor ${nextCursor}`)]),
  ]
}

function addShowLetter(group: Command): void {
  group
    .command('show')
    .description('one dead letter, with its bytes')
    .argument('<id>', 'id of the letter')
    .option(
      '--value-to <file>',
      'write its value there, byte for byte; - is standard output, and nothing else',
    )
    .action(async (id: string, { valueTo }: { valueTo?: string }, command: Command) => {
      const { client, terminal } = connect(command)
      if (valueTo === '-' && terminal.json) throw usageError('Choose --json or --value-to -, not both.')
      const letter = await client.deadLetter(id)
      if (valueTo !== undefined) await writeValue(letter, valueTo)
      if (valueTo !== '-') terminal.result(letter, () => textOf(letter).join('\n'))
    })
}

async function writeValue({ letterId, value }: DeadLetterView, file: string): Promise<void> {
  if (value === null) throw new CliError('no_value', `The record of ${letterId} has no value.`, EXIT.no)
  const bytes = Buffer.from(value, 'base64')
  if (file === '-') {
    process.stdout.write(bytes)
    return
  }
  await writeFile(file, bytes).catch((error: Error) => {
    throw usageError(`The value cannot be written: ${error.message}`, 'file_unusable', { cause: error })
  })
}

function textOf(letter: DeadLetterView): string[] {
  const { topic, partition, offset, timestamp, settledAt, settledBy, settledBecause } = letter
  const lines = [
    `${letter.letterId}  ${letter.status}`,
    `reason     ${letter.code}: ${printable(letter.message)}`,
    `from       ${printable(topic)}, partition ${partition}, offset ${offset}, timestamp ${timestamp}`,
    `task       ${letter.taskId ?? 'not known'}`,
    `kept       ${clockTime(letter.keptAt)}, redriven ${letter.redrives} times`,
  ]
  if (settledAt !== null)
    lines.push(
      `settled    ${clockTime(settledAt)} by ${printable(settledBy ?? '')}: ${printable(settledBecause ?? '')}`,
    )
  for (const { name, value } of letter.headers)
    lines.push(`header     ${printable(name)}: ${readable(value)}`)
  lines.push(`key        ${readable(letter.key)}`, `value      ${readable(letter.value)}`)
  if ((letter.valueBytes ?? 0) > SHOWN_BYTES)
    lines.push(`           ${letter.valueBytes} bytes in all; --value-to has them`)
  return lines
}

/** For people; programs get the bytes. */
const readable = (base64: string | null): string =>
  base64 === null
    ? 'none'
    : printable(Buffer.from(base64, 'base64').subarray(0, SHOWN_BYTES).toString('utf8'))

function addRedrive(group: Command): void {
  group
    .command('redrive')
    .description('hand dead letters in again, as they are')
    .argument('[ids...]', 'ids of the letters')
    .option('--all', 'all that wait now')
    .action(async (ids: string[], { all }: ChoiceOptions, command: Command) => {
      const { client, terminal } = connect(command)
      const results: RedriveAnswer['results'] = []
      for (const some of pagesOf(await chosen(client, ids, all))) {
        const page = await client.redrive(some, { timeoutMs: REDRIVE_MS })
        results.push(...page)
        // As they come: many take their time, and what was done stands whatever becomes of the rest.
        if (!terminal.json) for (const result of page) terminal.line(redriveText(result))
      }
      if (terminal.json) terminal.line(JSON.stringify({ results }))
      else if (results.length === 0) terminal.line('none waits')
      if (results.some(({ kind }) => kind !== 'redriven')) process.exitCode = EXIT.no
    })
}

function redriveText(result: RedriveAnswer['results'][number]): string {
  const { letterId, kind, code, message } = result
  const outcome = kind === 'redriven' ? result.answer : kind === 'kept' ? 'kept' : 'refused'
  return `${letterId}  ${outcome}${code === null ? '' : `  ${code}: ${printable(message ?? '')}`}`
}

function addDiscard(group: Command): void {
  group
    .command('discard')
    .description('end the waiting of dead letters; they stay on record')
    .argument('<ids...>', 'ids of the letters')
    .requiredOption('--reason <text>', 'why they are not needed')
    .action(async (ids: string[], { reason }: { reason: string }, command: Command) => {
      const { client, terminal } = connect(command)
      const results: DiscardAnswer['results'] = []
      for (const some of pagesOf(ids)) results.push(...(await client.discard(some, reason)))
      terminal.result({ results }, () =>
        results
          .map(one =>
            one.kind === 'discarded'
              ? `${one.letterId}  discarded`
              : `${one.letterId}  refused  ${one.code}: ${printable(one.message)}`,
          )
          .join('\n'),
      )
      if (results.some(({ kind }) => kind !== 'discarded')) process.exitCode = EXIT.no
    })
}

/** The ids that were named, or those of all that wait now: taken before any is redriven, so that it comes to an end. */
async function chosen(client: Client, ids: readonly string[], all = false): Promise<string[]> {
  if (all === ids.length > 0)
    throw usageError(`Name the letters or say --all; ${SELF} dead-letters list shows them.`)
  if (!all) return [...ids]
  const found: string[] = []
  for (let cursor: string | null | undefined; cursor !== null; ) {
    const page = await client.deadLetters({ limit: PAGE_MAX, ...(cursor !== undefined && { cursor }) })
    found.push(...page.letters.map(({ letterId }) => letterId))
    cursor = page.nextCursor
  }
  // The oldest first, as they came.
  return found.reverse()
}

function* pagesOf(ids: readonly string[]): Generator<string[]> {
  for (let from = 0; from < ids.length; from += AT_ONCE) yield ids.slice(from, from + AT_ONCE)
}
