import fc from 'fast-check'
import t from 'tap'
import { EVENT_SCHEMAS, type Metadata, type TaskEvent } from '../../src/domain/events.ts'
import { STANDARD_LIFECYCLE } from '../../src/domain/lifecycle.ts'
import { DEFAULT_TIMEOUTS } from '../../src/domain/limits.ts'
import { DEFAULT_RETRY_POLICY } from '../../src/domain/retry-policy.ts'
import { checkAppends } from '../../src/eventlog/check-append.ts'
import {
  decodeEvent,
  encodeEvent,
  hashEvent,
  isForeign,
  streamOf,
  taskIdOf,
} from '../../src/eventlog/codec.ts'
import type { StoredEvent } from '../../src/eventlog/event-log.ts'

const TASK = '0197c0de-0000-7000-8000-000000000001'
const ID = '0197c0de-0000-7000-8000-000000000002'
const HASH = 'ab'.repeat(32)
const ERROR = { code: 'gpu_lost', message: 'The GPU went away.', detail: 'Error: at line 1' }
const METADATA: Metadata = {
  at: 1_767_225_600_000,
  actor: { kind: 'worker', id: 'worker-1' },
  source: 'http',
  commandId: 'command-1',
  correlationId: 'order-7',
  causationId: null,
  trace: null,
  prevHash: HASH,
}
const TIMED_OUT = {
  run: 1,
  attempt: 2,
  timer: 'lease',
  from: 'PROCESSING',
  limitMs: 60_000,
  since: 1_767_225_600_000,
  lastHeartbeatAt: null,
  charged: true,
} as const

/** One of each type; the compiler refuses the table when a type is missing. */
const EVENTS: { [T in TaskEvent['type']]: Extract<TaskEvent, { type: T }>['data'] } = {
  TaskSubmitted: {
    type: 'image.generate',
    priority: 0,
    tenant: null,
    lifecycle: { name: STANDARD_LIFECYCLE.name, version: 1, hash: HASH },
    timeouts: DEFAULT_TIMEOUTS,
    retry: DEFAULT_RETRY_POLICY,
    runAt: 1_767_225_600_000,
    queueDeadlineAt: 1_767_312_000_000,
    totalDeadlineAt: 1_767_830_400_000,
    fingerprint: HASH,
    content: { payload: { prompt: 'a \u0000 \ud800 cat 🐈' }, labels: { project: 'x' }, salt: 'salt' },
  },
  TaskStarted: {
    run: 1,
    attempt: 1,
    worker: 'worker-1',
    leaseTokenHash: HASH,
    leaseDeadlineAt: 1,
    executionDeadlineAt: 2,
  },
  TaskStepEntered: {
    run: 1,
    attempt: 1,
    step: 'UPLOADING',
    stepDeadlineAt: null,
    content: { context: { page: 3 } },
  },
  TaskSucceeded: {
    run: 1,
    attempt: 1,
    content: { result: [1, null, 'x'], resultUrl: 'https://x.example/1' },
  },
  TaskAttemptFailed: {
    run: 1,
    attempt: 1,
    charged: true,
    retryAt: 5,
    content: { error: ERROR, context: null },
  },
  TaskFailed: { run: 1, attempt: 3, charged: true, cause: 'no_attempts_left', content: { error: ERROR } },
  TaskAttemptTimedOut: { ...TIMED_OUT, retryAt: 7 },
  TaskTimedOut: TIMED_OUT,
  TaskReleased: { run: 1, attempt: 1, queueDeadlineAt: 9, content: { reason: 'shutting down' } },
  TaskRequeued: {
    run: 2,
    cause: 'asked',
    queueDeadlineAt: 9,
    totalDeadlineAt: 10,
    content: { reason: null },
  },
  TaskCancelled: { run: 1, attempt: 1, content: { reason: 'not needed' } },
  TaskNoted: { content: { note: 'looked at it' } },
  LateResultRecorded: { attempt: 1, outcome: 'succeeded', content: { result: 1, resultUrl: null } },
}

const events = Object.entries(EVENTS).map(([type, data]) => ({ type, version: 1, data }) as TaskEvent)

const store = (event: TaskEvent, fields: Partial<StoredEvent> = {}): StoredEvent => ({
  ...encodeEvent(streamOf(TASK), 4, ID, event, METADATA).encoded,
  stream: streamOf(TASK),
  revision: 4,
  position: '1',
  ...fields,
})

t.test('every type and version is covered here', async t => {
  t.same(Object.keys(EVENTS).sort(), Object.keys(EVENT_SCHEMAS).sort())
  t.ok(Object.values(EVENT_SCHEMAS).every(versions => Object.keys(versions).join() === '1'))
})

for (const event of events) {
  t.test(`${event.type} comes back as it went in`, async t => {
    const { encoded, recorded } = encodeEvent(streamOf(TASK), 4, ID, event, METADATA)
    const decoded = decodeEvent({ ...encoded, stream: streamOf(TASK), revision: 4, position: '99' })
    t.strictSame(decoded, recorded)
    t.strictSame(decoded.event, event)
    t.match(encoded, { id: ID, type: event.type, version: 1 })
    const append = { stream: streamOf(TASK), expected: 3, events: [encoded] }
    t.same(checkAppends([append]), [null], 'and may be stored')
  })
}

t.test('the hash is over what the event is and where it stands', async t => {
  const event = encodeEvent(streamOf(TASK), 4, ID, events[1]!, METADATA)
  const golden = '99d5bfa04115be8bca5ffeb81c2952c785068c24d4212909b14d49961fdd7eb3'
  t.equal(event.recorded.hash, golden, 'it must never change: stored histories are proved by it')
  const others = [
    hashEvent(streamOf(TASK), 5, event.encoded),
    hashEvent(streamOf(ID), 4, event.encoded),
    ...Object.entries({ id: TASK, type: 'Other', version: 2, data: '{}', metadata: '{}' }).map(
      ([key, value]) => hashEvent(streamOf(TASK), 4, { ...event.encoded, [key]: value }),
    ),
  ]
  t.equal(new Set([golden, ...others]).size, 8, 'each part counts')
})

t.test('what no schema accepts cannot be read, and the error says what and where', async t => {
  const note = events.find(({ type }) => type === 'TaskNoted')!
  const rows: [string, Partial<StoredEvent>, RegExp][] = [
    ['an unknown type', { type: 'TaskRenamed' }, /type TaskRenamed is not known/],
    ['a type that every object has', { type: 'constructor' }, /is not known/],
    ['an unknown version', { version: 2 }, /version 2 of TaskNoted is not known/],
    ['data that is not JSON', { data: '{' }, /not JSON/],
    ['metadata that is not JSON', { metadata: '' }, /not JSON/],
    ['data of another shape', { data: '{"content":{"note":7}}' }, /does not fit TaskNoted/],
    ['data with a key too many', { data: '{"content":{"note":"x"},"more":1}' }, /does not fit TaskNoted/],
    ['data that is no object', { data: 'null' }, /does not fit TaskNoted/],
    ['metadata of another shape', { metadata: '{"at":1}' }, /metadata does not fit/],
  ]
  for (const [title, fields, message] of rows)
    t.throws(() => decodeEvent(store(note, fields)), { code: 'undecodable_event', message }, title)
  t.throws(() => decodeEvent(store(note, { data: '{' })), { message: /event 4 of stream task-0197c0de/ })
})

t.test('whatever JSON a user wrote, the bytes are a fixed point of parse and stringify', async t => {
  // The codec vouches for its bytes, so that they are not parsed again on append; this is what it vouches for.
  const anyJson = fc.jsonValue({ depthSize: 'medium', stringUnit: 'binary' })
  fc.assert(
    fc.property(anyJson, written => {
      const payload = JSON.parse(JSON.stringify(written))
      const data = { ...EVENTS.TaskSubmitted, content: { ...EVENTS.TaskSubmitted.content, payload } }
      const { encoded } = encodeEvent(
        streamOf(TASK),
        0,
        ID,
        { type: 'TaskSubmitted', version: 1, data },
        METADATA,
      )
      return [encoded.data, encoded.metadata].every(text => JSON.stringify(JSON.parse(text)) === text)
    }),
    { numRuns: 2_000, examples: [[{ a: -0, b: 1e21, c: '\u0000\ud800', '2': 1, '1': 2 }]] },
  )
  t.pass()
})

t.test('keys named __proto__ are data and change no prototype', async t => {
  const payload = JSON.parse('{"__proto__":{"polluted":true},"constructor":{"prototype":{"polluted":true}}}')
  const submitted = { ...EVENTS.TaskSubmitted, content: { ...EVENTS.TaskSubmitted.content, payload } }
  const { event } = decodeEvent(store({ type: 'TaskSubmitted', version: 1, data: submitted }))
  t.equal(JSON.stringify((event.data as typeof submitted).content.payload), JSON.stringify(payload))
  t.notOk('polluted' in {}, 'no other object has it')
  const noted = '{"content":{"note":"x","__proto__":{"note":"y"}}}'
  t.throws(() => decodeEvent(store(events[11]!, { data: noted })), { code: 'undecodable_event' })
})

t.test('a task and its stream name each other', async t => {
  t.equal(taskIdOf(streamOf(TASK)), TASK)
  t.strictSame([isForeign(streamOf(TASK)), isForeign('other-stream')], [false, false])
  t.equal(taskIdOf('other-stream'), null)
  for (const name of ['task-', 'task-1', `task-${TASK.toUpperCase()}`, `task-${TASK}0`, `task-${TASK}\n`]) {
    t.equal(taskIdOf(name), null, name)
    t.ok(isForeign(name), name)
  }
})
