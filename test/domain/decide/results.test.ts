import t from 'tap'
import { LIMITS } from '../../../src/domain/limits.ts'
import {
  attemptFailed,
  attemptTimedOut,
  cancel,
  cancelled,
  ERROR,
  fail,
  given,
  release,
  released,
  requeued,
  retry,
  type Specification,
  start,
  started,
  step,
  submitted,
  succeed,
  T0,
  TIMEOUTS,
  TIMER,
  TOKEN_B,
  timedOut,
  timeout,
} from '../specification.ts'

const tokenOf = (attempt: number) => attempt.toString(16).padStart(64, '0')
const fenceOf = (attempt: number) => ({ attempt, leaseTokenHash: tokenOf(attempt) })
const running = given(submitted(), started(10))

t.test('SUCCEED ends the run and keeps result and address', async t => {
  running
    .when(20, succeed({ result: { pixels: 7 }, resultUrl: 'https://example.org/7.png' }))
    .thenAccepted(t, 'TaskSucceeded', { run: 1, attempt: 1 })
    .thenTask(t, {
      status: 'SUCCESS',
      result: { pixels: 7 },
      resultUrl: 'https://example.org/7.png',
      startedAt: T0 + 10,
      finishedAt: T0 + 20,
      lastError: null,
    })
})

t.test('a result of null is a result', async t => {
  running
    .when(20, succeed({ result: null }))
    .thenAccepted(t, 'TaskSucceeded')
    .thenTask(t, { status: 'SUCCESS', result: null })
})

t.test('SUCCEED twice is repeated; the first result stands', async t => {
  running
    .when(20, succeed({ result: 1 }))
    .thenAccepted(t, 'TaskSucceeded')
    .when(21, succeed({ result: 2 }))
    .thenRepeated(t)
    .thenTask(t, { result: 1, revision: 2 })
})

t.test('FAIL twice is repeated, while RETRYING, once requeued and when it was the last', async t => {
  running
    .when(20, fail())
    .thenAccepted(t, 'TaskAttemptFailed')
    .when(21, fail())
    .thenRepeated(t)
    .when(1_020, retry(), { actor: TIMER })
    .thenAccepted(t, 'TaskRequeued')
    .when(1_021, fail())
    .thenRepeated(t)
  running
    .when(20, fail({ retryable: false }))
    .thenAccepted(t, 'TaskFailed')
    .when(21, fail({ retryable: false }))
    .thenRepeated(t)
})

t.test('results of another token, an old attempt or one to come are fenced off', async t => {
  const second = given(
    submitted(),
    started(10),
    attemptTimedOut(2_010),
    requeued(3_010),
    started(3_020, { attempt: 2, leaseTokenHash: TOKEN_B }),
  )
  for (const command of [succeed, fail]) {
    running.when(20, command({ leaseTokenHash: TOKEN_B })).thenRefused(t, 'not_lease_holder')
    running.when(20, command({ attempt: 2 })).thenRefused(t, 'unknown_attempt')
    second.when(3_030, command({ attempt: 2 })).thenRefused(t, 'not_lease_holder')
    second.when(3_030, command({ attempt: 1, leaseTokenHash: TOKEN_B })).thenRefused(t, 'not_lease_holder')
  }
  second.when(3_030, step('GENERATING')).thenRefused(t, 'stale_attempt')
  second.when(3_030, release()).thenRefused(t, 'stale_attempt')
  running.when(20, step('GENERATING', { leaseTokenHash: TOKEN_B })).thenRefused(t, 'not_lease_holder')
  running.when(20, step('GENERATING', { attempt: 2 })).thenRefused(t, 'unknown_attempt')
  running.when(20, release({ leaseTokenHash: TOKEN_B })).thenRefused(t, 'not_lease_holder')
  running.when(20, release({ attempt: 2 })).thenRefused(t, 'unknown_attempt')
})

// Retries

t.test('FAIL waits as its policy says, longer each time', async t => {
  running
    .when(20, fail())
    .thenAccepted(t, 'TaskAttemptFailed', { retryAt: T0 + 1_020, charged: true })
    .thenTask(t, { status: 'RETRYING', attemptsCharged: 1, lastError: ERROR, attempt: 1 })
    .when(1_020, retry(), { actor: TIMER })
    .thenAccepted(t, 'TaskRequeued', { run: 1, cause: 'backoff_over' })
    .when(1_030, start(fenceOf(2)))
    .thenAccepted(t, 'TaskStarted', { attempt: 2 })
    .when(1_040, fail(fenceOf(2)))
    .thenAccepted(t, 'TaskAttemptFailed', { retryAt: T0 + 3_040 })
})

t.test('the last attempt allowed fails for good, by FAIL and by a timer', async t => {
  const last = given(
    submitted(),
    started(10),
    attemptFailed(20),
    requeued(1_020),
    started(1_030, fenceOf(2)),
    attemptTimedOut(3_030, { attempt: 2 }),
    requeued(5_030),
    started(5_040, fenceOf(3)),
  ).thenTask(t, { attemptsCharged: 2 })
  last
    .when(5_050, fail(fenceOf(3)))
    .thenAccepted(t, 'TaskFailed', { cause: 'no_attempts_left', charged: true })
    .thenTask(t, { status: 'FAILED', attemptsCharged: 3, error: ERROR, timer: null })
  last
    .when(7_040, timeout('lease', { attempt: 3, lastHeartbeatAt: T0 + 5_050 }))
    .thenAccepted(t, 'TaskTimedOut', { timer: 'lease', charged: true })
    .thenTask(t, { status: 'FAILED', attemptsCharged: 3, cause: 'timed_out', timer: 'lease' })
})

t.test('an error that is not retryable fails the task at once', async t => {
  running
    .when(20, fail({ retryable: false, retryAfterMs: 10 }))
    .thenAccepted(t, 'TaskFailed', { cause: 'not_retryable' })
    .thenTask(t, { status: 'FAILED', attemptsCharged: 1 })
})

t.test('retryAfterMs takes the place of the policy, zero included', async t => {
  running.when(20, fail({ retryAfterMs: 77 })).thenAccepted(t, 'TaskAttemptFailed', { retryAt: T0 + 97 })
  running
    .when(20, fail({ retryAfterMs: 0 }))
    .thenAccepted(t, 'TaskAttemptFailed', { retryAt: T0 + 20 })
    .when(20, retry(), { actor: TIMER })
    .thenAccepted(t, 'TaskRequeued')
})

t.test('jitter shortens the wait by the random number given', async t => {
  const jittery = given(
    submitted(0, {
      retry: { maxAttempts: 3, initialDelayMs: 1_000, factor: 2, maxDelayMs: 60_000, jitter: 0.5 },
    }),
    started(10),
  )
  jittery.when(20, fail(), { random: 0 }).thenAccepted(t, 'TaskAttemptFailed', { retryAt: T0 + 1_020 })
  jittery.when(20, fail(), { random: 0.5 }).thenAccepted(t, 'TaskAttemptFailed', { retryAt: T0 + 770 })
})

// Results that come too late

t.test('S03 a late failure of an old attempt leaves the live one untouched', async t => {
  const live = given(
    submitted(),
    started(10),
    attemptTimedOut(2_010),
    requeued(3_010),
    started(3_020, { attempt: 2, leaseTokenHash: TOKEN_B }),
  )
  const before = live.as('PROCESSING')
  const after = live
    .when(3_030, fail({ error: { code: 'late', message: 'late' } }))
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .as('PROCESSING')
  t.strictSame(after, {
    ...before,
    revision: before.revision + 1,
    hash: after.hash,
    updatedAt: T0 + 3_030,
    lateResults: 1,
    endedAttempts: [{ ...before.endedAttempts[0], lateResultRecorded: true }],
  })
  t.equal(after.lastError?.code, 'timeout_lease')
})

t.test('S19 success after the timeout stays FAILED; the result is kept as evidence', async t => {
  given(
    submitted(0, {
      timeouts: { ...TIMEOUTS, executionMs: 500 },
      retry: { maxAttempts: 1, initialDelayMs: 0, factor: 1, maxDelayMs: 0, jitter: 0 },
    }),
  )
    .when(0, start())
    .thenAccepted(t, 'TaskStarted')
    .when(500, timeout('execution'))
    .thenAccepted(t, 'TaskTimedOut', { timer: 'execution', limitMs: 500 })
    .when(800, succeed({ result: 'late' }))
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .thenTask(t, { status: 'FAILED', cause: 'timed_out', timer: 'execution', lateResults: 1 })
})

t.test('S20 a result that is in the log first wins over the timer, even past the deadline', async t => {
  running
    .when(10 + TIMEOUTS.executionMs + 1, succeed())
    .thenAccepted(t, 'TaskSucceeded')
    .when(10 + TIMEOUTS.executionMs + 2, timeout('execution'))
    .thenRefused(t, 'task_finished')
})

t.test('S31 a result for an attempt in backoff is superseded, and cancel works at once', async t => {
  running
    .when(20, fail({ retryAfterMs: 3_600_000 }))
    .thenAccepted(t, 'TaskAttemptFailed')
    .when(30, succeed())
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .thenTask(t, { status: 'RETRYING', retryAt: T0 + 3_600_020 })
    .when(31, cancel())
    .thenAccepted(t, 'TaskCancelled')
    .thenTask(t, { status: 'CANCELLED' })
})

t.test('S21 a cancelled task that reports FAIL gets no second attempt', async t => {
  running
    .when(20, cancel())
    .thenAccepted(t, 'TaskCancelled')
    .when(30, fail())
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .thenTask(t, { status: 'CANCELLED', attempt: 1, lastError: null })
    .when(5_000, retry(), { actor: TIMER })
    .thenRefused(t, 'illegal_transition')
    .when(5_000, start({ attempt: 2 }))
    .thenRefused(t, 'unknown_attempt')
})

t.test('S23 after CANCELLED nothing changes the state', async t => {
  const finished = given(submitted(), started(10), cancelled(20))
  finished
    .when(30, succeed())
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .thenTask(t, { status: 'CANCELLED' })
    .when(31, step('UPLOADING'))
    .thenRefused(t, 'task_finished')
    .when(32, release())
    .thenRefused(t, 'task_finished')
    .when(33, retry())
    .thenRefused(t, 'illegal_transition')
    .when(1_000_000, timeout('total'))
    .thenRefused(t, 'task_finished')
    .thenTask(t, { status: 'CANCELLED', reason: 'no longer needed' })
})

t.test('a late result is kept once per attempt; the same refusal answers the rest', async t => {
  const over = given(submitted(), started(10), timedOut(2_010))
  over
    .when(2_020, succeed(), { commandId: 'late' })
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .when(2_021, succeed(), { commandId: 'late' })
    .thenRefused(t, 'superseded')
    .when(2_022, succeed())
    .thenRefused(t, 'superseded')
    .when(2_023, fail())
    .thenRefused(t, 'superseded')
    .thenTask(t, { lateResults: 1, revision: 3 })
})

t.test('a late result is kept with all that the worker said', async t => {
  const over = given(submitted(), started(10), cancelled(20))
  const kept = (outcome: ReturnType<typeof over.when>) =>
    outcome.decision.kind === 'refused' ? outcome.decision.event?.data : undefined
  t.strictSame(kept(over.when(30, succeed({ result: 7, resultUrl: 'https://example.org/7' }))), {
    attempt: 1,
    outcome: 'succeeded',
    content: { result: 7, resultUrl: 'https://example.org/7' },
  })
  t.strictSame(kept(over.when(30, fail())), { attempt: 1, outcome: 'failed', content: { error: ERROR } })
})

t.test('a late result counts only for who held the lease', async t => {
  given(submitted(), started(10), timedOut(2_010))
    .when(2_020, succeed({ leaseTokenHash: TOKEN_B }))
    .thenRefused(t, 'not_lease_holder')
})

t.test('the contrary of what ended an attempt is late too', async t => {
  running
    .when(20, succeed())
    .thenAccepted(t, 'TaskSucceeded')
    .when(21, fail())
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .thenTask(t, { status: 'SUCCESS' })
})

/** A task whose attempts 1 to n were started and timed out; the budget is large enough for all of them. */
function timedOutAttempts(count: number): Specification {
  let spec = given(
    submitted(0, {
      retry: { maxAttempts: 100, initialDelayMs: 0, factor: 1, maxDelayMs: 0, jitter: 0 },
    }),
  )
  for (let attempt = 1; attempt <= count; attempt++)
    spec = spec.and(
      started(attempt * 10, fenceOf(attempt)),
      attemptTimedOut(attempt * 10 + 1, { attempt }),
      requeued(attempt * 10 + 2),
    )
  return spec
}

t.test('late results are kept for at most five attempts of a task', async t => {
  let spec = timedOutAttempts(LIMITS.lateResultsPerTask)
  for (let attempt = 1; attempt <= LIMITS.lateResultsPerTask; attempt++)
    spec = spec.when(500, succeed(fenceOf(attempt))).thenRefused(t, 'superseded', 'LateResultRecorded')
  spec
    .and(started(600, fenceOf(6)), attemptTimedOut(601, { attempt: 6 }))
    .when(602, succeed(fenceOf(6)))
    .thenRefused(t, 'superseded')
    .thenTask(t, { lateResults: LIMITS.lateResultsPerTask })
})

t.test('only the last attempts are remembered; results of older ones are stale', async t => {
  const spec = timedOutAttempts(LIMITS.rememberedAttempts + 2)
  const remembered = spec.as('PENDING').endedAttempts.map(({ attempt }) => attempt)
  t.strictSame(remembered, [3, 4, 5, 6, 7])
  spec.when(500, succeed(fenceOf(2))).thenRefused(t, 'stale_attempt')
  spec.when(500, succeed(fenceOf(3))).thenRefused(t, 'superseded', 'LateResultRecorded')
})

t.test('a result after the attempt was handed back is late', async t => {
  given(submitted(), started(10), released(20))
    .when(30, succeed())
    .thenRefused(t, 'superseded', 'LateResultRecorded')
    .thenTask(t, { status: 'PENDING', attempt: 2 })
})

t.test('S65 only the instant of the decision counts, whatever a worker believes', async t => {
  running
    .when(2_010, timeout('lease', { lastHeartbeatAt: T0 + 300_000, leaseEndedAt: T0 + 302_000 }))
    .thenRefused(t, 'not_due')
})
