/** What people are told, word for word: each status, with each of its signals, before and after what it waits for. */
import t from 'tap'
import { OPEN_STATUSES } from '../../src/domain/lifecycle.ts'
import { NO_SIGNALS, positionBehind, type Signals } from '../../src/domain/signals.ts'
import { why } from '../../src/domain/why.ts'
import {
  attemptFailed,
  attemptTimedOut,
  cancelled,
  failed,
  given,
  noted,
  queueTimedOut,
  released,
  requeued,
  type Specification,
  started,
  stepEntered,
  submitted,
  succeeded,
  T0,
  TOKEN_B,
  timedOut,
} from './specification.ts'

const TYPE = 'image.generate'
const at = (ms: number): string => new Date(T0 + ms).toISOString()
const offered = (heldUntil: number | null, timesOffered: number) => ({
  offer: { heldUntil: heldUntil === null ? null : T0 + heldUntil, timesOffered },
})
const offer = (heldUntil: number | null, timesOffered: number): Signals => ({
  ...NO_SIGNALS,
  ...offered(heldUntil, timesOffered),
})
const behind = (ahead: number): Signals => ({ ...NO_SIGNALS, position: positionBehind(ahead) })
const lease = (heldUntil: number, heard: number | null, lost = false): Signals => ({
  ...NO_SIGNALS,
  lease: {
    heldUntil: T0 + heldUntil,
    lost,
    lastHeartbeatAt: heard === null ? null : T0 + heard,
    progress: null,
  },
})
const notice = (toldAt: number | null): Signals => ({
  ...NO_SIGNALS,
  cancelNotice: { attempt: 1, worker: 'worker-1', toldAt: toldAt === null ? null : T0 + toldAt },
})

const waiting = given(submitted())
const delayed = given(submitted(0, { runAt: T0 + 5_000 }))
const running = given(submitted(), started(10))
const second = { attempt: 2, leaseTokenHash: TOKEN_B }
const silent = attemptTimedOut(2_010, { charged: false })

/** The situation, its signals, now in milliseconds, and the sentence. */
const SAID: [title: string, spec: Specification, signals: Signals, now: number, sentence: string][] = [
  ['PENDING, new', waiting, NO_SIGNALS, 1, `waiting for a worker of type ${TYPE}`],
  ['PENDING, never offered', waiting, offer(null, 0), 1, `waiting for a worker of type ${TYPE}`],
  [
    'PENDING, offered',
    waiting,
    offer(10_000, 1),
    1,
    `handed towards a worker of type ${TYPE} until ${at(10_000)}; offered once, not started yet`,
  ],
  [
    'PENDING, offered again and again',
    waiting,
    offer(10_000, 4),
    1,
    `handed towards a worker of type ${TYPE} until ${at(10_000)}; offered 4 times, not started yet`,
  ],
  [
    'PENDING, offered before',
    waiting,
    offer(null, 2),
    1,
    `waiting for a worker of type ${TYPE}; offered 2 times, not started`,
  ],
  [
    'PENDING, an offer whose time is over',
    waiting,
    offer(10_000, 1),
    10_000,
    `waiting for a worker of type ${TYPE}; offered once, not started`,
  ],
  ['PENDING, next', waiting, behind(0), 1, `waiting for a worker of type ${TYPE}; it is next`],
  ['PENDING, the second', waiting, behind(1), 1, `waiting for a worker of type ${TYPE}; 1 task is ahead`],
  ['PENDING, in a queue', waiting, behind(12), 1, `waiting for a worker of type ${TYPE}; 12 tasks are ahead`],
  [
    'PENDING, the last that is counted',
    waiting,
    behind(1_000),
    1,
    `waiting for a worker of type ${TYPE}; 1,000 tasks are ahead`,
  ],
  [
    'PENDING, in a queue that is not counted to its end',
    waiting,
    behind(1_001),
    1,
    `waiting for a worker of type ${TYPE}; more than 1,000 tasks are ahead`,
  ],
  [
    'PENDING, offered before and in a queue again',
    waiting,
    { ...behind(4), ...offered(null, 2) },
    1,
    `waiting for a worker of type ${TYPE}; offered 2 times, not started; 4 tasks are ahead`,
  ],
  [
    'PENDING, tried again, in a queue',
    running.and(attemptFailed(20), requeued(1_020)),
    behind(4),
    1_030,
    `attempt 1 ended: The picture is too large.; waiting for a worker of type ${TYPE} to begin attempt 2 of 3; 4 tasks are ahead`,
  ],
  [
    'PENDING, delayed',
    delayed,
    NO_SIGNALS,
    4_999,
    `waits for its time, ${at(5_000)}, and then for a worker of type ${TYPE}`,
  ],
  ['PENDING, its time has come', delayed, NO_SIGNALS, 5_000, `waiting for a worker of type ${TYPE}`],
  [
    'PENDING, handed back with a reason',
    running.and(released(20, { content: { reason: 'shutting\ndown' } })),
    NO_SIGNALS,
    30,
    `handed back by its worker worker-1: shutting down; waiting for a worker of type ${TYPE} to begin attempt 2 (1 of 3 in its budget)`,
  ],
  [
    'PENDING, handed back without a reason, and offered',
    running.and(released(20)),
    offer(10_020, 1),
    30,
    `handed back by its worker worker-1; handed towards a worker of type ${TYPE} until ${at(10_020)} to begin attempt 2 (1 of 3 in its budget); offered once, not started yet`,
  ],
  [
    'PENDING, tried again after an error',
    running.and(attemptFailed(20), requeued(1_020)),
    NO_SIGNALS,
    1_030,
    `attempt 1 ended: The picture is too large.; waiting for a worker of type ${TYPE} to begin attempt 2 of 3`,
  ],
  [
    'PENDING, tried again after a lease that nobody charged',
    running.and(silent, requeued(3_010)),
    NO_SIGNALS,
    3_020,
    `attempt 1 ended: its worker was never heard (limit 2000 ms); waiting for a worker of type ${TYPE} to begin attempt 2 (1 of 3 in its budget)`,
  ],
  [
    'PENDING, a new run asked with a reason',
    running.and(
      failed(20),
      requeued(30, { run: 2, cause: 'asked', content: { reason: 'the model is repaired' } }),
    ),
    NO_SIGNALS,
    40,
    `retried in run 2: the model is repaired, since run 1 failed: The picture is too large.; waiting for a worker of type ${TYPE} to begin attempt 2 (1 of 3 in its budget)`,
  ],
  [
    'PENDING, a new run of a task that nobody had started',
    waiting.and(queueTimedOut(60_000), requeued(61_000, { run: 2, cause: 'asked' })),
    NO_SIGNALS,
    61_001,
    `retried in run 2, since run 1 failed: no worker started it (limit 60000 ms); waiting for a worker of type ${TYPE} to begin attempt 1 of 3`,
  ],
  [
    'PROCESSING, heard',
    running.and(stepEntered(20)),
    lease(5_000, 3_000),
    4_000,
    `worker worker-1 runs attempt 1 of 3, step GENERATING, since ${at(10)}; its lease is held until ${at(5_000)}, last heartbeat at ${at(3_000)}`,
  ],
  [
    'PROCESSING, not heard yet',
    running,
    lease(2_010, null),
    1_000,
    `worker worker-1 runs attempt 1 of 3, since ${at(10)}; its lease is held until ${at(2_010)}, no heartbeat yet`,
  ],
  [
    'PROCESSING, the second attempt',
    running.and(attemptFailed(20), requeued(1_020), started(1_030, second)),
    lease(3_030, null),
    1_040,
    `worker worker-1 runs attempt 2 of 3, since ${at(1_030)}; its lease is held until ${at(3_030)}, no heartbeat yet`,
  ],
  [
    'PROCESSING, a lease at its end',
    running,
    lease(5_000, 3_000),
    5_000,
    `worker worker-1 was running attempt 1 of 3, since ${at(10)}; its lease ended at ${at(5_000)}, last heartbeat at ${at(3_000)}; it is about to be taken`,
  ],
  [
    'PROCESSING, a lost lease',
    running,
    lease(2_010, null, true),
    2_020,
    `worker worker-1 was running attempt 1 of 3, since ${at(10)}; its lease ended at ${at(2_010)}, no heartbeat; it is lost and being taken`,
  ],
  [
    'PROCESSING, nothing known of its lease but the first',
    running,
    NO_SIGNALS,
    1_000,
    `worker worker-1 runs attempt 1 of 3, since ${at(10)}; its first lease is held until ${at(2_010)}, no heartbeat is known`,
  ],
  [
    'PROCESSING, nothing known of its lease, the first long over',
    running,
    NO_SIGNALS,
    9_000,
    `worker worker-1 runs attempt 1 of 3, since ${at(10)}; its first lease ended at ${at(2_010)}, no later one is known`,
  ],
  [
    'RETRYING',
    running.and(attemptFailed(20)),
    NO_SIGNALS,
    1_000,
    `attempt 1 ended: The picture is too large.; backs off for 1.0 s until ${at(1_020)}, then waits for a worker to begin attempt 2 of 3`,
  ],
  [
    'RETRYING, never heard',
    running.and(silent),
    NO_SIGNALS,
    2_020,
    `attempt 1 ended: its worker was never heard (limit 2000 ms); backs off for 1.0 s until ${at(3_010)}, then waits for a worker to begin attempt 2 (1 of 3 in its budget)`,
  ],
  [
    'RETRYING, its backoff over',
    running.and(attemptFailed(20)),
    NO_SIGNALS,
    1_020,
    `attempt 1 ended: The picture is too large.; its backoff of 1.0 s was over at ${at(1_020)}, it is about to wait for a worker to begin attempt 2 of 3`,
  ],
  ['SUCCESS', running.and(succeeded(20)), NO_SIGNALS, 30, 'succeeded in attempt 1'],
  ['FAILED at once', running.and(failed(20)), NO_SIGNALS, 30, 'failed: The picture is too large.'],
  [
    'FAILED with its last attempt',
    given(
      submitted(0, {
        retry: { maxAttempts: 1, initialDelayMs: 0, factor: 1, maxDelayMs: 0, jitter: 0 },
      }),
      started(10),
      timedOut(2_010),
    ),
    NO_SIGNALS,
    2_020,
    'failed: its worker fell silent (limit 2000 ms); no attempt of 1 is left',
  ],
  [
    'FAILED, never started',
    waiting.and(queueTimedOut(60_000)),
    NO_SIGNALS,
    60_001,
    'failed: no worker started it (limit 60000 ms)',
  ],
  [
    'CANCELLED while it waited',
    waiting.and(cancelled(20)),
    NO_SIGNALS,
    30,
    'cancelled by person ada: no longer needed',
  ],
  [
    'CANCELLED without a reason',
    waiting.and(cancelled(20, { content: { reason: null } })),
    NO_SIGNALS,
    30,
    'cancelled by person ada',
  ],
  [
    'CANCELLED, its worker told',
    running.and(cancelled(20)),
    notice(500),
    600,
    `cancelled by person ada: no longer needed; its worker worker-1 was told at ${at(500)}`,
  ],
  [
    'CANCELLED, its worker silent',
    running.and(cancelled(20)),
    notice(null),
    600,
    'cancelled by person ada: no longer needed; its worker worker-1 has not asked since',
  ],
]

for (const [title, spec, signals, now, sentence] of SAID)
  t.test(title, async t => {
    t.equal(why(spec.task!, signals, T0 + now), sentence)
    t.equal(why(spec.and(noted(now)).task!, signals, T0 + now), sentence, 'a note changes nothing')
  })

t.test('the table leaves out no open status', async t => {
  const said = new Set(SAID.map(([, spec]) => spec.task!.status))
  for (const status of OPEN_STATUSES) t.ok(said.has(status), status)
})

t.test('what others wrote is quoted on one line and cut', async t => {
  const error = { code: 'x', message: `line one\n${'🗼'.repeat(10_000)}` }
  const sentence = why(running.and(attemptFailed(20, { content: { error } })).task!, NO_SIGNALS, T0)
  t.match(sentence, /^attempt 1 ended: line one 🗼{50,}…; backs off/u)
  t.ok(Buffer.byteLength(sentence) < 700, 'it is still a sentence')
  t.notMatch(sentence, /\n|\uFFFD/)
})
