/** Leases that end without one heartbeat: most likely the worker never began, so the attempt is not charged. */
import t, { type Test } from 'tap'
import { lifecycleSchema, STANDARD_LIFECYCLE } from '../../../src/domain/lifecycle.ts'
import { LIMITS } from '../../../src/domain/limits.ts'
import {
  attemptFailed,
  failed,
  given,
  requeued,
  retry,
  type Specification,
  start,
  started,
  submitted,
  T0,
  TIMEOUTS,
  TIMER,
  timeout,
} from '../specification.ts'

const running = given(submitted(), started(10))
const TWO_ATTEMPTS = { maxAttempts: 2, initialDelayMs: 1_000, factor: 2, maxDelayMs: 60_000, jitter: 0 }
const tokenOf = (attempt: number) => attempt.toString(16).padStart(64, '0')

/** Starts the task's attempt, loses its lease unheard, and waits out the backoff. */
function dieAtOnce(t: Test, spec: Specification, charged: boolean): Specification {
  const { attempt, updatedAt, runAt } = spec.as('PENDING')
  const startedAt = Math.max(updatedAt, runAt) - T0
  const lost = spec
    .when(startedAt, start({ attempt, leaseTokenHash: tokenOf(attempt), worker: `worker-${attempt}` }))
    .thenAccepted(t, 'TaskStarted')
    .when(startedAt + TIMEOUTS.leaseMs, timeout('lease', { attempt }))
  if (lost.after.task?.status === 'FAILED') return lost.thenAccepted(t, 'TaskTimedOut', { charged })
  const retrying = lost.thenAccepted(t, 'TaskAttemptTimedOut', { timer: 'lease', charged })
  const { retryAt } = retrying.as('RETRYING')
  return retrying.when(retryAt - T0, retry(), { actor: TIMER }).thenAccepted(t, 'TaskRequeued')
}

t.test('a lease that ends without one heartbeat costs no attempt and waits the first backoff', async t => {
  running
    .when(10 + TIMEOUTS.leaseMs, timeout('lease'))
    .thenAccepted(t, 'TaskAttemptTimedOut', {
      charged: false,
      lastHeartbeatAt: null,
      retryAt: T0 + 10 + TIMEOUTS.leaseMs + 1_000,
    })
    .thenTask(t, {
      status: 'RETRYING',
      attemptsCharged: 0,
      silentLeasesInRun: 1,
      lastError: { code: 'timeout_lease', message: 'its worker was never heard (limit 2000 ms)' },
    })
})

t.test('the first backoff follows also where attempts before it were charged', async t => {
  given(submitted(), started(10), attemptFailed(20), requeued(1_020), started(1_030, { attempt: 2 }))
    .when(1_030 + TIMEOUTS.leaseMs, timeout('lease', { attempt: 2 }))
    .thenAccepted(t, 'TaskAttemptTimedOut', {
      charged: false,
      retryAt: T0 + 1_030 + TIMEOUTS.leaseMs + 1_000,
    })
    .thenTask(t, { attemptsCharged: 1, silentLeasesInRun: 1 })
})

t.test('one heartbeat, and the attempt is charged', async t => {
  running
    .when(5_000, timeout('lease', { lastHeartbeatAt: T0 + 3_000, leaseEndedAt: T0 + 5_000 }))
    .thenAccepted(t, 'TaskAttemptTimedOut', { charged: true })
    .thenTask(t, { attemptsCharged: 1, silentLeasesInRun: 0 })
})

t.test('only leases are silent: the limit of an attempt is charged, heard or not', async t => {
  running
    .when(10 + TIMEOUTS.executionMs, timeout('execution'))
    .thenAccepted(t, 'TaskAttemptTimedOut', { charged: true, lastHeartbeatAt: null })
    .thenTask(t, { silentLeasesInRun: 0 })
})

t.test('a task that kills its worker each time is FAILED after 3 free and all charged attempts', async t => {
  const { maxAttempts } = TWO_ATTEMPTS
  let spec = given(submitted(0, { retry: TWO_ATTEMPTS }))
  for (let free = 1; free <= LIMITS.silentLeasesPerRun; free++) {
    spec = dieAtOnce(t, spec, false)
    t.match(spec.task, { status: 'PENDING', attemptsCharged: 0, silentLeasesInRun: free })
  }
  for (let charged = 1; charged <= maxAttempts; charged++) {
    spec = dieAtOnce(t, spec, true)
    t.match(spec.task, { attemptsCharged: charged, silentLeasesInRun: LIMITS.silentLeasesPerRun })
  }
  spec.thenTask(t, {
    status: 'FAILED',
    attempt: LIMITS.silentLeasesPerRun + maxAttempts,
    cause: 'timed_out',
    timer: 'lease',
    error: { code: 'timeout_lease', message: 'its worker fell silent (limit 2000 ms)' },
  })
})

t.test('a new run is given its free ones anew', async t => {
  let spec = given(submitted())
  for (let free = 1; free <= LIMITS.silentLeasesPerRun; free++) spec = dieAtOnce(t, spec, false)
  const { attempt, updatedAt } = spec.as('PENDING')
  const at = updatedAt - T0
  spec
    .and(started(at + 1, { attempt }), failed(at + 2, { attempt }))
    .when(at + 3, retry('repaired'))
    .thenAccepted(t, 'TaskRequeued', { run: 2 })
    .thenTask(t, { silentLeasesInRun: 0, attemptsCharged: 0 })
})

t.test('a lifecycle that gives a lost lease no other attempt fails the task, unheard or not', async t => {
  const { PROCESSING } = STANDARD_LIFECYCLE.states
  const definition = lifecycleSchema.parse({
    ...STANDARD_LIFECYCLE,
    states: {
      ...STANDARD_LIFECYCLE.states,
      PROCESSING: {
        ...PROCESSING,
        on: { ...PROCESSING?.on, 'TIMEOUT:lease': [{ to: 'FAILED', event: 'TaskTimedOut' }] },
      },
    },
  })
  running
    .under(definition)
    .when(10 + TIMEOUTS.leaseMs, timeout('lease'))
    .thenAccepted(t, 'TaskTimedOut', { charged: true })
    .thenTask(t, { status: 'FAILED', silentLeasesInRun: 0 })
})
