/** What happens, as it happens: a line for each change, for people at a terminal and for programs. */
import { once } from 'node:events'
import type { Command } from 'commander'
import type { ResyncMessage, StreamFilter, StreamMessage, TaskMessage } from '../../sdk/client.ts'
import { connect } from '../connection.ts'
import { EXIT, usageError } from '../failures.ts'
import { bar, clockTime, cut, paintStatus, printable, STATUS_WIDTH } from '../format.ts'
import { type Status, statusOption } from '../status-option.ts'
import type { Terminal } from '../terminal.ts'
import { collectLabels } from '../values.ts'

interface WatchOptions {
  type?: string
  status?: Status[]
  label?: Record<string, string>
  tenant?: string
}

const HELP = `
With an id it ends when the task is final, and the exit code is 0 only if it succeeded. Without one it goes on. It lives
through restarts of the service, and leaves nothing out. With --json each line is a message: { "kind": "task", "event", "task",
"id" }, or { "kind": "resync", "reason", "id" } where something may be missing before it.`

export function addWatch(program: Command): void {
  program
    .command('watch')
    .description('show what happens to a task, or to all that match, as it happens')
    .argument('[id]', 'id of the task; without one, all tasks that match')
    .option('--type <type>', 'only of this type')
    .addOption(statusOption())
    .option('--label <key=value>', 'only with this label (repeat for more)', collectLabels)
    .option('--tenant <tenant>', 'only of this tenant')
    .addHelpText('after', HELP)
    .action(async (id: string | undefined, options: WatchOptions, command: Command) => {
      if (id !== undefined && Object.keys(options).length > 0)
        throw usageError('Give the id of a task, or what the tasks have in common; not both.')
      const { client, terminal } = connect(command)
      let away = false
      const onError = (error: unknown) => {
        if (!away) terminal.aside(`${(error as Error).message} Connecting again…`)
        away = true
      }
      const messages =
        id === undefined ? client.stream(filterOf(options), { onError }) : client.stream(id, { onError })
      terminal.hint(`watching ${id ?? 'all tasks that match'} (stop with Ctrl-C)`)
      const lines = new Lines(terminal, id === undefined)
      let status: Status | null = null
      for await (const message of messages) {
        away = false
        if (message.kind === 'task') status = message.task.status
        await lines.show(message)
      }
      if (id !== undefined && status !== 'SUCCESS') process.exitCode = EXIT.no
    })
}

function filterOf({ label, ...rest }: WatchOptions): StreamFilter {
  return { ...rest, ...(label && { labels: label }) }
}

const ERASE_LINE = '\r\u001b[2K'

class Lines {
  readonly #terminal: Terminal
  readonly #withIds: boolean
  /** The line at the bottom of a terminal is to be written over. */
  #passing = false

  constructor(terminal: Terminal, withIds: boolean) {
    this.#terminal = terminal
    this.#withIds = withIds
  }

  /** Resolves when the next one may come: a reader that is slow is waited for. */
  async show(message: StreamMessage): Promise<void> {
    const { json } = this.#terminal
    // Progress passes by; at a terminal it stays in one line.
    const passing = !json && process.stdout.isTTY && message.kind === 'task' && isRunning(message)
    const text = json ? JSON.stringify(message) : this.#textOf(message)
    const written = `${this.#passing ? ERASE_LINE : ''}${text}${passing ? '' : '\n'}`
    this.#passing = passing
    if (!process.stdout.write(written)) await once(process.stdout, 'drain')
  }

  #textOf(message: StreamMessage): string {
    const { colors, width } = this.#terminal
    if (message.kind === 'resync')
      return colors.yellow(`something may be missing here: ${RESYNC[message.reason] ?? message.reason}`)
    const { event, task } = message
    const told = event ?? (isRunning(message) ? bar(task.progress ?? 0, BAR_WIDTH) : '')
    const cells: Cell[] = [
      [clockTime(task.updatedAt), colors.dim],
      ...(this.#withIds ? [task.taskId, printable(task.type)].map(text => [text, String] as Cell) : []),
      [task.status.padEnd(STATUS_WIDTH), () => paintStatus(task.status, colors, STATUS_WIDTH)],
      [told.padEnd(EVENT_WIDTH), String],
    ]
    const room = width - cells.reduce((sum, [text]) => sum + text.length + GAP.length, 0)
    if (room >= WHY_MIN) cells.push([cut(printable(task.why), room), String])
    return cells.map(([text, paint]) => paint(text)).join(GAP)
  }
}

type Cell = [text: string, paint: (text: string) => string]

const GAP = '  '
const BAR_WIDTH = 12
const EVENT_WIDTH = 'TaskAttemptTimedOut'.length
const WHY_MIN = 12

const RESYNC: Record<ResyncMessage['reason'], string> = {
  too_old: 'more happened meanwhile than is told again',
  unknown_id: 'the log has not got the last message that was seen',
  log_went_backwards: 'the log is another one, or an older state of it',
}

/** Between two events, with a progress. */
const isRunning = ({ event, task }: TaskMessage): boolean =>
  event === null && task.status === 'PROCESSING' && task.progress !== null
