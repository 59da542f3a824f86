/** From events to what is published of them: which events, in what form, from whatever place the reading begins. */
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import t from 'tap'
import { EVENT_SCHEMAS, type EventType } from '../../src/domain/events.ts'
import { encodeEvent, streamOf } from '../../src/eventlog/codec.ts'
import { type EventLog, LogUnavailableError, type StoredEvent } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { StatusChanges } from '../../src/workers/status-changes.ts'
import {
  type StatusChange,
  shortened,
  statusRecord,
  statusType,
  taskStatusJsonSchema,
  taskStatusSchema,
} from '../../src/workers/status-message.ts'
import {
  attemptFailed,
  attemptTimedOut,
  cancelled,
  type Fact,
  failed,
  lateResult,
  noted,
  queueTimedOut,
  released,
  requeued,
  started,
  stepEntered,
  submitted,
  succeeded,
  T0,
} from '../domain/specification.ts'
import { recordingLogger, SILENT, wrapLog } from '../support/service-parts.ts'

/** Stores the facts of a task as the engine would. */
async function stored(log: EventLog, taskId: string, facts: readonly Fact[]): Promise<StoredEvent[]> {
  const stream = streamOf(taskId)
  let prevHash: string | null = null
  const events = facts.map(({ at, actor, event }, revision) => {
    const metadata = {
      at: T0 + at,
      actor,
      source: 'http' as const,
      commandId: `${revision}`,
      correlationId: 'order-7',
      causationId: null,
      trace: null,
      prevHash,
    }
    const { encoded, recorded } = encodeEvent(stream, revision, randomUUID(), event, metadata)
    prevHash = recorded.hash
    return encoded
  })
  await log.appendMany([{ stream, expected: 'no_stream', events }])
  return (await log.readStream(stream, 0, 1_000)).events
}

const labels = { team: 'a' }
const content = { payload: { prompt: 'a secret' }, labels, salt: 'salt' }
const detail = 'at paint (secret.ts:1)'
const error = { code: 'out_of_memory', message: 'The picture is too large.', detail }

/** Facts of a task, and what is to be published of each: null where nothing is. */
const LIVES: Record<string, [Fact, string | null][]> = {
  'one that succeeds at its second attempt': [
    [submitted(0, { content }), 'submitted PENDING - 1'],
    [started(10), 'started PROCESSING - 1'],
    [stepEntered(20, { step: 'DOWNLOADING' }), 'step_entered PROCESSING DOWNLOADING 1'],
    [stepEntered(30, { step: 'DOWNLOADING', content: { context: { at: 7 } } }), null],
    [noted(35), null],
    [stepEntered(40, { step: 'UPLOADING' }), 'step_entered PROCESSING UPLOADING 1'],
    [attemptFailed(50, { content: { error } }), 'attempt_failed RETRYING - 1'],
    [requeued(1_050), 'requeued PENDING - 2'],
    [lateResult(1_060), null],
    [started(1_100, { attempt: 2 }), 'started PROCESSING - 2'],
    [
      succeeded(1_200, {
        attempt: 2,
        content: { result: { of: 'a secret' }, resultUrl: 'https://x.test/1' },
      }),
      'succeeded SUCCESS - 2',
    ],
    [noted(1_300), null],
  ],
  'one that fails and is asked for again': [
    [submitted(0, { content }), 'submitted PENDING - 1'],
    [started(10), 'started PROCESSING - 1'],
    [failed(20, { content: { error } }), 'failed FAILED - 1'],
    [requeued(30, { run: 2, cause: 'asked' }), 'requeued PENDING - 2'],
  ],
  'one that is released and falls silent': [
    [submitted(0, { content }), 'submitted PENDING - 1'],
    [started(10), 'started PROCESSING - 1'],
    [released(20), 'released PENDING - 2'],
    [started(30, { attempt: 2 }), 'started PROCESSING - 2'],
    [attemptTimedOut(40, { attempt: 2 }), 'attempt_timed_out RETRYING - 2'],
  ],
  'one that nobody starts': [
    [submitted(0, { content }), 'submitted PENDING - 1'],
    [queueTimedOut(60_000), 'timed_out FAILED - 1'],
  ],
  'one that is cancelled': [
    [submitted(0, { content }), 'submitted PENDING - 1'],
    [cancelled(10, { content: { reason: 'no longer needed' } }), 'cancelled CANCELLED - 1'],
  ],
}

const told = (change: StatusChange): string => {
  const { status, step, attempt } = change.status
  return `${statusType(change.what).replace('rollcall.task.', '')} ${status} ${step ?? '-'} ${attempt}`
}
const published = (change: StatusChange) => JSON.parse(String(statusRecord(change).value))

for (const [what, life] of Object.entries(LIVES))
  t.test(`${what}: each change of status or step is published, wherever the reading begins`, async t => {
    const log = createMemoryEventLog()
    const taskId = randomUUID()
    const events = await stored(
      log,
      taskId,
      life.map(([fact]) => fact),
    )
    const expected = life.flatMap(([, is]) => is ?? [])
    t.strictSame((await new StatusChanges(log, SILENT).among(events)).map(told), expected)
    const again = new StatusChanges(log, SILENT)
    for (let from = 0; from < events.length; from++) {
      const rest = life.slice(from).flatMap(([, is]) => is ?? [])
      const ids = new Set(events.slice(from).map(({ id }) => id))
      const changes = await again.among(events.slice(from))
      t.strictSame(changes.map(told), rest, `from revision ${from}`)
      t.ok(changes.every(({ eventId }) => ids.has(eventId)))
      for (const change of changes) {
        taskStatusSchema.parse(published(change))
        t.notMatch(String(statusRecord(change).value), /secret/, 'neither stack nor payload nor result')
      }
      const one = await new StatusChanges(log, SILENT).among([events[from]!])
      t.strictSame(
        one.map(told),
        [life[from]![1]].filter(is => is !== null),
        'alone',
      )
    }
    t.strictSame((await again.newest([taskId, randomUUID()])).map(told), expected.slice(-1), 'the newest')
    t.strictSame((await again.among(events)).map(told), expected, 'and from the start once more')
  })

t.test('the value and the headers are the documented ones', async t => {
  const log = createMemoryEventLog()
  const taskId = randomUUID()
  const life = LIVES['one that succeeds at its second attempt']!
  const events = await stored(
    log,
    taskId,
    life.map(([fact]) => fact),
  )
  const changes = await new StatusChanges(log, SILENT).among(events)
  const failure = changes.find(({ what }) => what === 'TaskAttemptFailed')!
  const at = new Date(T0 + 50).toISOString()
  t.strictSame(published(failure), {
    taskId,
    type: 'image.generate',
    status: 'RETRYING',
    step: null,
    run: 1,
    attempt: 1,
    revision: 6,
    at,
    error: { code: 'out_of_memory', message: 'The picture is too large.' },
    resultUrl: null,
    correlationId: 'order-7',
    labels,
  })
  t.strictSame(statusRecord(failure).key, taskId)
  t.strictSame(statusRecord(failure).headers, {
    ce_specversion: '1.0',
    ce_id: events[6]!.id,
    ce_source: 'rollcall',
    ce_type: 'rollcall.task.attempt_failed',
    ce_subject: taskId,
    ce_time: at,
    'content-type': 'application/json',
  })
  const last = published(changes.at(-1)!)
  t.match(last, { status: 'SUCCESS', resultUrl: 'https://x.test/1', labels })
  t.notOk('error' in last, 'what went wrong before is no error of a task that succeeded')
})

t.test('a cancelled task says why, as its error', async t => {
  const log = createMemoryEventLog()
  const reasons = ['no longer needed', null]
  for (const reason of reasons) {
    const events = await stored(log, randomUUID(), [submitted(), cancelled(1, { content: { reason } })])
    const changes = await new StatusChanges(log, SILENT).among(events)
    t.strictSame(published(changes[1]!).error, { code: 'cancelled', message: reason })
  }
})

t.test('a stream that cannot be read is passed over and told of once; others go on', async t => {
  const log = createMemoryEventLog()
  const { logger, lines } = recordingLogger()
  const [bad, good] = [randomUUID(), randomUUID()]
  const first = await stored(log, bad, [submitted(0), started(1), succeeded(2)])
  const second = await stored(log, good, [submitted(0), started(1), succeeded(2)])
  const spoilt = (event: StoredEvent) =>
    event === first[1] ? { ...event, data: '{"of":"another hand"}' } : event
  const broken = wrapLog(log, {
    readStreams: async asked => {
      const streams = await log.readStreams(asked)
      return new Map(
        [...streams].map(([stream, events]) => [
          stream,
          stream === streamOf(bad) ? first.map(spoilt) : events,
        ]),
      )
    },
  })
  const changes = new StatusChanges(broken, logger)
  const batch = [first[0]!, second[0]!, spoilt(first[1]!), second[1]!, first[2]!, second[2]!]
  const all = (await changes.among(batch)).map(change => `${change.status.taskId === bad} ${told(change)}`)
  t.strictSame(all, [
    'true submitted PENDING - 1',
    'false submitted PENDING - 1',
    'false started PROCESSING - 1',
    'false succeeded SUCCESS - 1',
  ])
  t.strictSame((await changes.among([first[2]!])).length, 0)
  t.strictSame((await new StatusChanges(broken, logger).among([first[2]!, second[2]!])).length, 1)
  t.strictSame(
    lines.map(({ level }) => level),
    [50, 50],
    'once for each process',
  )
  t.strictSame((await changes.newest([bad, good])).map(told), [
    'submitted PENDING - 1',
    'succeeded SUCCESS - 1',
  ])
})

t.test('streams that are no task are not read, and a log that is away is no fault of a task', async t => {
  const log = createMemoryEventLog()
  const events = await stored(log, randomUUID(), [submitted(0), started(1)])
  const away = wrapLog(log, { readStreams: () => Promise.reject(new LogUnavailableError('away')) })
  const changes = new StatusChanges(away, SILENT)
  const other = { ...events[0]!, stream: 'lifecycles', type: 'LifecycleDefined' }
  t.strictSame(await changes.among([other, { ...other, stream: 'task-of-another-hand' }]), [])
  await t.rejects(changes.among([events[1]!]), { message: 'away' })
  t.equal((await new StatusChanges(log, SILENT).among([events[1]!])).length, 1, 'later it is published')
})

t.test('what happened has a name for each kind of event', async t => {
  for (const what of Object.keys(EVENT_SCHEMAS) as EventType[])
    t.match(statusType(what), /^rollcall\.task\.[a-z]+(_[a-z]+)*$/)
  t.equal(statusType('TaskAttemptTimedOut'), 'rollcall.task.attempt_timed_out')
})

t.test('a change that is too large for a broker has a short form of the same status', async t => {
  const log = createMemoryEventLog()
  const long = { code: 'e', message: 'ä'.repeat(30_000) }
  const events = await stored(log, randomUUID(), [
    submitted(0, { content }),
    started(1),
    failed(2, { content: { error: long } }),
  ])
  const [first, , last] = await new StatusChanges(log, SILENT).among(events)
  const short = shortened(last!)
  t.ok(statusRecord(short).value!.length < 2_000)
  taskStatusSchema.parse(published(short))
  t.match(published(short), { status: 'FAILED', error: { code: 'e', message: /^ä+…$/ }, labels: {} })
  t.strictSame(shortened(first!).status, { ...first!.status, labels: {} })
})

const page = (name: string): string => readFileSync(new URL(`../../docs/${name}`, import.meta.url), 'utf8')

t.test('the documented schema is the one of the messages', async t => {
  t.strictSame(
    JSON.parse(page('task-status.schema.json')),
    JSON.parse(JSON.stringify(taskStatusJsonSchema())),
  )
})

t.test('the page shows a value of that schema, and every name of what happened', async t => {
  const text = page('task-status.md')
  const [, example] = /```json\n([\s\S]*?)```/.exec(text)!
  taskStatusSchema.strict().parse(JSON.parse(example!))
  const those = (Object.keys(EVENT_SCHEMAS) as EventType[]).filter(
    what => what !== 'TaskNoted' && what !== 'LateResultRecorded',
  )
  const documented = [...text.matchAll(/^\| `(rollcall\.task\.\w+)`/gm)].map(([, name]) => name)
  t.strictSame(documented.sort(), those.map(statusType).sort())
})
