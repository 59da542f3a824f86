import t from 'tap'
import type { RecordedEvent } from '../../src/domain/events.ts'
import { BrokenStreamError, evolve, fold, timeoutError } from '../../src/domain/evolve.ts'
import { TIMEOUT_TIMERS } from '../../src/domain/lifecycle.ts'
import {
  attemptFailed,
  cancelled,
  type Fact,
  failed,
  foldAgain,
  given,
  lateResult,
  released,
  requeued,
  type Specification,
  started,
  stepEntered,
  submitted,
  succeeded,
  T0,
  TASK_ID,
  TIMEOUTS,
  timedOut,
} from './specification.ts'

const waiting = given(submitted())
const running = waiting.and(started(10))

t.test('a stream without events is no task', async t => {
  t.equal(fold(TASK_ID, null, []), null)
})

t.test('folding in one go and in two parts gives the same task', async t => {
  const spec = running.and(attemptFailed(20), requeued(1_020), started(1_030, { attempt: 2 }))
  for (let cut = 0; cut <= spec.recorded.length; cut++) {
    const first = fold(TASK_ID, null, spec.recorded.slice(0, cut))
    t.strictSame(fold(TASK_ID, first, spec.recorded.slice(cut)), foldAgain(spec))
  }
})

t.test('the fold leaves the task it started from as it was', async t => {
  const before = JSON.stringify(running.task)
  running.and(attemptFailed(20))
  t.equal(JSON.stringify(running.task), before)
})

t.test('no status inherits the dates of another', async t => {
  const finished = running.and(stepEntered(20, { stepDeadlineAt: T0 + 500 }), succeeded(30)).task!
  for (const field of ['leaseTokenHash', 'leaseDeadlineAt', 'executionDeadlineAt', 'step', 'queueDeadlineAt'])
    t.equal(field in finished, false, field)
  const retrying = running.and(attemptFailed(20)).task!
  t.equal('leaseTokenHash' in retrying, false)
  const again = running.and(attemptFailed(20), requeued(1_020)).task!
  for (const field of ['retryAt', 'retryingSince', 'worker', 'startedAt'])
    t.equal(field in again, false, field)
})

t.test('the attempt rises each time a started task goes back, and only then', async t => {
  t.equal(running.and(released(20)).task?.attempt, 2)
  t.equal(running.and(attemptFailed(20)).task?.attempt, 1)
  t.equal(running.and(attemptFailed(20), requeued(1_020)).task?.attempt, 2)
  t.equal(running.and(failed(20), requeued(30, { run: 2 })).task?.attempt, 2)
})

t.test('an attempt is remembered with its worker, token and end', async t => {
  const ends: [Fact, string][] = [
    [succeeded(20), 'succeeded'],
    [failed(20), 'failed'],
    [attemptFailed(20), 'failed'],
    [timedOut(2_010), 'timed_out'],
    [released(20), 'released'],
    [cancelled(20), 'cancelled'],
  ]
  for (const [fact, ended] of ends)
    t.strictSame(running.and(fact).task?.endedAttempts, [
      { attempt: 1, worker: 'worker-1', leaseTokenHash: 'a'.repeat(64), ended, lateResultRecorded: false },
    ])
})

t.test('a task cancelled while it waited has no attempt to remember', async t => {
  t.strictSame(waiting.and(cancelled(20)).task?.endedAttempts, [])
})

t.test('a success forgets the error of an earlier attempt', async t => {
  const second = running.and(attemptFailed(20), requeued(1_020), started(1_030, { attempt: 2 }))
  t.equal(second.task?.lastError?.code, 'out_of_memory')
  t.equal(second.and(succeeded(1_040, { attempt: 2 })).task?.lastError, null)
})

t.test('every timer has an error that people understand', async t => {
  for (const timer of TIMEOUT_TIMERS) {
    const error = timeoutError(timer, 1_500)
    t.equal(error.code, `timeout_${timer}`)
    t.match(error.message, /1500 ms/)
  }
  t.match(running.and(timedOut(2_010)).task, { error: timeoutError('lease', TIMEOUTS.leaseMs) })
})

// Streams that no decision of ours has written

/** The stream, then a fact that does not fit it, as an error's message. */
function brokenBy(spec: Specification, fact: Fact, over: Partial<RecordedEvent> = {}): string {
  const last = spec.recorded.at(-1)
  const recorded: RecordedEvent = {
    revision: spec.recorded.length,
    hash: '9'.repeat(64),
    metadata: {
      at: T0 + fact.at,
      actor: fact.actor,
      source: 'http',
      commandId: 'broken',
      correlationId: null,
      causationId: null,
      trace: null,
      prevHash: last?.hash ?? null,
    },
    event: fact.event,
    ...over,
  }
  try {
    evolve(TASK_ID, spec.task, recorded)
  } catch (error) {
    if (error instanceof BrokenStreamError) return error.message
    throw error
  }
  return 'it was folded'
}

t.test('a stream with a gap, a repetition or another chain of hashes is broken', async t => {
  t.match(brokenBy(running, succeeded(20), { revision: 3 }), /expected revision 2/)
  t.match(brokenBy(running, succeeded(20), { revision: 1 }), /expected revision 2/)
  const { metadata } = running.recorded[1]!
  t.match(brokenBy(running, succeeded(20), { metadata }), /hash chain/)
  t.match(brokenBy(given(), submitted(), { metadata }), /hash chain/)
})

t.test('a stream begins with TaskSubmitted and has no second one', async t => {
  t.match(brokenBy(given(), started(10)), /TaskStarted before TaskSubmitted/)
  t.match(brokenBy(running, submitted(20)), /not the first event/)
})

t.test('an event that cannot follow in its status breaks the stream', async t => {
  const ends = { SUCCESS: running.and(succeeded(20)), CANCELLED: running.and(cancelled(20)) }
  for (const [status, spec] of Object.entries(ends))
    for (const fact of [
      started(30),
      stepEntered(30),
      succeeded(30),
      failed(30),
      timedOut(30),
      released(30),
      requeued(30),
      cancelled(30),
    ])
      t.match(brokenBy(spec, fact), `${fact.event.type} while ${status}`)
  t.match(brokenBy(running, started(20)), /TaskStarted while PROCESSING/)
  t.match(brokenBy(waiting, succeeded(20)), /TaskSucceeded while PENDING/)
  t.match(brokenBy(waiting, requeued(20)), /TaskRequeued while PENDING/)
  t.match(brokenBy(running.and(failed(20)), cancelled(30)), /TaskCancelled while FAILED/)
})

t.test('an event of another attempt breaks the stream, a late result does not', async t => {
  t.match(brokenBy(running, succeeded(20, { attempt: 2 })), /attempt 2 while at 1/)
  const second = running.and(released(20))
  t.match(brokenBy(second, started(30, { attempt: 1 })), /attempt 1 while at 2/)
  t.equal(brokenBy(second, lateResult(30)), 'it was folded')
})
