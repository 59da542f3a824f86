/** What is said of the time that is left: for each status, from little and from much that is known. */
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { type Estimate, estimate } from '../../src/domain/estimate.ts'
import { type LeaseSignals, NO_SIGNALS, positionBehind, type Signals } from '../../src/domain/signals.ts'
import type { Task } from '../../src/domain/task.ts'
import {
  SAMPLE_MAX,
  SAMPLE_MIN,
  type SucceededAttempt,
  type TypeStatistics,
  typeStatistics,
} from '../../src/domain/type-statistics.ts'
import {
  attemptFailed,
  cancelled,
  failed,
  given,
  RETRY,
  started,
  submitted,
  succeeded,
  T0,
} from './specification.ts'

const DAY_MS = 86_400_000
const PATIENT = { timeouts: { queueMs: DAY_MS, executionMs: DAY_MS, leaseMs: DAY_MS, totalMs: DAY_MS } }
/** Tried once, so that nothing but the attempt itself is ahead. */
const ONCE = { ...PATIENT, retry: { ...RETRY, maxAttempts: 1 } }
const waiting = given(submitted(0, ONCE))
const running = given(submitted(0, ONCE), started(0))
const delayed = given(submitted(0, { ...ONCE, runAt: T0 + 60_000 }))
const retrying = given(submitted(0, PATIENT), started(0), attemptFailed(10_000, { retryAt: T0 + 30_000 }))

const behind = (ahead: number): Signals => ({ ...NO_SIGNALS, position: positionBehind(ahead) })
const lease = (over: Partial<LeaseSignals>): Signals => ({
  ...NO_SIGNALS,
  lease: { heldUntil: T0 + DAY_MS, lost: false, lastHeartbeatAt: null, progress: null, ...over },
})

/** One worker that has ended one task after another, each of them waiting for the one before. */
function oneWorker(durations: readonly number[], over: Partial<SucceededAttempt> = {}): SucceededAttempt[] {
  let at = T0 - durations.reduce((sum, took) => sum + took, 0)
  return durations.map(took => {
    const startedAt = at
    at += took
    return { readyAt: startedAt - 60_000, startedAt, finishedAt: at, attempt: 1, ...over }
  })
}

const statistics = (succeeded: readonly SucceededAttempt[], waits = 0): TypeStatistics | null =>
  typeStatistics({ takenAt: T0, succeeded, waiting: waits, waitingSince: waits > 0 ? T0 - 60_000 : null })
const STEADY = statistics(oneWorker(Array.from({ length: 100 }, () => 10_000)))

/** Within a fiftieth: what is said is made of a few times only. */
function near(t: Test, says: Estimate | null, p50: number, what = `about ${p50} s`): void {
  t.ok(says && Math.abs(says.p50 - p50) <= 0.02 * p50 + 0.1, `${what}: ${says?.p50}`)
}

t.test('nothing is said where too little is known', async t => {
  const few = statistics(oneWorker(Array.from({ length: SAMPLE_MIN - 1 }, () => 10_000)))
  t.equal(few, null, 'of the type')
  t.equal(estimate(waiting.task!, behind(1), few, T0), null)
  t.equal(estimate(waiting.task!, NO_SIGNALS, STEADY, T0), null, 'it is not in the queue, or handed out')
  t.equal(estimate(waiting.task!, behind(2_000), STEADY, T0), null, 'nobody knows how many are ahead')
  t.equal(estimate(running.task!, lease({ lost: true }), STEADY, T0), null, 'its worker fell silent')
  t.equal(estimate(delayed.task!, NO_SIGNALS, statistics(oneWorker(Array(50).fill(9)), 1_001), T0), null)
})

t.test('of a final task nothing is said', async t => {
  for (const end of [succeeded(9), failed(9), cancelled(9)])
    t.equal(estimate(running.and(end).task!, NO_SIGNALS, STEADY, T0), null)
})

t.test(
  'a waiting task waits for those ahead at the pace of the workers, and then takes its own time',
  async t => {
    // One worker is half way through a task on average.
    near(t, estimate(waiting.task!, behind(0), STEADY, T0), 15)
    near(t, estimate(waiting.task!, behind(20), STEADY, T0), 215)
    const two = statistics([...oneWorker(Array(100).fill(10_000)), ...oneWorker(Array(100).fill(10_000))])
    near(t, estimate(waiting.task!, behind(20), two, T0), 113, 'with two workers half of the wait')
  },
)

t.test('workers that rest because nothing waits are not taken for slow ones', async t => {
  // Tasks of 10 s come every 100 s and wait for nobody.
  const rests = Array.from({ length: 100 }, (_, index) => {
    const startedAt = T0 - (index + 1) * 100_000
    return { readyAt: startedAt, startedAt, finishedAt: startedAt + 10_000, attempt: 1 }
  })
  near(t, estimate(waiting.task!, behind(20), statistics(rests), T0), 215)
})

t.test('workers that have gone while tasks wait make the rest slower and slower', async t => {
  const sample = oneWorker(Array(100).fill(10_000))
  const after = (ms: number) =>
    estimate(
      waiting.task!,
      behind(20),
      typeStatistics({ takenAt: T0 + ms, succeeded: sample, waiting: 30, waitingSince: T0 - 60_000 }),
      T0 + ms,
    )!.p50
  t.ok(after(3_600_000) > 3 * after(0), `${after(0)} s becomes ${after(3_600_000)} s within an hour`)
})

t.test('of a running attempt the time it has taken counts', async t => {
  const mixed = statistics(
    oneWorker(Array.from({ length: 200 }, (_, index) => (index % 2 ? 10_000 : 100_000))),
  )
  const left = (elapsed: number, signals = NO_SIGNALS) =>
    estimate(running.task!, signals, mixed, T0 + elapsed)
  t.match(left(9_000), { p90: 91 }, 'either is possible')
  t.match(left(40_000), { p50: 60, p90: 60 }, 'it is one of the long ones')
  const spread = statistics(oneWorker(Array.from({ length: 100 }, (_, index) => 1_000 * (index + 1))))
  const beyond = (elapsed: number) => estimate(running.task!, NO_SIGNALS, spread, T0 + elapsed)!
  t.ok(beyond(200_000).p50 > 0, 'longer than any before it: it goes on')
  t.ok(beyond(400_000).p90 > beyond(200_000).p90, 'and the longer it has gone on, the less is known')
})

t.test('progress that its worker reports outweighs what others took, the more the further it is', async t => {
  const at = (progress: number | null, elapsed: number) =>
    estimate(running.task!, lease({ progress, lastHeartbeatAt: T0 + elapsed }), STEADY, T0 + elapsed)!
  t.strictSame(at(0, 5_000), at(null, 5_000), 'none is none')
  t.match(at(0.5, 30_000), { p50: 15 }, 'three times as slow as others: nothing but its progress tells')
  t.match(at(0.9, 90_000), { p50: 9 })
  t.match(at(1, 90_000), { p50: 0, p90: 0 })
  t.strictSame(at(1e-9, 5_000), at(0, 5_000), 'nearly none is none')
  const { p50, p90 } = at(0.5, 5_000)
  t.match(p50, 5, 'as fast as others')
  t.ok(p90 > p50, 'nobody knows for sure')
  const stale = lease({ progress: 0.5, lastHeartbeatAt: T0 + 5_000 })
  t.match(estimate(running.task!, stale, STEADY, T0 + 8_000), { p50: 2 }, 'said a while ago')
})

t.test('a delay or a backoff comes first, then the queue of now', async t => {
  t.match(estimate(delayed.task!, NO_SIGNALS, STEADY, T0), { p50: 70 })
  t.match(estimate(delayed.task!, NO_SIGNALS, STEADY, T0 + 50_000), { p50: 20 })
  near(t, estimate(delayed.task!, behind(0), STEADY, T0 + 60_000), 15, 'its time has come')
  t.match(estimate(retrying.task!, NO_SIGNALS, STEADY, T0 + 10_000), { p50: 30 })
  const queued = statistics(oneWorker(Array(100).fill(10_000)), 20)
  near(t, estimate(retrying.task!, NO_SIGNALS, queued, T0 + 10_000), 235, '20 wait already')
})

t.test('where attempts fail, one more of them is reckoned with while the budget has one', async t => {
  const tried = [...oneWorker(Array(80).fill(10_000)), ...oneWorker(Array(20).fill(10_000), { attempt: 3 })]
  const often = statistics(tried)!
  t.match(often.again, 1 - 1 / 1.4)
  const first = given(submitted(0, PATIENT), started(0)).task!
  t.match(estimate(first, NO_SIGNALS, often, T0), { p50: 10, p90: 21 })
  t.match(estimate(running.task!, NO_SIGNALS, often, T0), { p50: 10, p90: 10 })
})

t.test('the total deadline ends every task', async t => {
  const soon = given(submitted(0, { ...ONCE, timeouts: { ...ONCE.timeouts, totalMs: 30_000 } })).task!
  t.strictSame(estimate(soon, behind(100), STEADY, T0 + 10_000), { p50: 20, p90: 20 })
})

// Whatever the sample, the task and the moment

const instant = fc.integer({ min: -1e9, max: 1e9 }).map(ms => T0 + ms)
const anAttempt = fc.record({
  readyAt: instant,
  startedAt: instant,
  finishedAt: instant,
  attempt: fc.integer({ min: 1, max: 1e6 }),
})
const aSample = fc.record({
  takenAt: instant,
  succeeded: fc.array(anAttempt, { maxLength: SAMPLE_MAX, size: 'max' }),
  waiting: fc.nat(1_001),
  waitingSince: fc.option(instant),
})
const aTask: fc.Arbitrary<Task> = fc.constantFrom(
  ...[waiting, running, delayed, retrying, given(submitted(0, PATIENT))].map(({ task }) => task!),
)
const someSignals = fc.record({
  lease: fc.option(
    fc.record({
      heldUntil: instant,
      lost: fc.boolean(),
      lastHeartbeatAt: fc.option(instant),
      progress: fc.option(fc.double({ min: 0, max: 1, noNaN: true })),
    }),
  ),
  offer: fc.constant(null),
  position: fc.option(fc.nat(1_001).map(positionBehind)),
  cancelNotice: fc.constant(null),
})

t.test('an estimate is never negative nor without end, and the p90 is not before the p50', async t => {
  let said = 0
  fc.assert(
    fc.property(aSample, aTask, someSignals, instant, (sample, task, signals, now) => {
      const says = estimate(task, signals, typeStatistics(sample), now)
      if (says === null) return true
      said++
      return says.p50 >= 0 && says.p50 <= says.p90 && Number.isFinite(says.p90)
    }),
    { numRuns: 500 },
  )
  t.ok(said > 100, `${said} were said`)
})

t.test('who stands further back is not told less', async t => {
  let said = 0
  fc.assert(
    fc.property(aSample, fc.nat(1_000), fc.nat(1_000), (sample, one, other) => {
      const type = typeStatistics(sample)
      const [near, far] = [one, other]
        .sort((a, b) => a - b)
        .map(ahead => estimate(waiting.task!, behind(ahead), type, T0))
      if (!near || !far) return true
      said++
      return near.p50 <= far.p50 && near.p90 <= far.p90
    }),
    { numRuns: 500 },
  )
  t.ok(said > 100, `${said} were compared`)
})
