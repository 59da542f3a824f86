/** What people are told will happen, and that it is what happens: every status, every timer. */
import t from 'tap'
import { deadlinesOf } from '../../src/domain/deadlines.ts'
import { effectOf, type Forecast, forecast } from '../../src/domain/forecast.ts'
import { type LifecycleDefinition, STANDARD_LIFECYCLE, type Timer } from '../../src/domain/lifecycle.ts'
import { LIMITS } from '../../src/domain/limits.ts'
import { NO_SIGNALS, type Signals } from '../../src/domain/signals.ts'
import { isOpen, type OpenTask } from '../../src/domain/task.ts'
import {
  attemptFailed,
  attemptTimedOut,
  cancelled,
  failed,
  given,
  RETRY,
  released,
  requeued,
  retry,
  type Specification,
  STEPPED_LIFECYCLE,
  started,
  stepEntered,
  submitted,
  succeeded,
  T0,
  TIMEOUTS,
  TIMER,
  timeout,
} from './specification.ts'

const lease = (heldUntil: number, heard: number | null): Signals => ({
  ...NO_SIGNALS,
  lease: {
    heldUntil: T0 + heldUntil,
    lost: false,
    lastHeartbeatAt: heard === null ? null : T0 + heard,
    progress: null,
  },
})
const HEARD = lease(5_000, 3_000)
const SILENT = lease(2_010, null)

const waiting = given(submitted())
const running = given(submitted(), started(10))
const once = given(submitted(0, { retry: { ...RETRY, maxAttempts: 1 } }), started(10))
const fourth = [1, 2, 3].reduce(
  (spec, attempt) =>
    spec.and(
      attemptTimedOut(attempt * 10_000, { attempt, charged: false }),
      requeued(attempt * 10_000 + 1_000),
      started(attempt * 10_000 + 2_000, { attempt: attempt + 1 }),
    ),
  running,
)
const stepping = running
  .under(STEPPED_LIFECYCLE)
  .and(stepEntered(20, { step: 'DOWNLOADING', stepDeadlineAt: T0 + 1_020 }))
const atOnce = given(
  submitted(0, { retry: { maxAttempts: 3, initialDelayMs: 0, factor: 1, maxDelayMs: 0, jitter: 0 } }),
  started(10),
)
const delayed = given(submitted(0, { runAt: T0 + 5_000 }))
const backingOff = running.and(attemptFailed(20))

/** The situation, one timer of it, and what that will do. */
const EFFECTS: [spec: Specification, timer: Timer | 'not_before', Signals, to: string, effect: string][] = [
  [delayed, 'not_before', NO_SIGNALS, 'PENDING', 'it may be claimed from then on'],
  [waiting, 'queue', NO_SIGNALS, 'FAILED', 'no worker has started it in time; the task fails'],
  [waiting, 'total', NO_SIGNALS, 'FAILED', 'the task as a whole has taken too long; the task fails'],
  [
    running,
    'execution',
    HEARD,
    'RETRYING',
    'attempt 1 of 3 times out; the task is tried again after at most 1.0 s',
  ],
  [
    running.and(attemptFailed(20), requeued(1_020), started(1_030, { attempt: 2 })),
    'execution',
    NO_SIGNALS,
    'RETRYING',
    'attempt 2 of 3 times out; the task is tried again after at most 2.0 s',
  ],
  [atOnce, 'execution', HEARD, 'RETRYING', 'attempt 1 of 3 times out; the task is tried again at once'],
  [once, 'execution', HEARD, 'FAILED', 'attempt 1 of 1 times out; the task fails, for no attempt is left'],
  [
    stepping,
    'step',
    HEARD,
    'RETRYING',
    'attempt 1 of 3 times out in step DOWNLOADING; the task is tried again after at most 1.0 s',
  ],
  [
    running,
    'lease',
    HEARD,
    'RETRYING',
    'attempt 1 of 3 is lost unless its worker is heard before; the task is tried again after at most 1.0 s',
  ],
  [
    running,
    'lease',
    SILENT,
    'RETRYING',
    'attempt 1 of 3 is lost unless its worker is heard before; the task is tried again after at most 1.0 s, not charged (silent lease 1 of 3)',
  ],
  [
    once,
    'lease',
    SILENT,
    'RETRYING',
    'attempt 1 of 1 is lost unless its worker is heard before; the task is tried again after at most 1.0 s, not charged (silent lease 1 of 3)',
  ],
  [
    fourth,
    'lease',
    SILENT,
    'RETRYING',
    'attempt 4 (1 of 3 in its budget) is lost unless its worker is heard before; the task is tried again after at most 1.0 s',
  ],
  [
    once,
    'lease',
    HEARD,
    'FAILED',
    'attempt 1 of 1 is lost unless its worker is heard before; the task fails, for no attempt is left',
  ],
  [running, 'total', HEARD, 'FAILED', 'the task as a whole has taken too long; the task fails'],
  [once, 'total', HEARD, 'FAILED', 'the task as a whole has taken too long; the task fails'],
  [
    backingOff,
    'retry',
    NO_SIGNALS,
    'PENDING',
    'it goes back to waiting for a worker, to begin attempt 2 of 3',
  ],
  [backingOff, 'total', NO_SIGNALS, 'FAILED', 'the task as a whole has taken too long; the task fails'],
]

const definitionOf = (spec: Specification): LifecycleDefinition =>
  spec === stepping ? STEPPED_LIFECYCLE : STANDARD_LIFECYCLE
const openTask = (spec: Specification): OpenTask => {
  if (!spec.task || !isOpen(spec.task)) throw new Error('the test expected an open task')
  return spec.task
}

for (const [spec, timer, signals, to, effect] of EFFECTS)
  t.test(`${spec.task!.status}, ${timer}: ${effect}`, async t => {
    const task = openTask(spec)
    t.strictSame(effectOf(task, timer, signals, definitionOf(spec)), { to, effect })
    if (timer === 'not_before') return
    const { attempt } = task
    const lastHeartbeatAt = signals.lease?.lastHeartbeatAt ?? null
    const fired =
      timer === 'retry'
        ? spec.when(900_000, retry(), { actor: TIMER })
        : spec.when(
            900_000,
            timeout(timer, timer === 'queue' || timer === 'total' ? {} : { attempt, lastHeartbeatAt }),
          )
    t.equal(fired.after.task!.status, to, 'and so it does')
  })

t.test('the table leaves out no status and no timer of it', async t => {
  const told = new Set(EFFECTS.map(([spec, timer]) => `${spec.task!.status} ${timer}`))
  for (const status of ['PENDING', 'PROCESSING', 'RETRYING'] as const)
    for (const timer of STANDARD_LIFECYCLE.states[status]!.timers)
      t.ok(told.has(`${status} ${timer}`), `${status} ${timer}`)
  for (const [spec] of EFFECTS)
    for (const { timer } of deadlinesOf(spec.task!))
      t.ok(told.has(`${spec.task!.status} ${timer}`), `${spec.task!.status} ${timer}`)
})

/** Of all armed timers the one that is shown. */
const NEXT: [
  title: string,
  spec: Specification,
  Signals,
  now: number,
  Pick<Forecast, 'timer' | 'at'> | null,
][] = [
  ['a lease that ends first', running, HEARD, 4_000, { timer: 'lease', at: T0 + 5_000 }],
  [
    'a lease that outlasts the attempt',
    running,
    lease(60_000, 50_000),
    4_000,
    { timer: 'execution', at: T0 + 10 + TIMEOUTS.executionMs },
  ],
  ['the first lease, of the stream', running, NO_SIGNALS, 1_000, { timer: 'lease', at: T0 + 2_010 }],
  [
    'no lease known: the stream has the next',
    running,
    NO_SIGNALS,
    2_010,
    { timer: 'execution', at: T0 + 10 + TIMEOUTS.executionMs },
  ],
  ['a lease that is overdue', running, SILENT, 9_000, { timer: 'lease', at: T0 + 2_010 }],
  ['a date to come', delayed, NO_SIGNALS, 4_999, { timer: 'not_before', at: T0 + 5_000 }],
  ['a date that has come', delayed, NO_SIGNALS, 5_000, { timer: 'queue', at: T0 + 5_000 + TIMEOUTS.queueMs }],
  [
    'handed back',
    running.and(released(20)),
    NO_SIGNALS,
    30,
    { timer: 'queue', at: T0 + 20 + TIMEOUTS.queueMs },
  ],
  ['backing off', backingOff, NO_SIGNALS, 30, { timer: 'retry', at: T0 + 1_020 }],
  ['SUCCESS', running.and(succeeded(20)), NO_SIGNALS, 30, null],
  ['FAILED', running.and(failed(20)), NO_SIGNALS, 30, null],
  ['CANCELLED', running.and(cancelled(20)), NO_SIGNALS, 30, null],
]

for (const [title, spec, signals, now, next] of NEXT)
  t.test(`what fires next: ${title}`, async t => {
    const told = forecast(spec.task!, signals, STANDARD_LIFECYCLE, T0 + now)
    t.strictSame(told && { timer: told.timer, at: told.at }, next)
    if (!told) return
    t.ok(told.effect, 'with what it will do')
    t.strictSame(
      forecast(spec.task!, signals, null, T0 + now),
      { ...next, to: null, effect: null },
      'a definition that is not known hides the effect, not the date',
    )
  })

t.test('a definition of old that does not answer its timer is told as it is', async t => {
  const { PENDING } = STANDARD_LIFECYCLE.states
  const { 'TIMEOUT:queue': _, ...on } = PENDING!.on
  const definition = {
    ...STANDARD_LIFECYCLE,
    states: { ...STANDARD_LIFECYCLE.states, PENDING: { ...PENDING!, on } },
  }
  t.match(forecast(waiting.task!, NO_SIGNALS, definition, T0), {
    timer: 'queue',
    to: 'PENDING',
    effect: /^nothing/,
  })
})

t.test('the limit that is named is the limit that holds', async t => {
  t.equal(openTask(fourth).silentLeasesInRun, LIMITS.silentLeasesPerRun)
})
