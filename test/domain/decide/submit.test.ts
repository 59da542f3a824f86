import t from 'tap'
import { given, start, submit, submitted, T0, TIMEOUTS, timeout } from '../specification.ts'

t.test('SUBMIT makes a task that may start at once', async t => {
  given()
    .when(5, submit())
    .thenAccepted(t, 'TaskSubmitted', {
      runAt: T0 + 5,
      queueDeadlineAt: T0 + 5 + TIMEOUTS.queueMs,
      totalDeadlineAt: T0 + 5 + TIMEOUTS.totalMs,
    })
    .thenTask(t, { status: 'PENDING', run: 1, attempt: 1, attemptsCharged: 0, revision: 0 })
})

t.test('SUBMIT with delayMs and with runAt counts queue and total from the date it may start', async t => {
  for (const command of [submit({ delayMs: 30_000 }), submit({ runAt: T0 + 30_005 })])
    given()
      .when(5, command)
      .thenAccepted(t, 'TaskSubmitted', {
        runAt: T0 + 30_005,
        queueDeadlineAt: T0 + 30_005 + TIMEOUTS.queueMs,
        totalDeadlineAt: T0 + 30_005 + TIMEOUTS.totalMs,
      })
})

t.test('SUBMIT with a runAt in the past starts the clocks now', async t => {
  given()
    .when(5, submit({ runAt: T0 - 1_000_000 }))
    .thenAccepted(t, 'TaskSubmitted', { runAt: T0 + 5 })
})

t.test('S63 a delay of zero is no delay', async t => {
  given()
    .when(5, submit({ delayMs: 0 }))
    .thenAccepted(t, 'TaskSubmitted', { runAt: T0 + 5 })
    .when(5, start())
    .thenAccepted(t, 'TaskStarted')
})

t.test('the same request asked again is repeated, in every later state', async t => {
  given()
    .when(0, submit())
    .thenAccepted(t, 'TaskSubmitted')
    .when(1, submit())
    .thenRepeated(t)
    .when(2, start())
    .thenAccepted(t, 'TaskStarted')
    .when(3, submit())
    .thenRepeated(t)
})

t.test('another request under the same key is refused, even with the same command id', async t => {
  given(submitted())
    .when(1, submit({ fingerprint: 'e'.repeat(64) }))
    .thenRefused(t, 'idempotency_key_reused')
    .when(1, submit({ fingerprint: 'e'.repeat(64) }), { commandId: 'given-0' })
    .thenRefused(t, 'idempotency_key_reused')
})

t.test('S02 a task that nobody starts times out by its queue timer', async t => {
  const waiting = given(submitted())
  waiting.when(TIMEOUTS.queueMs - 1, timeout('queue')).thenRefused(t, 'not_due')
  waiting
    .when(TIMEOUTS.queueMs, timeout('queue'))
    .thenAccepted(t, 'TaskTimedOut', {
      timer: 'queue',
      from: 'PENDING',
      since: T0,
      limitMs: TIMEOUTS.queueMs,
      charged: false,
    })
    .thenTask(t, { status: 'FAILED', cause: 'timed_out', timer: 'queue', startedAt: null })
})

t.test('whatever is asked of a task that does not exist is not_found', async t => {
  given().when(1, start()).thenRefused(t, 'not_found')
})
