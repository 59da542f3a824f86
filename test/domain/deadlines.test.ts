import t from 'tap'
import { deadlinesOf, isDelayed, nextDeadline } from '../../src/domain/deadlines.ts'
import {
  attemptFailed,
  cancelled,
  failed,
  given,
  released,
  requeued,
  type Specification,
  started,
  stepEntered,
  submitted,
  succeeded,
  T0,
  TIMEOUTS,
} from './specification.ts'

const total = { timer: 'total', at: T0 + TIMEOUTS.totalMs } as const
const running = given(submitted(), started(10))

/** The situation, its armed timers, and the one that fires next. */
const ARMED: [
  title: string,
  spec: Specification,
  armed: { timer: string; at: number }[],
  next: string | null,
][] = [
  [
    'PENDING waits for a worker',
    given(submitted()),
    [{ timer: 'queue', at: T0 + TIMEOUTS.queueMs }, total],
    'queue',
  ],
  [
    'PENDING and delayed waits for its date first; queue and total are counted from there',
    given(submitted(0, { runAt: T0 + 5_000 })),
    [
      { timer: 'not_before', at: T0 + 5_000 },
      { timer: 'queue', at: T0 + 5_000 + TIMEOUTS.queueMs },
      { timer: 'total', at: T0 + 5_000 + TIMEOUTS.totalMs },
    ],
    'not_before',
  ],
  [
    'PENDING again has a queue of its own and no delay',
    running.and(released(20)),
    [{ timer: 'queue', at: T0 + 20 + TIMEOUTS.queueMs }, total],
    'queue',
  ],
  [
    'PROCESSING is limited by its execution; its lease is a signal outside the log',
    running,
    [{ timer: 'execution', at: T0 + 10 + TIMEOUTS.executionMs }, total],
    'execution',
  ],
  [
    'PROCESSING in a step with a limit is limited by that first',
    running.and(stepEntered(20, { stepDeadlineAt: T0 + 520 })),
    [{ timer: 'step', at: T0 + 520 }, { timer: 'execution', at: T0 + 10 + TIMEOUTS.executionMs }, total],
    'step',
  ],
  [
    'RETRYING waits for the end of its backoff',
    running.and(attemptFailed(20)),
    [{ timer: 'retry', at: T0 + 1_020 }, total],
    'retry',
  ],
  [
    'RETRYING beyond its total is ended by that',
    running.and(attemptFailed(20, { retryAt: T0 + 900_000 })),
    [{ timer: 'retry', at: T0 + 900_000 }, total],
    'total',
  ],
  [
    'a new run has a total of its own',
    running.and(failed(20), requeued(30, { run: 2, totalDeadlineAt: T0 + 30 + TIMEOUTS.totalMs })),
    [
      { timer: 'queue', at: T0 + 30 + TIMEOUTS.queueMs },
      { timer: 'total', at: T0 + 30 + TIMEOUTS.totalMs },
    ],
    'queue',
  ],
  ['SUCCESS waits for nothing', running.and(succeeded(20)), [], null],
  ['FAILED waits for nothing', running.and(failed(20)), [], null],
  ['CANCELLED waits for nothing', running.and(cancelled(20)), [], null],
]

for (const [title, spec, armed, next] of ARMED)
  t.test(title, async t => {
    t.strictSame(deadlinesOf(spec.task!), armed)
    t.equal(nextDeadline(spec.task!)?.timer ?? null, next)
  })

t.test('not_before, once it has fired, gives way to the next deadline', async t => {
  const delayed = given(submitted(0, { runAt: T0 + 5_000 })).task!
  t.equal(isDelayed(delayed), true)
  t.strictSame(nextDeadline(delayed, 'not_before'), { timer: 'queue', at: T0 + 5_000 + TIMEOUTS.queueMs })
})

t.test('a task that may start at once is not delayed, nor one that was delayed once', async t => {
  t.equal(isDelayed(given(submitted()).task!), false)
  const delayed = given(submitted(0, { runAt: T0 + 5_000 }), started(5_000))
  t.equal(isDelayed(delayed.task!), false)
  t.equal(isDelayed(delayed.and(released(6_000)).task!), false)
})

t.test('of two timers at the same instant the one of the status fires, the more telling reason', async t => {
  const task = given(submitted(0, { totalDeadlineAt: T0 + TIMEOUTS.queueMs })).task!
  t.equal(nextDeadline(task)?.timer, 'queue')
})
