import type { Command } from 'commander'
import type { Client, SubmitTask, TaskView } from '../../sdk/client.ts'
import { connect } from '../connection.ts'
import { EXIT, SELF, usageError } from '../failures.ts'
import { readPayload } from '../payload.ts'
import { brief, describeTask } from '../task-text.ts'
import type { Terminal } from '../terminal.ts'
import { collectLabels, parseDuration, parseTime, wholeNumber } from '../values.ts'
import { endOrNow } from '../wait.ts'

interface SubmitOptions {
  priority?: number
  delay?: number
  runAt?: string
  idempotencyKey?: string
  label?: Record<string, string>
  maxAttempts?: number
  timeoutQueue?: number
  timeoutExecution?: number
  timeoutLease?: number
  timeoutTotal?: number
  correlationId?: string
  tenant?: string
  wait?: boolean
  waitTimeout?: number
}

const DURATION = '10s, 500ms, 5m, 2h, 7d'
/** Without a limit of one's own the wait ends with the task, whose total limit is at most as long. */
const WAIT_MAX_MS = 366 * 24 * 60 * 60 * 1_000

export function addSubmit(program: Command): void {
  program
    .command('submit')
    .description('submit a task')
    .argument('<type>', 'what kind of task; workers ask for it by this name')
    .argument('[payload]', 'JSON for the worker; @file reads it from a file, - from standard input')
    .option('--priority <n>', 'higher is claimed first', wholeNumber(-1_000, 1_000))
    .option('--delay <duration>', `not before so much time has passed (${DURATION})`, parseDuration)
    .option('--run-at <time>', 'not before this time (2030-01-31T09:00:00Z)', parseTime)
    .option('--idempotency-key <key>', 'the same key again answers the same task')
    .option('--label <key=value>', 'a label (repeat for more)', collectLabels)
    .option('--max-attempts <n>', 'attempts before the task fails', wholeNumber(1, 2_000))
    .option('--timeout-queue <duration>', 'how long it may wait for a worker', parseDuration)
    .option('--timeout-execution <duration>', 'how long one attempt may take', parseDuration)
    .option('--timeout-lease <duration>', 'how long its worker may stay silent', parseDuration)
    .option('--timeout-total <duration>', 'how long it may take in all', parseDuration)
    .option('--correlation-id <id>', 'ties it to a request of yours')
    .option('--tenant <tenant>', 'whose task it is')
    .option('--wait', 'wait for its end; the exit code is 0 only if it succeeded')
    .option('--wait-timeout <duration>', 'wait, but not longer than this', parseDuration)
    .action(async (type: string, payload: string | undefined, options: SubmitOptions, command: Command) => {
      if (options.delay !== undefined && options.runAt !== undefined)
        throw usageError('Give --delay or --run-at, not both.')
      const { client, terminal } = connect(command)
      const given = payload === undefined ? {} : { payload: await readPayload(payload) }
      const task = await client.submit(
        { type, ...given, ...fieldsOf(options) },
        options.idempotencyKey === undefined ? {} : { idempotencyKey: options.idempotencyKey },
      )
      if (options.wait || options.waitTimeout !== undefined)
        await waitForEnd(client, task, options.waitTimeout ?? WAIT_MAX_MS, terminal)
      else terminal.result(task, () => brief(task, terminal))
    })
}

function fieldsOf(options: SubmitOptions): Omit<SubmitTask, 'type'> {
  const timeouts = defined({
    queueMs: options.timeoutQueue,
    executionMs: options.timeoutExecution,
    leaseMs: options.timeoutLease,
    totalMs: options.timeoutTotal,
  })
  return defined({
    priority: options.priority,
    delayMs: options.delay,
    runAt: options.runAt,
    labels: options.label,
    correlationId: options.correlationId,
    tenant: options.tenant,
    retry: options.maxAttempts === undefined ? undefined : { maxAttempts: options.maxAttempts },
    timeouts: Object.keys(timeouts).length === 0 ? undefined : timeouts,
  })
}

async function waitForEnd(
  client: Client,
  task: TaskView,
  timeoutMs: number,
  terminal: Terminal,
): Promise<void> {
  terminal.hint(`${task.taskId} is accepted; waiting for its end (Ctrl-C stops the waiting, not the task)`)
  const found = await endOrNow(client, task.taskId, timeoutMs)
  terminal.result(found, () => describeTask(found, terminal))
  if (found.finishedAt === null)
    terminal.aside(`not finished in time; look again with: ${SELF} get ${task.taskId}`)
  if (found.status !== 'SUCCESS') process.exitCode = EXIT.no
}

/** Without the keys whose value is undefined. */
const defined = <T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]?: Exclude<T[K], undefined>
  }
