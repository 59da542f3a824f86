/** What is known to go wrong with this client and this server (PITFALLS E1 to E18), and that it does not here. */
import { setTimeout as sleep } from 'node:timers/promises'
import eventstoredb from '@eventstore/db-client'
import t, { type Test } from 'tap'
import { TaskCache } from '../../../src/engine/task-cache.ts'
import { TaskReader } from '../../../src/engine/task-reader.ts'
import { decodeEvent, streamOf } from '../../../src/eventlog/codec.ts'
import type { Append, EventLog, StoredEvent } from '../../../src/eventlog/event-log.ts'
import { isAfter, Names } from '../../../src/eventlog/eventstoredb/names.ts'
import { followUntil } from '../../conformance/event-log-following.ts'
import {
  anAppend,
  anEvent,
  appendUntilAnswered,
  aStream,
  given,
  someEvents,
  wholeStream,
} from '../../support/events.ts'
import { type EventStoreDBDouble, startEventStoreDBDouble } from '../../support/eventstoredb-double/double.ts'
import { until } from '../../support/service-parts.ts'
import { following, noUncaughtErrors, openAt, UNAVAILABLE } from './open.ts'

const NAMESPACE = 'here'
const names = new Names(NAMESPACE)

async function onDouble(t: Test): Promise<{ double: EventStoreDBDouble; log: EventLog }> {
  noUncaughtErrors(t)
  const double = await startEventStoreDBDouble(t)
  const log = openAt(t, double.address, { namespace: NAMESPACE })
  await log.head()
  return { double, log }
}

t.test(
  'E1 an append that the server never answers ends in time; the same bytes again are one event',
  async t => {
    const { double, log } = await onDouble(t)
    double.stall()
    const append = anAppend({ events: someEvents(2) })
    const startedAt = performance.now()
    await t.rejects(log.appendMany([append]), UNAVAILABLE)
    const tookMs = performance.now() - startedAt
    t.ok(tookMs > 900 && tookMs < 2_000, `${Math.round(tookMs)} ms`)
    double.resume()
    await appendUntilAnswered(log, append)
    t.equal((await wholeStream(log, append.stream)).length, 2)
  },
)

t.test(
  'an append that a process sent after it stood still counts for nothing: the log may be sealed',
  async t => {
    noUncaughtErrors(t)
    const double = await startEventStoreDBDouble(t)
    const log = openAt(t, double.address, { sealFreshMs: 200, appendTimeoutMs: 500 })
    await appendUntilAnswered(log)
    const append = anAppend()
    const answer = log.appendMany([append])
    answer.catch(() => {})
    const until = performance.now() + 900
    while (performance.now() < until);
    await t.rejects(answer, UNAVAILABLE)
    await appendUntilAnswered(log, append)
    t.equal((await wholeStream(log, append.stream)).length, 1)
  },
)

t.test('E2 of two logs in a process one breaks: the appends of the other go on', async t => {
  const { double, log } = await onDouble(t)
  const { double: otherDouble, log: other } = await onDouble(t)
  const results: string[] = []
  let writing = true
  const writer = (async () => {
    // Not repeated: whatever the other log does, none of these may fail.
    while (writing) results.push((await other.appendMany([anAppend()]))[0]!.kind)
  })()
  otherDouble.answerTwice(50, 5)
  for (let round = 0; round < 5; round++) {
    double.stall()
    const lost = log.appendMany([anAppend(), anAppend()])
    lost.catch(() => {})
    await sleep(20)
    double.cut()
    double.resume()
    await t.rejects(lost, UNAVAILABLE)
    await appendUntilAnswered(log)
  }
  writing = false
  await writer
  t.ok(results.length > 20, `${results.length} appends`)
  t.ok(results.every(kind => kind === 'appended'))
})

t.test('E2 late and second answers to an append are nothing', async t => {
  const { double, log } = await onDouble(t)
  double.answerLate(1_300)
  await t.rejects(log.appendMany([anAppend()]), UNAVAILABLE)
  double.answerLate(0)
  double.answerTwice(10, 10)
  for (let count = 0; count < 10; count++) await appendUntilAnswered(log)
  await sleep(600)
  t.equal(await log.countAfter(null, 100), 11)
})

t.test('E3 E4 a conflict says where the stream is', async t => {
  const { log } = await onDouble(t)
  const stream = aStream()
  await log.appendMany([{ stream, expected: 'no_stream', events: someEvents(42) }])
  t.same(await log.appendMany([{ stream, expected: 'no_stream', events: someEvents(1) }]), [
    { kind: 'conflict', actual: 41 },
  ])
  t.same(await log.appendMany([{ ...anAppend(), expected: 3 }]), [{ kind: 'conflict', actual: null }])
})

t.test('E5 an append without an expectation breaks the contract', async t => {
  const { log } = await onDouble(t)
  const { expected: _, ...without } = anAppend()
  await t.rejects(log.appendMany([without as Append]), { code: 'log_contract' })
})

t.test('E6 a repetition is recognised after later events and after a restart of the server', async t => {
  const { double, log } = await onDouble(t)
  const stream = aStream()
  const first: Append = { stream, expected: 'no_stream', events: someEvents(2) }
  const any: Append = { stream, expected: 'any', events: someEvents(1) }
  await log.appendMany([first])
  await log.appendMany([any])
  await log.appendMany([{ stream, expected: 2, events: someEvents(1) }])
  await double.restart()
  t.match(await untilAnswered(log, first), [{ kind: 'appended', revision: 1 }])
  t.match(
    await log.appendMany([any]),
    [{ kind: 'appended', revision: 2 }],
    'the server has forgotten this one',
  )
  const prefix = { ...first, events: [first.events[0]!, anEvent()] }
  t.same(await log.appendMany([prefix]), [{ kind: 'conflict', actual: 3 }])
  t.equal((await wholeStream(log, stream)).length, 4)
})

async function untilAnswered(log: EventLog, append: Append) {
  await appendUntilAnswered(log, append)
  return log.appendMany([append])
}

t.test('E6 a conflict with an own append that was stored late is no conflict', async t => {
  const { double, log } = await onDouble(t)
  const append = anAppend({ events: someEvents(3) })
  double.failAppends('timeout', { store: true })
  await t.rejects(log.appendMany([append]), UNAVAILABLE, 'its outcome is not known')
  double.store.recognisesRepetitions = false
  t.match(await log.appendMany([append]), [{ kind: 'appended', revision: 2 }])
  const other = { ...append, events: someEvents(3) }
  t.same(await log.appendMany([other]), [{ kind: 'conflict', actual: 2 }], 'what others have stored is one')
  t.equal((await wholeStream(log, append.stream)).length, 3)
})

t.test(
  'E7 deleted streams: a tombstone rejects appends, and a stream without its beginning is broken, not misread',
  async t => {
    const { double, log } = await onDouble(t)
    const taskId = '0190a000-0000-7000-8000-000000000001'
    const cut = { ...anAppend({ events: someEvents(3) }), stream: streamOf(taskId) }
    const gone = anAppend()
    await log.appendMany([cut, gone])
    const client = eventstoredb.EventStoreDBClient.connectionString(double.address)
    await client.deleteStream(names.there(cut.stream))
    await client.tombstoneStream(names.there(gone.stream))
    await client.dispose()
    t.match(await log.appendMany([{ ...gone, expected: 0, events: someEvents(1) }]), [
      { kind: 'rejected', reason: 'invalid_event', message: /deleted/ },
    ])
    t.same(await log.readStream(gone.stream, 0, 10), { events: [], next: null })
    t.same(await log.readStream(cut.stream, 0, 10), { events: [], next: null })
    t.match(await log.appendMany([{ ...cut, events: someEvents(2) }]), [{ kind: 'appended', revision: 4 }])
    const slice = await log.readStream(cut.stream, 0, 1)
    t.match(slice, { events: [{ revision: 3 }], next: 4 }, 'its numbers go on')
    t.match(await new TaskReader(log, new TaskCache()).read(taskId), { kind: 'broken' })
  },
)

t.test('E8 E9 checkpoints ahead, behind and repeated: a follower goes on where it has handled', async t => {
  const { double, log } = await onDouble(t)
  const sent: string[] = []
  const seen: string[] = []
  const done = new AbortController()
  const followed = log.follow(
    null,
    async batch => {
      seen.push(...batch.map(({ id }) => id))
      double.sendCheckpoint(double.store.lastPosition)
      double.sendCheckpoint(0n)
      double.sendCheckpoint(double.store.lastPosition)
      await sleep(10)
    },
    done.signal,
  )
  for (let round = 0; round < 20; round++) {
    const appends = Array.from({ length: 25 }, () => anAppend())
    const results = await log.appendMany(appends).catch(() => [])
    for (const [index, result] of results.entries())
      if (result.kind === 'appended') sent.push(appends[index]!.events[0]!.id)
    if (round % 4 === 3) double.endSubscriptions(round % 8 === 3 ? 'unavailable' : 'end')
  }
  await until('every event comes', () => seen.length >= sent.length)
  done.abort()
  await followed
  t.equal(new Set(seen).size, seen.length, 'each once')
  t.same(new Set(seen), new Set(sent))
})

t.test('E9 from every checkpoint there ever was comes the rest', async t => {
  const { double, log } = await onDouble(t)
  for (let count = 0; count < 12; count++) {
    await log.appendMany([anAppend()])
    // Whatever else is in the log has places too.
    if (count % 3 === 0) await writeElsewhere(double)
  }
  const all = await followUntil(log, null, 12)
  for (const [index, event] of all.slice(0, -1).entries()) {
    const from = { logId: log.id, position: event.position, eventId: event.id }
    const rest = await followUntil(log, from, 11 - index)
    t.same(
      rest.map(({ id }) => id),
      all.slice(index + 1).map(({ id }) => id),
    )
    t.match(event.position, /^\d+\/\d+$/, 'both numbers')
  }
})

async function writeElsewhere(double: EventStoreDBDouble): Promise<void> {
  const client = eventstoredb.EventStoreDBClient.connectionString(double.address)
  const event = eventstoredb.jsonEvent({ type: 'Elsewhere', data: { a: 1 } })
  await client.appendToStream(`task-${Math.random()}`, event)
  await client.appendToStream(`${NAMESPACE}-other`, event)
  await client.dispose()
}

t.test('events of others in the same server are neither followed nor counted nor the head', async t => {
  const { double, log } = await onDouble(t)
  await writeElsewhere(double)
  const append = anAppend()
  await log.appendMany([append])
  await writeElsewhere(double)
  t.match(await log.head(), { eventId: append.events[0]!.id })
  t.equal(await log.countAfter(null, 10), 1)
  t.same((await followUntil(log, null, 1)).map(given), append.events)
})

t.test('E10 positions are compared as numbers and are text in JSON', async t => {
  const at = (position: string) => ({ position })
  t.ok(isAfter(at('10/10'), at('9/9')))
  t.notOk(isAfter(at('9/9'), at('10/10')))
  t.ok(isAfter(at('9007199254740993/1'), at('9007199254740992/1')), 'beyond what a double tells apart')
  t.ok(isAfter(at('9/8'), at('9/7')))
  const { log } = await onDouble(t)
  await log.appendMany([anAppend()])
  const [event] = await followUntil(log, null, 1)
  t.same(JSON.parse(JSON.stringify(event)), event)
})

t.test('E11 a subscription that ends, or is dropped without a word, is opened again', async t => {
  const { double, log } = await onDouble(t)
  const { events } = following(log, t)
  for (const [index, end] of [
    () => double.endSubscriptions('unavailable'),
    () => double.endSubscriptions('cancelled'),
    () => double.endSubscriptions('end'),
    () => double.dropSubscriptions(),
    () => double.cut(),
  ].entries()) {
    await until('it follows', () => double.subscriptions > 0)
    end()
    await appendUntilAnswered(log)
    await until(`event ${index} comes`, () => events.length === index + 1)
  }
  t.equal(new Set(events.map(({ id }) => id)).size, 5)
})

t.test('E14 every node of a cluster is down at first: the same log works when they are up', async t => {
  noUncaughtErrors(t)
  const first = await startEventStoreDBDouble(t)
  const second = await startEventStoreDBDouble(t)
  await Promise.all([first.stop(), second.stop()])
  const log = openAt(t, `esdb://127.0.0.1:${first.port},127.0.0.1:${second.port}?tls=false`)
  const { events } = following(log, t)
  for (let round = 0; round < 3; round++) await t.rejects(log.appendMany([anAppend()]), UNAVAILABLE)
  await t.rejects(log.head(), UNAVAILABLE)
  t.throws(() => log.id, UNAVAILABLE)
  await second.start()
  const id = await appendUntilAnswered(log)
  await until('the follower goes on', () => events.length === 1)
  t.equal(events[0]?.id, id)
  t.match(log.id, /^[0-9a-f-]{36}$/)
})

t.test('E15 the leader changes: appends and reads turn to the new one, a follower loses nothing', async t => {
  noUncaughtErrors(t)
  const first = await startEventStoreDBDouble(t)
  const second = await startEventStoreDBDouble(t, { store: first.store })
  second.becomeFollower({ host: '127.0.0.1', port: first.port })
  const log = openAt(t, `esdb://127.0.0.1:${first.port},127.0.0.1:${second.port}?tls=false`)
  const { events } = following(log, t)
  const sent: string[] = []
  for (let count = 0; count < 60; count++) {
    if (count % 20 === 10) {
      const [from, to] = count % 40 === 10 ? [first, second] : [second, first]
      to.becomeLeader()
      from.becomeFollower({ host: '127.0.0.1', port: to.port })
    }
    const append = anAppend()
    sent.push(await appendUntilAnswered(log, append))
    t.equal((await wholeStream(log, append.stream)).length, 1)
  }
  await until('every event comes', () => events.length === sent.length)
  t.same(
    events.map(({ id }) => id),
    sent,
  )
})

t.test('E17 what another hand has written is no event of ours, and does not stop who follows', async t => {
  const { double, log } = await onDouble(t)
  const client = eventstoredb.EventStoreDBClient.connectionString(double.address)
  const stream = names.there('task-0190a000-0000-7000-8000-000000000002')
  await client.appendToStream(stream, [
    eventstoredb.binaryEvent({ type: 'TaskSubmitted', data: Buffer.from('{bad') }),
    eventstoredb.jsonEvent({ type: 'TaskSubmitted', data: { a: 1 } }),
    eventstoredb.jsonEvent({ type: 'TaskSubmitted', data: { a: 1 }, metadata: Buffer.from('{"version":1,') }),
  ])
  await client.dispose()
  const append = anAppend()
  await log.appendMany([append])
  const found = await followUntil(log, null, 4)
  for (const foreign of found.slice(0, 3) as StoredEvent[])
    t.throws(() => decodeEvent(foreign), { code: 'undecodable_event' })
  t.same(given(found[3]!), append.events[0])
})

t.test('E18 an append that is too large for the server is rejected, alone and for good', async t => {
  noUncaughtErrors(t)
  const double = await startEventStoreDBDouble(t, { maxAppendBytes: 20_000 })
  const log = openAt(t, double.address)
  const large = anAppend({ events: [anEvent({ data: JSON.stringify('x'.repeat(30_000)) })] })
  const results = await log.appendMany([anAppend(), large, anAppend()])
  t.match(results, [{ kind: 'appended' }, { kind: 'rejected', reason: 'too_large' }, { kind: 'appended' }])
})

t.test('the members of the client that the connection stands on are there', async t => {
  const client = eventstoredb.EventStoreDBClient.connectionString('esdb://127.0.0.1:1?tls=false')
  for (const member of ['getGRPCClient', 'callArguments', 'handleError', 'getChannel', 'dispose'])
    t.type((client as unknown as Record<string, unknown>)[member], 'function', member)
})
