/**
 * The whole lifecycle as one table: every status in each of its variants, every trigger, what is stored and
 * where the task then stands. The table is read like a document; a change to it is a change of behaviour.
 */
import t from 'tap'
import type { Command } from '../../src/domain/commands.ts'
import { isOpenStatus, STATUSES, TRIGGERS } from '../../src/domain/lifecycle.ts'
import {
  type Asking,
  attemptFailed,
  attemptTimedOut,
  cancel,
  cancelled,
  fail,
  failed,
  given,
  note,
  queueTimedOut,
  release,
  released,
  requeued,
  retry,
  type Specification,
  STEPPED_LIFECYCLE,
  start,
  started,
  step,
  stepEntered,
  submit,
  submitted,
  succeed,
  succeeded,
  T0,
  TIMER,
  TOKEN_A,
  TOKEN_B,
  TOKEN_C,
  timedOut,
  timeout,
} from './specification.ts'

/** Every deadline of every situation has passed by now, but for the delayed task. */
const NOW = 700_000
const second = { attempt: 2, leaseTokenHash: TOKEN_B } as const
const third = { attempt: 3, leaseTokenHash: TOKEN_C } as const
const again = [started(10), attemptTimedOut(2_010), requeued(3_010)] as const

const SITUATIONS: Record<string, Specification> = {
  'PENDING, new': given(submitted()),
  'PENDING, delayed': given(submitted(0, { runAt: T0 + 1_000_000 })),
  'PENDING, handed back by attempt 1': given(submitted(), started(10), released(20)),
  'PENDING, requeued after attempt 1': given(submitted(), ...again),
  'PENDING, requeued by a person, never started': given(
    submitted(),
    queueTimedOut(60_000),
    requeued(61_000, { run: 2, cause: 'asked' }),
  ),
  'PROCESSING, attempt 1': given(submitted(), started(10)),
  'PROCESSING, in a step with a limit': given(
    submitted(),
    started(10),
    stepEntered(20, { step: 'DOWNLOADING', stepDeadlineAt: T0 + 1_020 }),
  ).under(STEPPED_LIFECYCLE),
  'PROCESSING, last attempt': given(
    submitted(),
    ...again,
    started(4_000, second),
    attemptFailed(5_000, second),
    requeued(7_000),
    started(8_000, third),
  ),
  'RETRYING, attempt 1 failed': given(submitted(), started(10), attemptFailed(20)),
  'RETRYING, attempt 1 timed out': given(submitted(), started(10), attemptTimedOut(2_010)),
  SUCCESS: given(submitted(), started(10), succeeded(20)),
  'FAILED, not retryable': given(submitted(), started(10), failed(20)),
  'FAILED, timed out': given(submitted(), started(10), timedOut(2_010)),
  'FAILED, never started': given(submitted(), queueTimedOut(60_000)),
  'CANCELLED while running': given(submitted(), started(10), cancelled(20)),
  'CANCELLED while waiting': given(submitted(), cancelled(20)),
}

/** The fence of the attempt that runs, ran last, or would come next. */
const TOKENS = [TOKEN_A, TOKEN_B, TOKEN_C]
const fenceOf = (attempt: number) => ({ attempt, leaseTokenHash: TOKENS[attempt - 1]! })

/** What is asked, by the attempt the task is at. */
const ASKED: Record<string, (attempt: number) => [Command, Asking?]> = {
  SUBMIT: () => [submit()],
  'SUBMIT, other request': () => [submit({ fingerprint: 'e'.repeat(64) })],
  START: attempt => [start(fenceOf(attempt))],
  'START, other token': attempt => [start({ attempt, leaseTokenHash: 'd'.repeat(64) })],
  'STEP DOWNLOADING': attempt => [step('DOWNLOADING', fenceOf(attempt))],
  SUCCEED: attempt => [succeed(fenceOf(attempt))],
  'SUCCEED, attempt before': attempt => [succeed(fenceOf(attempt - 1))],
  FAIL: attempt => [fail(fenceOf(attempt))],
  'FAIL, not retryable': attempt => [fail({ ...fenceOf(attempt), retryable: false })],
  'FAIL, attempt before': attempt => [fail(fenceOf(attempt - 1))],
  RELEASE: attempt => [release(fenceOf(attempt))],
  RETRY: () => [retry()],
  'RETRY by a timer': () => [retry(), { actor: TIMER }],
  CANCEL: () => [cancel()],
  NOTE: () => [note()],
  'TIMEOUT:queue': () => [timeout('queue')],
  'TIMEOUT:execution': attempt => [timeout('execution', { attempt })],
  'TIMEOUT:step': attempt => [timeout('step', { attempt })],
  'TIMEOUT:lease': attempt => [timeout('lease', { attempt, lastHeartbeatAt: T0 + 9_000 })],
  'TIMEOUT:lease, unheard': attempt => [timeout('lease', { attempt })],
  'TIMEOUT:total': () => [timeout('total')],
}

const TABLE = `
PENDING, new
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   TaskStarted > PROCESSING
  START, other token      TaskStarted > PROCESSING
  STEP DOWNLOADING        refused illegal_transition
  SUCCEED                 refused illegal_transition
  FAIL                    refused illegal_transition
  FAIL, not retryable     refused illegal_transition
  RELEASE                 refused illegal_transition
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > PENDING
  TIMEOUT:queue           TaskTimedOut > FAILED
  TIMEOUT:execution       refused illegal_transition
  TIMEOUT:step            refused illegal_transition
  TIMEOUT:lease           refused illegal_transition
  TIMEOUT:lease, unheard  refused illegal_transition
  TIMEOUT:total           TaskTimedOut > FAILED

PENDING, delayed
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused not_due
  START, other token      refused not_due
  STEP DOWNLOADING        refused illegal_transition
  SUCCEED                 refused illegal_transition
  FAIL                    refused illegal_transition
  FAIL, not retryable     refused illegal_transition
  RELEASE                 refused illegal_transition
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > PENDING
  TIMEOUT:queue           refused not_due
  TIMEOUT:execution       refused illegal_transition
  TIMEOUT:step            refused illegal_transition
  TIMEOUT:lease           refused illegal_transition
  TIMEOUT:lease, unheard  refused illegal_transition
  TIMEOUT:total           refused not_due

PENDING, handed back by attempt 1
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   TaskStarted > PROCESSING
  START, other token      TaskStarted > PROCESSING
  STEP DOWNLOADING        refused illegal_transition
  SUCCEED                 refused illegal_transition
  SUCCEED, attempt before refused superseded, LateResultRecorded kept
  FAIL                    refused illegal_transition
  FAIL, not retryable     refused illegal_transition
  FAIL, attempt before    refused superseded, LateResultRecorded kept
  RELEASE                 refused illegal_transition
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > PENDING
  TIMEOUT:queue           TaskTimedOut > FAILED
  TIMEOUT:execution       refused illegal_transition
  TIMEOUT:step            refused illegal_transition
  TIMEOUT:lease           refused illegal_transition
  TIMEOUT:lease, unheard  refused illegal_transition
  TIMEOUT:total           TaskTimedOut > FAILED

PENDING, requeued after attempt 1
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   TaskStarted > PROCESSING
  START, other token      TaskStarted > PROCESSING
  STEP DOWNLOADING        refused illegal_transition
  SUCCEED                 refused illegal_transition
  SUCCEED, attempt before refused superseded, LateResultRecorded kept
  FAIL                    refused illegal_transition
  FAIL, not retryable     refused illegal_transition
  FAIL, attempt before    refused superseded, LateResultRecorded kept
  RELEASE                 refused illegal_transition
  RETRY                   repeated
  RETRY by a timer        repeated
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > PENDING
  TIMEOUT:queue           TaskTimedOut > FAILED
  TIMEOUT:execution       refused illegal_transition
  TIMEOUT:step            refused illegal_transition
  TIMEOUT:lease           refused illegal_transition
  TIMEOUT:lease, unheard  refused illegal_transition
  TIMEOUT:total           TaskTimedOut > FAILED

PENDING, requeued by a person, never started
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   TaskStarted > PROCESSING
  START, other token      TaskStarted > PROCESSING
  STEP DOWNLOADING        refused illegal_transition
  SUCCEED                 refused illegal_transition
  FAIL                    refused illegal_transition
  FAIL, not retryable     refused illegal_transition
  RELEASE                 refused illegal_transition
  RETRY                   repeated
  RETRY by a timer        repeated
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > PENDING
  TIMEOUT:queue           TaskTimedOut > FAILED
  TIMEOUT:execution       refused illegal_transition
  TIMEOUT:step            refused illegal_transition
  TIMEOUT:lease           refused illegal_transition
  TIMEOUT:lease, unheard  refused illegal_transition
  TIMEOUT:total           TaskTimedOut > FAILED

PROCESSING, attempt 1
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   repeated
  START, other token      refused already_started
  STEP DOWNLOADING        TaskStepEntered > PROCESSING
  SUCCEED                 TaskSucceeded > SUCCESS
  FAIL                    TaskAttemptFailed > RETRYING
  FAIL, not retryable     TaskFailed > FAILED
  RELEASE                 TaskReleased > PENDING
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > PROCESSING
  TIMEOUT:queue           refused illegal_transition
  TIMEOUT:execution       TaskAttemptTimedOut > RETRYING
  TIMEOUT:step            refused not_due
  TIMEOUT:lease           TaskAttemptTimedOut > RETRYING
  TIMEOUT:lease, unheard  TaskAttemptTimedOut > RETRYING
  TIMEOUT:total           TaskTimedOut > FAILED

PROCESSING, in a step with a limit
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   repeated
  START, other token      refused already_started
  STEP DOWNLOADING        repeated
  SUCCEED                 TaskSucceeded > SUCCESS
  FAIL                    TaskAttemptFailed > RETRYING
  FAIL, not retryable     TaskFailed > FAILED
  RELEASE                 TaskReleased > PENDING
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > PROCESSING
  TIMEOUT:queue           refused illegal_transition
  TIMEOUT:execution       TaskAttemptTimedOut > RETRYING
  TIMEOUT:step            TaskAttemptTimedOut > RETRYING
  TIMEOUT:lease           TaskAttemptTimedOut > RETRYING
  TIMEOUT:lease, unheard  TaskAttemptTimedOut > RETRYING
  TIMEOUT:total           TaskTimedOut > FAILED

PROCESSING, last attempt
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   repeated
  START, other token      refused already_started
  STEP DOWNLOADING        TaskStepEntered > PROCESSING
  SUCCEED                 TaskSucceeded > SUCCESS
  SUCCEED, attempt before refused superseded, LateResultRecorded kept
  FAIL                    TaskFailed > FAILED
  FAIL, not retryable     TaskFailed > FAILED
  FAIL, attempt before    repeated
  RELEASE                 TaskReleased > PENDING
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > PROCESSING
  TIMEOUT:queue           refused illegal_transition
  TIMEOUT:execution       TaskTimedOut > FAILED
  TIMEOUT:step            refused not_due
  TIMEOUT:lease           TaskTimedOut > FAILED
  TIMEOUT:lease, unheard  TaskAttemptTimedOut > RETRYING
  TIMEOUT:total           TaskTimedOut > FAILED

RETRYING, attempt 1 failed
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused illegal_transition
  START, other token      refused illegal_transition
  STEP DOWNLOADING        refused illegal_transition
  SUCCEED                 refused superseded, LateResultRecorded kept
  FAIL                    repeated
  FAIL, not retryable     repeated
  RELEASE                 refused illegal_transition
  RETRY                   TaskRequeued > PENDING
  RETRY by a timer        TaskRequeued > PENDING
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > RETRYING
  TIMEOUT:queue           refused illegal_transition
  TIMEOUT:execution       refused illegal_transition
  TIMEOUT:step            refused illegal_transition
  TIMEOUT:lease           refused illegal_transition
  TIMEOUT:lease, unheard  refused illegal_transition
  TIMEOUT:total           TaskTimedOut > FAILED

RETRYING, attempt 1 timed out
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused illegal_transition
  START, other token      refused illegal_transition
  STEP DOWNLOADING        refused illegal_transition
  SUCCEED                 refused superseded, LateResultRecorded kept
  FAIL                    refused superseded, LateResultRecorded kept
  FAIL, not retryable     refused superseded, LateResultRecorded kept
  RELEASE                 refused illegal_transition
  RETRY                   TaskRequeued > PENDING
  RETRY by a timer        TaskRequeued > PENDING
  CANCEL                  TaskCancelled > CANCELLED
  NOTE                    TaskNoted > RETRYING
  TIMEOUT:queue           refused illegal_transition
  TIMEOUT:execution       refused illegal_transition
  TIMEOUT:step            refused illegal_transition
  TIMEOUT:lease           refused illegal_transition
  TIMEOUT:lease, unheard  refused illegal_transition
  TIMEOUT:total           TaskTimedOut > FAILED

SUCCESS
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused task_finished
  START, other token      refused task_finished
  STEP DOWNLOADING        refused task_finished
  SUCCEED                 repeated
  FAIL                    refused superseded, LateResultRecorded kept
  FAIL, not retryable     refused superseded, LateResultRecorded kept
  RELEASE                 refused task_finished
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  refused task_finished
  NOTE                    TaskNoted > SUCCESS
  TIMEOUT:queue           refused task_finished
  TIMEOUT:execution       refused task_finished
  TIMEOUT:step            refused task_finished
  TIMEOUT:lease           refused task_finished
  TIMEOUT:lease, unheard  refused task_finished
  TIMEOUT:total           refused task_finished

FAILED, not retryable
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused task_finished
  START, other token      refused task_finished
  STEP DOWNLOADING        refused task_finished
  SUCCEED                 refused superseded, LateResultRecorded kept
  FAIL                    repeated
  FAIL, not retryable     repeated
  RELEASE                 refused task_finished
  RETRY                   TaskRequeued > PENDING
  RETRY by a timer        refused illegal_transition
  CANCEL                  refused task_finished
  NOTE                    TaskNoted > FAILED
  TIMEOUT:queue           refused task_finished
  TIMEOUT:execution       refused task_finished
  TIMEOUT:step            refused task_finished
  TIMEOUT:lease           refused task_finished
  TIMEOUT:lease, unheard  refused task_finished
  TIMEOUT:total           refused task_finished

FAILED, timed out
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused task_finished
  START, other token      refused task_finished
  STEP DOWNLOADING        refused task_finished
  SUCCEED                 refused superseded, LateResultRecorded kept
  FAIL                    refused superseded, LateResultRecorded kept
  FAIL, not retryable     refused superseded, LateResultRecorded kept
  RELEASE                 refused task_finished
  RETRY                   TaskRequeued > PENDING
  RETRY by a timer        refused illegal_transition
  CANCEL                  refused task_finished
  NOTE                    TaskNoted > FAILED
  TIMEOUT:queue           refused task_finished
  TIMEOUT:execution       refused task_finished
  TIMEOUT:step            refused task_finished
  TIMEOUT:lease           refused task_finished
  TIMEOUT:lease, unheard  refused task_finished
  TIMEOUT:total           refused task_finished

FAILED, never started
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused task_finished
  START, other token      refused task_finished
  STEP DOWNLOADING        refused task_finished
  SUCCEED                 refused task_finished
  FAIL                    refused task_finished
  FAIL, not retryable     refused task_finished
  RELEASE                 refused task_finished
  RETRY                   TaskRequeued > PENDING
  RETRY by a timer        refused illegal_transition
  CANCEL                  refused task_finished
  NOTE                    TaskNoted > FAILED
  TIMEOUT:queue           refused task_finished
  TIMEOUT:execution       refused task_finished
  TIMEOUT:step            refused task_finished
  TIMEOUT:lease           refused task_finished
  TIMEOUT:lease, unheard  refused task_finished
  TIMEOUT:total           refused task_finished

CANCELLED while running
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused task_finished
  START, other token      refused task_finished
  STEP DOWNLOADING        refused task_finished
  SUCCEED                 refused superseded, LateResultRecorded kept
  FAIL                    refused superseded, LateResultRecorded kept
  FAIL, not retryable     refused superseded, LateResultRecorded kept
  RELEASE                 refused task_finished
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  repeated
  NOTE                    TaskNoted > CANCELLED
  TIMEOUT:queue           refused task_finished
  TIMEOUT:execution       refused task_finished
  TIMEOUT:step            refused task_finished
  TIMEOUT:lease           refused task_finished
  TIMEOUT:lease, unheard  refused task_finished
  TIMEOUT:total           refused task_finished

CANCELLED while waiting
  SUBMIT                  repeated
  SUBMIT, other request   refused idempotency_key_reused
  START                   refused task_finished
  START, other token      refused task_finished
  STEP DOWNLOADING        refused task_finished
  SUCCEED                 refused task_finished
  FAIL                    refused task_finished
  FAIL, not retryable     refused task_finished
  RELEASE                 refused task_finished
  RETRY                   refused illegal_transition
  RETRY by a timer        refused illegal_transition
  CANCEL                  repeated
  NOTE                    TaskNoted > CANCELLED
  TIMEOUT:queue           refused task_finished
  TIMEOUT:execution       refused task_finished
  TIMEOUT:step            refused task_finished
  TIMEOUT:lease           refused task_finished
  TIMEOUT:lease, unheard  refused task_finished
  TIMEOUT:total           refused task_finished
`

/** The table as the domain answers it. */
function answered(): string {
  const lines: string[] = []
  for (const [situation, spec] of Object.entries(SITUATIONS)) {
    lines.push('', situation)
    for (const [name, ask] of Object.entries(ASKED)) {
      if (name.endsWith('attempt before') && spec.task!.attempt === 1) continue
      const { decision, after } = spec.when(NOW, ...ask(spec.task!.attempt))
      const stored = decision.kind === 'repeated' ? undefined : decision.event?.type
      const answer =
        decision.kind === 'refused'
          ? `refused ${decision.refusal.code}${stored ? `, ${stored} kept` : ''}`
          : decision.kind === 'repeated'
            ? 'repeated'
            : `${stored} > ${after.task!.status}`
      if (decision.kind !== 'accepted' && after.task!.status !== spec.task!.status)
        throw new Error('a command that was not accepted moved the task')
      lines.push(`  ${name.padEnd(24)}${answer}`)
    }
  }
  return `${lines.join('\n').trim()}\n`
}

t.test('every status answers every trigger as the table says', async t => {
  t.equal(answered(), TABLE.trimStart())
})

t.test('the table leaves out no status and no trigger', async t => {
  const situations = Object.values(SITUATIONS).map(spec => spec.task!.status)
  for (const status of STATUSES) t.ok(situations.includes(status), status)
  for (const trigger of TRIGGERS)
    t.ok(
      Object.keys(ASKED).some(name => name.split(/[ ,]/)[0] === trigger),
      trigger,
    )
})

t.test('a finished task is left by nothing but RETRY of a failed one', async t => {
  for (const [situation, spec] of Object.entries(SITUATIONS)) {
    const { status, attempt } = spec.task!
    if (isOpenStatus(status)) continue
    for (const [name, ask] of Object.entries(ASKED)) {
      const after = spec.when(NOW, ...ask(attempt)).after.task!
      const reopened = status === 'FAILED' && name === 'RETRY'
      t.equal(after.status, reopened ? 'PENDING' : status, `${situation}, ${name}`)
    }
  }
})
