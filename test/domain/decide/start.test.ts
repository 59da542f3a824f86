import t from 'tap'
import {
  attemptTimedOut,
  cancel,
  cancelled,
  given,
  release,
  requeued,
  start,
  started,
  submitted,
  succeed,
  succeeded,
  T0,
  TIMEOUTS,
  TOKEN_A,
  TOKEN_B,
} from '../specification.ts'

t.test('START hands the attempt to a worker and arms lease and execution from now', async t => {
  given(submitted())
    .when(700, start({ worker: 'worker-7' }))
    .thenAccepted(t, 'TaskStarted', {
      run: 1,
      attempt: 1,
      worker: 'worker-7',
      leaseTokenHash: TOKEN_A,
      leaseDeadlineAt: T0 + 700 + TIMEOUTS.leaseMs,
      executionDeadlineAt: T0 + 700 + TIMEOUTS.executionMs,
    })
    .thenTask(t, { status: 'PROCESSING', worker: 'worker-7', startedAt: T0 + 700, step: null })
})

t.test('START with the same token again is repeated and does not renew the lease', async t => {
  given(submitted(), started(10))
    .when(1_000, start())
    .thenRepeated(t)
    .thenTask(t, { leaseDeadlineAt: T0 + 10 + TIMEOUTS.leaseMs })
})

t.test('START with another token is refused as already_started, whoever sends it', async t => {
  given(submitted(), started(10))
    .when(20, start({ leaseTokenHash: TOKEN_B }))
    .thenRefused(t, 'already_started')
    .when(20, start({ leaseTokenHash: TOKEN_B, worker: 'worker-2' }))
    .thenRefused(t, 'already_started')
})

t.test('START with another token and a command id seen before is still refused', async t => {
  given(submitted())
    .when(10, start(), { commandId: 'start' })
    .thenAccepted(t, 'TaskStarted')
    .when(11, start({ leaseTokenHash: TOKEN_B }), { commandId: 'start' })
    .thenRefused(t, 'already_started')
})

t.test('START sent again after its attempt has ended is not told that it holds the lease', async t => {
  const begun = given(submitted()).when(10, start(), { commandId: 'start' }).thenAccepted(t, 'TaskStarted')
  begun
    .and(attemptTimedOut(2_010))
    .when(2_011, start(), { commandId: 'start' })
    .thenRefused(t, 'illegal_transition')
    .and(requeued(3_010))
    .when(3_011, start(), { commandId: 'start' })
    .thenRefused(t, 'stale_attempt')
  begun.and(succeeded(20)).when(21, start(), { commandId: 'start' }).thenRefused(t, 'task_finished')
  begun.and(cancelled(20)).when(21, start(), { commandId: 'start' }).thenRefused(t, 'task_finished')
})

t.test('START before runAt is refused as not_due and accepted at runAt', async t => {
  const delayed = given(submitted(0, { runAt: T0 + 5_000 }))
  delayed.when(4_999, start()).thenRefused(t, 'not_due')
  delayed.when(5_000, start()).thenAccepted(t, 'TaskStarted')
})

t.test('a task that went back is due at once, whatever its first runAt was', async t => {
  given(submitted(0, { runAt: T0 + 5_000 }))
    .when(5_000, start())
    .thenAccepted(t, 'TaskStarted')
    .when(5_001, release())
    .thenAccepted(t, 'TaskReleased')
    .when(5_001, start({ attempt: 2, leaseTokenHash: TOKEN_B }))
    .thenAccepted(t, 'TaskStarted', { attempt: 2 })
})

t.test('START of an attempt that is over is stale, of one to come unknown', async t => {
  const waiting = given(submitted(), started(10), attemptTimedOut(2_010), requeued(3_010))
  waiting.when(3_020, start({ attempt: 1 })).thenRefused(t, 'stale_attempt')
  waiting.when(3_020, start({ attempt: 3 })).thenRefused(t, 'unknown_attempt')
  waiting
    .when(3_020, start({ attempt: 2, leaseTokenHash: TOKEN_B }))
    .thenAccepted(t, 'TaskStarted', { attempt: 2 })
})

t.test('S28 START after SUCCEED leaves the outcome as it is', async t => {
  given(submitted(), started(10))
    .when(20, succeed())
    .thenAccepted(t, 'TaskSucceeded')
    .when(21, start())
    .thenRefused(t, 'task_finished')
    .when(22, start({ leaseTokenHash: TOKEN_B }))
    .thenRefused(t, 'task_finished')
    .thenTask(t, { status: 'SUCCESS', revision: 2 })
})

t.test('S28 SUCCEED without START is refused and the task may still start', async t => {
  given(submitted())
    .when(10, succeed())
    .thenRefused(t, 'illegal_transition')
    .when(11, start())
    .thenAccepted(t, 'TaskStarted')
})

t.test('START after CANCEL is refused as finished', async t => {
  given(submitted())
    .when(10, cancel())
    .thenAccepted(t, 'TaskCancelled')
    .when(11, start())
    .thenRefused(t, 'task_finished')
})
