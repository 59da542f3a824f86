import t from 'tap'
import type { Json } from '../../../src/domain/events.ts'
import { LIMITS } from '../../../src/domain/limits.ts'
import {
  ERROR,
  fail,
  given,
  release,
  requeued,
  retry,
  STEPPED_LIFECYCLE,
  start,
  started,
  step,
  stepEntered,
  submitted,
  T0,
  TOKEN_B,
  timeout,
} from '../specification.ts'

const running = given(submitted(), started(10))
const stepping = running.under(STEPPED_LIFECYCLE)

t.test('without steps in its lifecycle a task enters any step in any order', async t => {
  running
    .when(20, step('UPLOADING'))
    .thenAccepted(t, 'TaskStepEntered', { step: 'UPLOADING', stepDeadlineAt: null })
    .when(30, step('DOWNLOADING'))
    .thenAccepted(t, 'TaskStepEntered')
    .when(40, step('UPLOADING'))
    .thenAccepted(t, 'TaskStepEntered')
    .thenTask(t, { status: 'PROCESSING', step: 'UPLOADING', stepSince: T0 + 40, stepsEntered: 3 })
})

t.test('with steps only the order of the lifecycle is allowed', async t => {
  stepping.when(20, step('GENERATING')).thenRefused(t, 'step_not_allowed')
  stepping.when(20, step('PAINTING')).thenRefused(t, 'step_not_allowed')
  const downloading = stepping.when(20, step('DOWNLOADING')).thenAccepted(t, 'TaskStepEntered')
  downloading.when(30, step('UPLOADING')).thenAccepted(t, 'TaskStepEntered')
  downloading
    .when(30, step('GENERATING'))
    .thenAccepted(t, 'TaskStepEntered')
    .when(40, step('DOWNLOADING'))
    .thenRefused(t, 'step_not_allowed')
})

t.test('each attempt begins with the first step again', async t => {
  stepping
    .and(stepEntered(20, { step: 'DOWNLOADING' }), stepEntered(30))
    .when(40, release())
    .thenAccepted(t, 'TaskReleased')
    .when(50, start({ attempt: 2, leaseTokenHash: TOKEN_B }))
    .thenAccepted(t, 'TaskStarted')
    .thenTask(t, { step: null, stepsEntered: 0, stepDeadlineAt: null })
    .when(60, step('UPLOADING', { attempt: 2, leaseTokenHash: TOKEN_B }))
    .thenRefused(t, 'step_not_allowed')
})

t.test('the step a task is in, asked again, is repeated', async t => {
  stepping
    .when(20, step('DOWNLOADING', { context: { part: 1 } }))
    .thenAccepted(t, 'TaskStepEntered')
    .when(30, step('DOWNLOADING'))
    .thenRepeated(t)
    .when(40, step('DOWNLOADING', { context: { part: 1 } }))
    .thenRepeated(t)
})

t.test('new context in the same step is kept and buys the step no time', async t => {
  stepping
    .when(20, step('DOWNLOADING'))
    .thenAccepted(t, 'TaskStepEntered', { stepDeadlineAt: T0 + 1_020 })
    .when(900, step('DOWNLOADING', { context: { part: 2 } }))
    .thenAccepted(t, 'TaskStepEntered', { stepDeadlineAt: T0 + 1_020 })
    .thenTask(t, { context: { part: 2 }, stepSince: T0 + 20 })
    .when(1_020, timeout('step'))
    .thenAccepted(t, 'TaskAttemptTimedOut', { since: T0 + 20, limitMs: 1_000 })
})

t.test('an attempt enters a bounded number of steps', async t => {
  const facts = Array.from({ length: LIMITS.stepsPerAttempt }, (_, index) =>
    stepEntered(20, { step: index % 2 ? 'B' : 'A' }),
  )
  running
    .and(...facts)
    .when(30, step('A'))
    .thenRefused(t, 'too_many_steps')
  running
    .and(...facts)
    .when(30, step('B'))
    .thenRepeated(t)
})

// Context

t.test('what STEP, FAIL or RELEASE hand over reaches the next attempt', async t => {
  const context = { page: 7 }
  const next = { attempt: 2, leaseTokenHash: TOKEN_B }
  running
    .when(20, step('GENERATING', { context }))
    .thenAccepted(t, 'TaskStepEntered')
    .when(2_010, timeout('lease'))
    .thenAccepted(t, 'TaskAttemptTimedOut')
    .and(requeued(3_010))
    .when(3_020, start(next))
    .thenAccepted(t, 'TaskStarted')
    .thenTask(t, { context })
  running
    .when(20, fail({ context }))
    .thenAccepted(t, 'TaskAttemptFailed', { content: { error: ERROR, context } })
    .and(requeued(1_020))
    .when(1_030, start(next))
    .thenAccepted(t, 'TaskStarted')
    .thenTask(t, { context })
  running
    .when(20, release({ context }))
    .thenAccepted(t, 'TaskReleased')
    .when(30, start(next))
    .thenAccepted(t, 'TaskStarted')
    .thenTask(t, { context })
})

t.test('context that is absent stays, null clears it', async t => {
  const contextAfter = (context: { context?: Json }) => [
    running.and(stepEntered(20, { content: { context: 1 } })).when(30, step('UPLOADING', context)).after,
    running.and(stepEntered(20, { content: { context: 1 } })).when(30, fail(context)).after,
    running.and(stepEntered(20, { content: { context: 1 } })).when(30, release(context)).after,
    running.and(stepEntered(20, { content: { context: 1 } })).when(30, fail({ ...context, retryable: false }))
      .after,
  ]
  for (const spec of contextAfter({})) spec.thenTask(t, { context: 1 })
  for (const spec of contextAfter({ context: null })) spec.thenTask(t, { context: null })
  for (const spec of contextAfter({ context: [2] })) spec.thenTask(t, { context: [2] })
})

t.test('a new run goes on with the context of the one that failed', async t => {
  running
    .when(20, fail({ retryable: false, context: 'half' }))
    .thenAccepted(t, 'TaskFailed')
    .when(30, retry())
    .thenAccepted(t, 'TaskRequeued')
    .thenTask(t, { context: 'half', run: 2 })
})
