/** What the history says of an event, for those that a person must not miss. */
import t from 'tap'
import type { HistoryEvent } from '../../src/api/schemas/tasks.ts'
import { changeOf } from '../../src/cli/event-text.ts'
import { attemptTimedOut, ERROR, type Fact, lateResult, T0, timedOut } from '../domain/specification.ts'

const said = ({ at, actor, event }: Fact): string =>
  changeOf({
    ...event,
    revision: 1,
    id: 'id',
    at: new Date(T0 + at).toISOString(),
    actor,
    source: 'http',
    commandId: 'id',
    correlationId: null,
    causationId: null,
    prevHash: null,
    hash: '0'.repeat(64),
  } satisfies HistoryEvent)

const SAID: [title: string, fact: Fact, text: string][] = [
  [
    'a late success, with its result',
    lateResult(20),
    'late: attempt 1 succeeded with {"pixels":1}; kept as evidence, changes nothing',
  ],
  [
    'a late success, with its address',
    lateResult(20, { content: { result: null, resultUrl: 'https://example.org/7' } }),
    'late: attempt 1 succeeded with https://example.org/7; kept as evidence, changes nothing',
  ],
  [
    'a late failure, with its error',
    lateResult(20, { outcome: 'failed', content: { error: ERROR } }),
    'late: attempt 1 failed with out_of_memory: The picture is too large.; kept as evidence, changes nothing',
  ],
  [
    'a lease that nobody was charged for',
    attemptTimedOut(2_010, { charged: false }),
    'lease limit of 2.0 s reached in PROCESSING without a heartbeat, not charged; next attempt in 1.0 s',
  ],
  [
    'a lease that ended after heartbeats',
    timedOut(2_010, { lastHeartbeatAt: T0 + 10 }),
    'lease limit of 2.0 s reached in PROCESSING',
  ],
]

for (const [title, fact, text] of SAID) t.test(title, async t => t.equal(said(fact), text))
