/** Conformance of appends: expectations, repeats, bad members, broken contracts. */
import type { Test } from 'tap'
import {
  APPEND_LIMITS,
  type Append,
  EVENT_BYTES_MAX,
  type EventLog,
  type Expected,
} from '../../src/eventlog/event-log.ts'
import { anAppend, anEvent, aStream, given, someEvents, wholeStream } from '../support/events.ts'
import type { MakeLog } from './event-log.ts'

export async function appending(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  await t.test('every expectation is held against every state of a stream', t => expectations(t, log))
  await t.test('the same ids at the same revisions are answered again and stored once', t => repeats(t, log))
  await t.test('a repeat is recognised beside new appends', t => repeatsInABatch(t, log))
  await t.test('members of a call are independent and answered in their order', t => independence(t, log))
  await t.test('a bad member is rejected alone', t => badMembers(t, log))
  await t.test('a call that breaks the contract throws and stores nothing', t => brokenContracts(t, log))
  await t.test('a call at the limits is stored', async t => {
    const most = Array.from({ length: APPEND_LIMITS.appends }, () => anAppend({ events: someEvents(4) }))
    const results = await log.appendMany(most)
    t.ok(results.every(result => result.kind === 'appended' && result.revision === 3))
    const [large] = await log.appendMany([
      anAppend({ events: [anEvent({ data: JSON.stringify('x'.repeat(EVENT_BYTES_MAX - 2 - 8)) })] }),
    ])
    t.equal(large?.kind, 'appended')
  })
  await t.test('an empty call is answered with nothing', async t => t.same(await log.appendMany([]), []))
  await t.test('the same id may stand in two streams', async t => {
    const event = anEvent()
    const results = await log.appendMany([anAppend({ events: [event] }), anAppend({ events: [event] })])
    t.same(kinds(results), ['appended', 'appended'])
  })
  await t.test('concurrent appends at one revision: one is stored', async t => {
    const stream = aStream()
    const racers = Array.from({ length: 8 }, () => log.appendMany([anAppend({ stream })]))
    const results = (await Promise.all(racers)).flat()
    t.equal(results.filter(({ kind }) => kind === 'appended').length, 1)
    t.equal(results.filter(({ kind }) => kind === 'conflict').length, 7)
    t.equal((await wholeStream(log, stream)).length, 1)
  })
}

const kinds = (results: readonly { kind: string }[]): string[] => results.map(({ kind }) => kind)

/** A stream's last revision before (null: absent), what is expected, what comes of it. */
const EXPECTATIONS: [number | null, Expected, 'appended' | 'conflict'][] = [
  [null, 'any', 'appended'],
  [null, 'no_stream', 'appended'],
  [null, 0, 'conflict'],
  [null, 5, 'conflict'],
  [0, 'any', 'appended'],
  [0, 'no_stream', 'conflict'],
  [0, 0, 'appended'],
  [0, 1, 'conflict'],
  [2, 'any', 'appended'],
  [2, 'no_stream', 'conflict'],
  [2, 0, 'conflict'],
  [2, 1, 'conflict'],
  [2, 2, 'appended'],
  [2, 3, 'conflict'],
  [2, 2_147_483_647, 'conflict'],
]

async function expectations(t: Test, log: EventLog): Promise<void> {
  for (const [head, expected, outcome] of EXPECTATIONS) {
    for (const count of [1, 3]) {
      const stream = aStream()
      const before = someEvents(head === null ? 0 : head + 1)
      if (before.length) await log.appendMany([{ stream, expected: 'no_stream', events: before }])
      const events = someEvents(count)
      const [result] = await log.appendMany([{ stream, expected, events }])
      const title = `${count} expected at ${expected}, stream at ${head}: ${outcome}`
      const stored = await wholeStream(log, stream)
      if (outcome === 'appended') {
        t.match(result, { kind: 'appended', revision: (head ?? -1) + count }, title)
        t.same(stored.map(given), [...before, ...events], `${title}: bytes`)
        t.equal(stored.at(-1)?.position, (result as { position: string }).position, `${title}: position`)
      } else {
        t.same(result, { kind: 'conflict', actual: head }, title)
        t.equal(stored.length, before.length, `${title}: nothing stored`)
      }
    }
  }
}

async function repeats(t: Test, log: EventLog): Promise<void> {
  const stream = aStream()
  const [e0, e1, e2, e3] = someEvents(4) as [Event, Event, Event, Event]
  await log.appendMany([{ stream, expected: 'no_stream', events: [e0] }])
  await log.appendMany([{ stream, expected: 0, events: [e1, e2] }])
  await log.appendMany([{ stream, expected: 2, events: [e3] }])
  const stored = await wholeStream(log, stream)
  // What is sent, and the revision that is answered; null is a conflict.
  const rows: [string, Expected, Event[], number | null][] = [
    ['the first again', 'no_stream', [e0], 0],
    ['one after later events', 0, [e1, e2], 2],
    ['the last again', 2, [e3], 3],
    ['the last again, expecting anything', 'any', [e3], 3],
    ['one after later events, expecting anything', 'any', [e1, e2], 2],
    ['the whole stream in one', 'no_stream', [e0, e1, e2, e3], 3],
    ['fewer than were sent then', 0, [e1], 1],
    ['only a prefix is the same', 0, [e1, anEvent()], null],
    ['only a prefix is the same, expecting anything', 'any', [e1, anEvent()], null],
    ['more than was sent then', 2, [e3, anEvent()], null],
    ['more than was sent then, expecting anything', 'any', [e3, anEvent()], null],
    ['more than the whole stream', 'no_stream', [e0, e1, e2, e3, anEvent()], null],
    ['the same ids at other revisions', 1, [e1, e2], null],
    ['the same ids in another order', 0, [e2, e1], null],
    ['other ids at the same revisions', 0, someEvents(2), null],
  ]
  for (const [title, expected, events, revision] of rows) {
    const [result] = await log.appendMany([{ stream, expected, events }])
    const answer =
      revision === null
        ? { kind: 'conflict', actual: 3 }
        : { kind: 'appended', revision, position: stored[revision]!.position }
    t.same(result, answer, title)
  }
  t.same(await wholeStream(log, stream), stored, 'nothing was added')
}

type Event = Append['events'][number]

async function repeatsInABatch(t: Test, log: EventLog): Promise<void> {
  const old = [anAppend(), anAppend({ events: someEvents(3) })]
  const first = await log.appendMany(old)
  const fresh = anAppend({ events: someEvents(2) })
  const results = await log.appendMany([old[1]!, fresh, { ...anAppend(), expected: 3 }, old[0]!])
  t.same([results[0], results[3]], [first[1], first[0]])
  t.match(results[1], { kind: 'appended', revision: 1 })
  t.same(results[2], { kind: 'conflict', actual: null })
  t.equal(
    (await wholeStream(log, fresh.stream)).at(-1)?.position,
    (results[1] as { position: string }).position,
  )
}

async function independence(t: Test, log: EventLog): Promise<void> {
  const taken = anAppend({ events: someEvents(2) })
  await log.appendMany([taken])
  const calls = [
    anAppend(),
    { ...anAppend(), stream: taken.stream },
    anAppend({ events: someEvents(3) }),
    { ...taken, expected: 0, events: someEvents(1), stream: aStream() },
    anAppend({ expected: 'any' }),
  ] as const
  const results = await log.appendMany(calls)
  t.same(kinds(results), ['appended', 'conflict', 'appended', 'conflict', 'appended'])
  t.same(
    results.map(result => (result.kind === 'conflict' ? result.actual : null)),
    [null, 1, null, null, null],
  )
  const stored = await log.readStreams(calls.map(({ stream }) => ({ stream, fromRevision: 0 })))
  for (const index of [0, 2, 4]) {
    const { stream, events } = calls[index]!
    t.same(stored.get(stream)?.map(given), events)
    t.equal(stored.get(stream)?.at(-1)?.position, (results[index] as { position: string }).position)
  }
}

const huge = JSON.stringify('x'.repeat(EVENT_BYTES_MAX))
const half = JSON.stringify('x'.repeat(EVENT_BYTES_MAX / 2))
const same = anEvent()
const BAD_MEMBERS: [string, Partial<Append>, 'invalid_event' | 'too_large'][] = [
  ['an id that is no UUID', { events: [anEvent({ id: 'abc' })] }, 'invalid_event'],
  ['an id in capitals', { events: [anEvent({ id: anEvent().id.toUpperCase() })] }, 'invalid_event'],
  ['the nil id', { events: [anEvent({ id: anEvent().id.replace(/[^-]/g, '0') })] }, 'invalid_event'],
  ['no type', { events: [anEvent({ type: '' })] }, 'invalid_event'],
  ['a type with a NUL', { events: [anEvent({ type: 'A\u0000' })] }, 'invalid_event'],
  ['version 0', { events: [anEvent({ version: 0 })] }, 'invalid_event'],
  ['version 1.5', { events: [anEvent({ version: 1.5 })] }, 'invalid_event'],
  ['version 40,000', { events: [anEvent({ version: 40_000 })] }, 'invalid_event'],
  ['data that is not JSON', { events: [anEvent({ data: 'data' })] }, 'invalid_event'],
  ['data with a space', { events: [anEvent({ data: '{"a": 1}' })] }, 'invalid_event'],
  ['data with a raw NUL', { events: [anEvent({ data: '"\u0000"' })] }, 'invalid_event'],
  ['data with a raw line feed', { events: [anEvent({ data: '"\n"' })] }, 'invalid_event'],
  ['data with a raw lone surrogate', { events: [anEvent({ data: '"\ud800"' })] }, 'invalid_event'],
  ['data with keys out of order', { events: [anEvent({ data: '{"b":1,"1":2}' })] }, 'invalid_event'],
  ['data with a key twice', { events: [anEvent({ data: '{"a":1,"a":2}' })] }, 'invalid_event'],
  ['metadata that is not JSON', { events: [anEvent({ metadata: '' })] }, 'invalid_event'],
  ['a second event that is bad', { events: [anEvent(), anEvent({ data: '' })] }, 'invalid_event'],
  ['one id twice', { events: [same, same] }, 'invalid_event'],
  ['an event that is too large', { events: [anEvent({ data: huge })] }, 'too_large'],
  ['events that are too large together', { events: someEvents(2, { data: half }) }, 'too_large'],
  ['no stream name', { stream: '' }, 'invalid_event'],
  ['a stream name with a NUL', { stream: 'a\u0000' }, 'invalid_event'],
  ['a stream of the system', { stream: '$all' }, 'invalid_event'],
  ['a stream name that is too long', { stream: 'x'.repeat(200) }, 'invalid_event'],
]

async function badMembers(t: Test, log: EventLog): Promise<void> {
  for (const [title, fields, reason] of BAD_MEMBERS) {
    const before = anAppend()
    const after = anAppend()
    const results = await log.appendMany([before, anAppend(fields), after])
    t.same(kinds(results), ['appended', 'rejected', 'appended'], title)
    t.match(results[1], { reason, message: /./ }, title)
    t.equal((await wholeStream(log, after.stream)).length, 1, `${title}: its neighbour is stored`)
  }
  const [alone] = await log.appendMany([anAppend({ events: [anEvent({ data: '' })] })])
  t.equal(alone?.kind, 'rejected', 'also when it is the only one')
}

async function brokenContracts(t: Test, log: EventLog): Promise<void> {
  const good = anAppend()
  const mebibyte = anEvent({ data: JSON.stringify('x'.repeat(700 * 1024)) })
  const calls: [string, Append[]][] = [
    ['a stream twice', [good, anAppend({ stream: 'twice' }), anAppend({ stream: 'twice' })]],
    ['an append without events', [good, anAppend({ events: [] })]],
    ['a negative expectation', [good, anAppend({ expected: -1 })]],
    ['an expectation that is no integer', [good, anAppend({ expected: 1.5 })]],
    ['an expectation that is no number', [good, anAppend({ expected: Number.NaN })]],
    ['an unknown expectation', [good, anAppend({ expected: 'stream_exists' as Expected })]],
    ['too many appends', [good, ...Array.from({ length: APPEND_LIMITS.appends }, () => anAppend())]],
    ['too many events', [good, anAppend({ events: someEvents(APPEND_LIMITS.events) })]],
    ['too many bytes', [good, ...Array.from({ length: 12 }, () => anAppend({ events: [mebibyte] }))]],
  ]
  for (const [title, call] of calls) await t.rejects(log.appendMany(call), { code: 'log_contract' }, title)
  t.same(await wholeStream(log, good.stream), [])
}
