import t from 'tap'
import { lifecycleSchema, STANDARD_LIFECYCLE } from '../../../src/domain/lifecycle.ts'
import {
  attemptFailed,
  attemptTimedOut,
  given,
  release,
  requeued,
  retry,
  STEPPED_LIFECYCLE,
  start,
  started,
  step,
  submitted,
  succeeded,
  T0,
  TIMEOUTS,
  TIMER,
  TOKEN_B,
  timeout,
} from '../specification.ts'

const running = given(submitted(), started(10))
const second = { attempt: 2, leaseTokenHash: TOKEN_B }

t.test('a timer that fires early is refused as not_due, at its date accepted', async t => {
  const dates = { execution: 10 + TIMEOUTS.executionMs, lease: 10 + TIMEOUTS.leaseMs } as const
  for (const timer of ['execution', 'lease'] as const) {
    running.when(dates[timer] - 1, timeout(timer)).thenRefused(t, 'not_due')
    running.when(dates[timer], timeout(timer)).thenAccepted(t, 'TaskAttemptTimedOut', {
      timer,
      from: 'PROCESSING',
      since: T0 + 10,
      limitMs: dates[timer] - 10,
      charged: timer === 'execution',
      retryAt: T0 + dates[timer] + 1_000,
    })
  }
})

t.test('a lost lease is judged by the lease that the heartbeats earned', async t => {
  const leaseEndedAt = T0 + 8_000
  const command = timeout('lease', { lastHeartbeatAt: T0 + 6_000, leaseEndedAt })
  running.when(7_999, command).thenRefused(t, 'not_due')
  running.when(8_000, command).thenAccepted(t, 'TaskAttemptTimedOut', {
    timer: 'lease',
    since: T0 + 6_000,
    limitMs: 2_000,
    lastHeartbeatAt: T0 + 6_000,
  })
})

t.test('the total timer ends any open status, without a further attempt', async t => {
  const open = {
    PENDING: given(submitted()),
    PROCESSING: running,
    RETRYING: running.and(attemptFailed(20)),
  }
  for (const [from, spec] of Object.entries(open)) {
    spec.when(TIMEOUTS.totalMs - 1, timeout('total')).thenRefused(t, 'not_due')
    spec
      .when(TIMEOUTS.totalMs, timeout('total'))
      .thenAccepted(t, 'TaskTimedOut', { timer: 'total', from, since: T0, limitMs: TIMEOUTS.totalMs })
      .thenTask(t, { status: 'FAILED', timer: 'total', attemptsCharged: from === 'PENDING' ? 0 : 1 })
  }
})

t.test('total is counted from runAt and not from the submit', async t => {
  const delayed = given(submitted(0, { runAt: T0 + 50_000 }))
  delayed.when(50_000 + TIMEOUTS.totalMs - 1, timeout('total')).thenRefused(t, 'not_due')
  delayed
    .when(50_000 + TIMEOUTS.totalMs, timeout('total'))
    .thenAccepted(t, 'TaskTimedOut', { since: T0 + 50_000, limitMs: TIMEOUTS.totalMs })
})

t.test('queue is counted from runAt and not from the submit', async t => {
  given(submitted(0, { runAt: T0 + 50_000 }))
    .when(50_000 + TIMEOUTS.queueMs, timeout('queue'))
    .thenAccepted(t, 'TaskTimedOut', { since: T0 + 50_000, limitMs: TIMEOUTS.queueMs })
})

t.test('queue is counted anew each time a task goes back', async t => {
  given(submitted(), started(10))
    .when(59_000, release())
    .thenAccepted(t, 'TaskReleased', { queueDeadlineAt: T0 + 59_000 + TIMEOUTS.queueMs })
    .when(60_000, timeout('queue'))
    .thenRefused(t, 'not_due')
    .when(59_000 + TIMEOUTS.queueMs, timeout('queue'))
    .thenAccepted(t, 'TaskTimedOut', { since: T0 + 59_000, limitMs: TIMEOUTS.queueMs })
})

t.test('S26 a silent second attempt times out as well, counted from its own START', async t => {
  const again = running
    .when(10 + TIMEOUTS.executionMs, timeout('execution'))
    .thenAccepted(t, 'TaskAttemptTimedOut')
    .when(11_010, retry(), { actor: TIMER })
    .thenAccepted(t, 'TaskRequeued')
    .when(15_000, start(second))
    .thenAccepted(t, 'TaskStarted', { executionDeadlineAt: T0 + 15_000 + TIMEOUTS.executionMs })
  again
    .when(15_000 + TIMEOUTS.executionMs - 1, timeout('execution', { attempt: 2 }))
    .thenRefused(t, 'not_due')
  again
    .when(15_000 + TIMEOUTS.executionMs, timeout('execution', { attempt: 2 }))
    .thenAccepted(t, 'TaskAttemptTimedOut', { since: T0 + 15_000, limitMs: TIMEOUTS.executionMs })
    .thenTask(t, { status: 'RETRYING', attemptsCharged: 2 })
})

t.test('a timer of another attempt is refused, as is an attempt timer that names none', async t => {
  const again = running.and(attemptTimedOut(2_010), requeued(3_010), started(3_020, second))
  for (const timer of ['execution', 'lease', 'step'] as const) {
    again.when(900_000, timeout(timer, { attempt: 1 })).thenRefused(t, 'stale_attempt')
    again.when(900_000, timeout(timer, { attempt: 3 })).thenRefused(t, 'unknown_attempt')
    again.when(900_000, timeout(timer, { attempt: null })).thenRefused(t, 'unknown_attempt')
  }
})

t.test('a timer asked twice stores one event, with the same command id as a repetition', async t => {
  running
    .when(2_010, timeout('lease'), { commandId: 'lease-1' })
    .thenAccepted(t, 'TaskAttemptTimedOut')
    .when(2_011, timeout('lease'), { commandId: 'lease-1' })
    .thenRepeated(t)
    .when(2_012, timeout('lease'))
    .thenRefused(t, 'illegal_transition')
})

t.test('a timer that was beaten by a result finds the task finished', async t => {
  running.and(succeeded(20)).when(900_000, timeout('lease')).thenRefused(t, 'task_finished')
})

t.test('a timer asks RETRY only when the backoff is over, a person at any time', async t => {
  const waiting = running.and(attemptFailed(20))
  waiting.when(1_019, retry(), { actor: TIMER }).thenRefused(t, 'not_due')
  waiting.when(1_020, retry(), { actor: TIMER }).thenAccepted(t, 'TaskRequeued', { cause: 'backoff_over' })
  waiting.when(21, retry('now')).thenAccepted(t, 'TaskRequeued', { cause: 'asked', run: 1 })
})

t.test('a timeout counts as retryable where a lifecycle asks may_retry of it', async t => {
  const { PROCESSING } = STANDARD_LIFECYCLE.states
  const definition = lifecycleSchema.parse({
    ...STANDARD_LIFECYCLE,
    states: {
      ...STANDARD_LIFECYCLE.states,
      PROCESSING: {
        ...PROCESSING,
        on: {
          ...PROCESSING?.on,
          'TIMEOUT:lease': [
            { to: 'RETRYING', event: 'TaskAttemptTimedOut', guard: 'may_retry' },
            { to: 'FAILED', event: 'TaskTimedOut' },
          ],
        },
      },
    },
  })
  running.under(definition).when(2_010, timeout('lease')).thenAccepted(t, 'TaskAttemptTimedOut')
})

t.test('the step timer is armed only in a step with a limit', async t => {
  const stepping = running.under(STEPPED_LIFECYCLE)
  stepping.when(900_000, timeout('step')).thenRefused(t, 'not_due')
  const limited = stepping
    .when(100, step('DOWNLOADING'))
    .thenAccepted(t, 'TaskStepEntered', { stepDeadlineAt: T0 + 1_100 })
  limited.when(1_099, timeout('step')).thenRefused(t, 'not_due')
  limited
    .when(1_100, timeout('step'))
    .thenAccepted(t, 'TaskAttemptTimedOut', { timer: 'step', since: T0 + 100, limitMs: 1_000 })
    .thenTask(t, { status: 'RETRYING', lastError: { code: 'timeout_step' } })
  limited
    .when(500, step('GENERATING'))
    .thenAccepted(t, 'TaskStepEntered', { stepDeadlineAt: null })
    .when(900_000, timeout('step'))
    .thenRefused(t, 'not_due')
})
