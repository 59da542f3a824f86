/** Conformance of reads: bytes come back as they were given, pages are bounded. */
import type { Test } from 'tap'
import { type EventLog, READ_LIMITS, type StoredEvent } from '../../src/eventlog/event-log.ts'
import { anAppend, anEvent, aStream, given, someEvents, wholeStream } from '../support/events.ts'
import type { MakeLog } from './event-log.ts'

export async function reading(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  await t.test('S40 S41 bytes come back as they were given', t => bytes(t, log))
  await t.test('a stream that does not exist is empty', async t => {
    t.same(await log.readStream(aStream(), 0, 10), { events: [], next: null })
    t.same(await log.readStream(aStream(), 7, 10), { events: [], next: null })
  })
  await t.test('a stream is read from a revision, in pages bounded by count', t => pagesByCount(t, log))
  await t.test('a stream of 50,000 events is read in pages', t => longStream(t, log))
  await t.test('S53 pages are bounded by bytes', t => pagesByBytes(t, log))
  await t.test('many streams are read, each from its own revision', t => manyStreams(t, log))
  await t.test('the head is the newest event', async t => {
    const empty = await makeLog(t)
    t.equal(await empty.head(), null)
    const append = anAppend({ events: someEvents(2) })
    const [result] = await empty.appendMany([append])
    const { position } = result as { position: string }
    t.same(await empty.head(), { logId: empty.id, position, eventId: append.events[1]!.id })
  })
  await t.test('events after a place are counted, up to a limit', t => countsAfter(t, makeLog))
  await t.test('a log has an identity of its own', async t => {
    const other = await makeLog(t)
    t.match(log.id, /^[0-9a-f-]{36}$/)
    t.not(other.id, log.id)
  })
  await t.test('a log may be closed twice', async t => {
    const closed = await makeLog(t)
    await closed.close()
    await closed.close()
    await t.rejects(closed.appendMany([anAppend()]), { code: 'log_unavailable' })
    await t.rejects(closed.readStream(aStream(), 0, 1), { code: 'log_unavailable' })
    await t.rejects(closed.head(), { code: 'log_unavailable' })
    await t.rejects(closed.countAfter(null, 1), { code: 'log_unavailable' })
  })
}

async function countsAfter(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  t.equal(await log.countAfter(null, 10), 0, 'nothing in an empty log')
  await log.appendMany([anAppend({ events: someEvents(2) })])
  const second = (await log.head())!
  await log.appendMany([anAppend({ events: someEvents(3) }), anAppend()])
  t.equal(await log.countAfter(null, 10), 6, 'all of them from the start')
  t.equal(await log.countAfter(null, 5), 5, 'no more than the limit')
  t.equal(await log.countAfter(second, 10), 4)
  t.equal(await log.countAfter(second, 4), 4)
  t.equal(await log.countAfter(second, 3), 3)
  t.equal(await log.countAfter((await log.head())!, 10), 0, 'none after the head')

  const wentBackwards = { code: 'log_went_backwards' }
  const other = await makeLog(t)
  await other.appendMany([anAppend({ events: someEvents(9) })])
  const further = (await other.head())!
  for (const [title, place] of [
    ['another event there', { ...second, eventId: further.eventId }],
    ['a place of another log', { ...second, logId: other.id }],
    ['a place beyond the end', { ...further, logId: log.id }],
  ] as const)
    await t.rejects(log.countAfter(place, 10), wentBackwards, title)
}

const VALUES: [string, unknown][] = [
  ['an escaped NUL', 'a\u0000b'],
  ['the six characters backslash-u0000', '\\u0000'],
  ['lone surrogates, escaped', ['\ud800', '\udfff', 'x\udc00y']],
  ['control characters and line ends', '\u0001\t\r\n\u001f\u007f\u0085\u2028\u2029'],
  ['scripts and emoji', 'żółć 漢字 עברית 👩‍👩‍👧‍👦 e\u0301 \ufeff'],
  ['quotes, backslashes, braces, commas', '\\ \\\\ " \' {} {"a,b"} $1 $$ NULL %s'],
  ['numbers', [0, -1, 1.5, 1e21, 5e-324, 1.7976931348623157e308, 9007199254740991]],
  ['keys that look like others', JSON.parse('{"__proto__":{"a":1},"constructor":2,"":3}')],
  ['null', null],
  ['true', true],
  ['nothing in an array', []],
  ['256 KiB', 'x'.repeat(256 * 1024)],
  ['256 KiB of emoji', '👍'.repeat(64 * 1024)],
]

async function bytes(t: Test, log: EventLog): Promise<void> {
  for (const [title, value] of VALUES) {
    const text = JSON.stringify(value)
    const append = anAppend({ events: [anEvent({ data: text, metadata: text })] })
    const [result] = await log.appendMany([append])
    const { position } = result as { position: string }
    const { events } = await log.readStream(append.stream, 0, 1)
    t.same(events.map(given), append.events, title)
    t.match(events, [{ stream: append.stream, revision: 0, position }], title)
    t.strictSame(JSON.parse(events[0]!.data), value, title)
  }
  const all = anAppend({ events: VALUES.map(([, value]) => anEvent({ data: JSON.stringify(value) })) })
  await log.appendMany([all])
  t.same((await wholeStream(log, all.stream)).map(given), all.events, 'all in one append')
  const versioned = anAppend({ events: [anEvent({ version: 32_767, type: 'Null', metadata: 'null' })] })
  await log.appendMany([{ ...versioned, stream: 'null' }])
  t.same((await wholeStream(log, 'null')).map(given), versioned.events, 'names that mean something elsewhere')
}

async function pagesByCount(t: Test, log: EventLog): Promise<void> {
  const append = anAppend({ events: someEvents(10) })
  await log.appendMany([append])
  const ids = append.events.map(({ id }) => id)
  const rows: [number, number, string[], number | null][] = [
    [0, 10, ids, null],
    [0, 4, ids.slice(0, 4), 4],
    [4, 4, ids.slice(4, 8), 8],
    [8, 4, ids.slice(8), null],
    [9, 1, ids.slice(9), null],
    [8, 1, ids.slice(8, 9), 9],
    [10, 4, [], null],
    [99, 4, [], null],
    [0, 1_000_000, ids, null],
  ]
  for (const [from, limit, expected, next] of rows) {
    const slice = await log.readStream(append.stream, from, limit)
    t.same(
      slice.events.map(({ id }) => id),
      expected,
      `${limit} from ${from}`,
    )
    t.equal(slice.next, next, `${limit} from ${from}: next`)
  }
}

async function longStream(t: Test, log: EventLog): Promise<void> {
  const stream = aStream()
  for (let from = 0; from < 50_000; from += 2_000) {
    const events = Array.from({ length: 2_000 }, (_, index) => anEvent({ data: String(from + index) }))
    await log.appendMany([{ stream, expected: from === 0 ? 'no_stream' : from - 1, events }])
  }
  const whole = await wholeStream(log, stream, 1_000_000)
  t.equal(whole.length, 50_000)
  t.ok(
    whole.every(({ revision, data }, index) => revision === index && data === String(index)),
    'in the order of revisions, without gaps',
  )
  const middle = await log.readStream(stream, 25_000, 300)
  t.equal(middle.events[0]?.revision, 25_000)
  t.equal(middle.next, 25_300)
  t.equal((await log.readStream(stream, 0, 1_000_000)).events.length, READ_LIMITS.events)
}

const bytesOf = (events: readonly StoredEvent[]): number =>
  events.reduce((sum, { data, metadata }) => sum + data.length + metadata.length, 0)

async function pagesByBytes(t: Test, empty: EventLog): Promise<void> {
  const stream = aStream()
  const data = JSON.stringify('x'.repeat(200 * 1024))
  for (let from = 0; from < 1_000; from += 4)
    await empty.appendMany([
      { stream, expected: from === 0 ? 'no_stream' : from - 1, events: someEvents(4, { data }) },
    ])
  let pages = 0
  let read = 0
  for (let from: number | null = 0; from !== null; pages++) {
    const slice = await empty.readStream(stream, from, 1_000)
    if (bytesOf(slice.events) > READ_LIMITS.bytes + data.length + 100) t.fail('a page is too large')
    if (slice.events[0]?.revision !== read) t.fail('a page does not go on where the last one ended')
    read += slice.events.length
    from = slice.next
  }
  t.equal(read, 1_000)
  t.ok(pages >= 24, `${pages} pages`)
  const largest = JSON.stringify('x'.repeat(800 * 1024))
  const large = aStream()
  for (let from = 0; from < 9; from++)
    await empty.appendMany([
      {
        stream: large,
        expected: from === 0 ? 'no_stream' : from - 1,
        events: someEvents(1, { data: largest }),
      },
    ])
  t.equal((await wholeStream(empty, large, 1)).length, 9, 'one by one')
}

async function manyStreams(t: Test, log: EventLog): Promise<void> {
  const appends = [1, 5, 3].map(count => anAppend({ events: someEvents(count) }))
  await log.appendMany(appends)
  const [one, five, three] = appends.map(({ stream }) => stream) as [string, string, string]
  const asked = [
    { stream: five, fromRevision: 2 },
    { stream: aStream(), fromRevision: 0 },
    { stream: one, fromRevision: 0 },
    { stream: three, fromRevision: 3 },
  ]
  const found = await log.readStreams(asked)
  t.same([...found.keys()].sort(), [five, one].sort(), 'those with nothing to read are absent')
  t.same(
    found.get(five)?.map(({ revision }) => revision),
    [2, 3, 4],
  )
  t.same(found.get(one)?.map(given), appends[0]!.events)
  t.equal((await log.readStreams([])).size, 0)
}
