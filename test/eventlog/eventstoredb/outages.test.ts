/** The log server goes away, restarts under load, loses answers, or comes back as another: nothing is lost or doubled. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { EventLog, StoredEvent } from '../../../src/eventlog/event-log.ts'
import { followUntil } from '../../conformance/event-log-following.ts'
import { anAppend, appendUntilAnswered, someEvents, wholeStream } from '../../support/events.ts'
import { type EventStoreDBDouble, startEventStoreDBDouble } from '../../support/eventstoredb-double/double.ts'
import { until } from '../../support/service-parts.ts'
import { startTcpProxy } from '../../support/tcp-proxy.ts'
import { following, noUncaughtErrors, openAt, UNAVAILABLE } from './open.ts'

const allIds = (double: EventStoreDBDouble): string[] =>
  double.store.records.filter(({ stream }) => stream.includes('.test-')).map(({ id }) => id)

/** Writers that repeat until answered, while something happens to the server; then everything is compared. */
async function underLoad(
  t: Test,
  double: EventStoreDBDouble,
  log: EventLog,
  happen: (count: () => number) => Promise<void>,
): Promise<void> {
  const { events, stop } = following(log, t)
  const acknowledged: string[] = []
  let writing = true
  const writers = Array.from({ length: 6 }, async () => {
    while (writing) acknowledged.push(await appendUntilAnswered(log))
  })
  await happen(() => acknowledged.length)
  writing = false
  await Promise.all(writers)
  const stored = allIds(double)
  const there = new Set(stored)
  t.same(
    acknowledged.filter(id => !there.has(id)),
    [],
    `${acknowledged.length} acknowledged are there`,
  )
  t.equal(there.size, stored.length, 'each once')
  await until('the follower has them all', () => events.length === stored.length)
  t.same(
    events.map(({ id }) => id),
    stored,
    'the follower got each once and in order',
  )
  await stop()
}

async function more(count: () => number, by: number): Promise<void> {
  const from = count()
  await until(`${by} more are acknowledged`, () => count() >= from + by)
}

t.test('the server restarts under load: nothing acknowledged is lost, nothing doubled', async t => {
  noUncaughtErrors(t)
  const double = await startEventStoreDBDouble(t)
  await underLoad(t, double, openAt(t, double.address), async count => {
    for (let round = 0; round < 5; round++) {
      await more(count, 100)
      await double.restart(round * 100)
    }
    await more(count, 100)
  })
})

t.test('S14 acknowledgements are lost, late, refused and doubled under load', async t => {
  noUncaughtErrors(t)
  const double = await startEventStoreDBDouble(t)
  const log = openAt(t, double.address, { appendTimeoutMs: 300 })
  await underLoad(t, double, log, async count => {
    const faults = [
      () => double.loseAcks(3),
      () => double.failAppends('server_busy', { count: 5 }),
      () => double.failAppends('timeout', { count: 5, store: true }),
      () => double.answerTwice(20, 5),
      () => double.cut(),
      async () => {
        double.answerLate(400)
        await sleep(600)
        double.answerLate(0)
      },
      async () => {
        double.stall()
        await sleep(500)
        double.resume()
      },
    ]
    for (const fault of [...faults, ...faults]) {
      await more(count, 50)
      await fault()
    }
    await more(count, 50)
  })
})

t.test('the server is away for a while: calls answer in time and work again', async t => {
  noUncaughtErrors(t)
  const double = await startEventStoreDBDouble(t)
  const log = openAt(t, double.address)
  await appendUntilAnswered(log)
  const next = followUntil(log, await log.head(), 1)
  await double.stop()
  const append = anAppend()
  for (let attempt = 0; attempt < 5; attempt++) {
    const startedAt = performance.now()
    await t.rejects(log.appendMany([append]), UNAVAILABLE)
    t.ok(performance.now() - startedAt < 1_500)
  }
  await t.rejects(log.readStream(append.stream, 0, 1), UNAVAILABLE)
  await t.rejects(log.readStreams([{ stream: append.stream, fromRevision: 0 }]), UNAVAILABLE)
  await t.rejects(log.head(), UNAVAILABLE)
  await t.rejects(log.countAfter(null, 1), UNAVAILABLE)
  await sleep(1_000)
  await double.start()
  await appendUntilAnswered(log, append)
  t.match(await log.appendMany([append]), [{ kind: 'appended', revision: 0 }], 'the same bytes again')
  t.equal((await wholeStream(log, append.stream)).length, 1)
  t.equal((await next).at(-1)?.id, append.events[0]!.id, 'the follower goes on')
})

async function behindProxy(t: Test) {
  noUncaughtErrors(t)
  const double = await startEventStoreDBDouble(t)
  const proxy = await startTcpProxy(t, double.port)
  return {
    double,
    proxy,
    log: openAt(t, `esdb://127.0.0.1:${proxy.port}?tls=false`, { appendTimeoutMs: 500, readTimeoutMs: 500 }),
  }
}

t.test('S14 the network loses the answer to an append: the same bytes again are one event', async t => {
  const { double, proxy, log } = await behindProxy(t)
  await appendUntilAnswered(log)
  const append = anAppend({ events: someEvents(2) })
  proxy.loseAnswers()
  await t.rejects(log.appendMany([append]), UNAVAILABLE)
  t.equal(allIds(double).length, 3, 'it was stored')
  proxy.restore()
  await appendUntilAnswered(log, append)
  t.equal(allIds(double).length, 3)
})

t.test('the network hangs: calls answer in time, a follower goes on when it is back', async t => {
  const { proxy, log } = await behindProxy(t)
  await appendUntilAnswered(log)
  const followed = followUntil(log, null, 2)
  proxy.hold()
  const calls: (() => Promise<unknown>)[] = [() => log.appendMany([anAppend()]), () => log.head()]
  for (const call of calls) {
    const startedAt = performance.now()
    await t.rejects(call(), UNAVAILABLE)
    const tookMs = performance.now() - startedAt
    t.ok(tookMs < 1_500, `${Math.round(tookMs)} ms`)
  }
  proxy.restore()
  await appendUntilAnswered(log)
  t.ok((await followed).length >= 2)
})

t.test('a log behind a network that hangs can be closed', async t => {
  const { proxy, log } = await behindProxy(t)
  const followed = log.follow(null, async () => {}, new AbortController().signal)
  await appendUntilAnswered(log)
  proxy.hold()
  const startedAt = performance.now()
  await log.close()
  await followed
  t.ok(performance.now() - startedAt < 4_000)
})

t.test('a log that went backwards while it was followed is noticed', async t => {
  const cases: [string, (double: EventStoreDBDouble) => void][] = [
    ['emptied', double => double.forget()],
    ['cut off at its end', double => double.goBackTo(double.store.records.at(-3)!.position)],
  ]
  for (const [title, happen] of cases) {
    const double = await startEventStoreDBDouble(t)
    const log = openAt(t, double.address)
    await log.appendMany([anAppend({ events: someEvents(5) })])
    let changed = false
    const onBatch = async (batch: readonly StoredEvent[]) => {
      if (batch.length > 0 || changed) return
      changed = true
      happen(double)
    }
    const followed = log.follow(null, onBatch, new AbortController().signal)
    await t.rejects(followed, { code: 'log_went_backwards' }, title)
  }
})

t.test('a checkpoint inside an event, as an older copy of the log may have it, is noticed', async t => {
  const double = await startEventStoreDBDouble(t)
  const log = openAt(t, double.address)
  await log.appendMany([anAppend({ events: someEvents(5) })])
  const [first] = await followUntil(log, null, 5)
  const inside = String(double.store.records.find(({ id }) => id === first!.id)!.position + 1n)
  const from = { logId: log.id, position: `${inside}/${inside}`, eventId: first!.id }
  await t.rejects(followUntil(log, from, 1), { code: 'log_went_backwards' })
  await t.rejects(log.countAfter(from, 1), { code: 'log_went_backwards' })
})

t.test('another log at the same address is noticed before it is appended to', async t => {
  const double = await startEventStoreDBDouble(t)
  const log = openAt(t, double.address, { sealFreshMs: 50 })
  await appendUntilAnswered(log)
  double.forget()
  await sleep(100)
  await t.rejects(log.appendMany([anAppend()]), { ...UNAVAILABLE, message: /has no identity any more/ })
  t.equal(double.store.records.length, 0)
})
