/** The publisher of task statuses on a broker that fails as a test wants it to: nothing is skipped, whatever happens. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { BrokerUnavailableError } from '../../src/broker/broker.ts'
import { TASK_STATUS } from '../../src/broker/topics.ts'
import type { Command } from '../../src/domain/commands.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { copyLog } from '../../src/projections/copy-log.ts'
import { PostgresPlaces } from '../../src/projections/postgres/postgres-places.ts'
import { Metrics } from '../../src/runtime/metrics.ts'
import { PostgresStatusDoubts } from '../../src/workers/postgres/status-doubts.ts'
import { type TaskStatus, taskStatusSchema } from '../../src/workers/status-message.ts'
import {
  STATUS_PUBLISHER,
  StatusPublisher,
  type StatusPublisherOptions,
} from '../../src/workers/status-publisher.ts'
import { fail, start, succeed } from '../domain/specification.ts'
import { FakeBroker } from '../support/fake-broker.ts'
import {
  ask,
  mustBe,
  openParts,
  type Parts,
  recordingLogger,
  SILENT,
  signalled,
  startParts,
  submitTasks,
  until,
  wrapLog,
} from '../support/service-parts.ts'

function publish(
  t: Test,
  parts: Parts,
  broker: FakeBroker,
  over: Partial<StatusPublisherOptions> = {},
): StatusPublisher {
  const { log, pool, clock } = parts
  const publisher = new StatusPublisher({
    log,
    clock,
    broker,
    places: new PostgresPlaces(pool),
    doubts: new PostgresStatusDoubts(pool),
    logger: SILENT,
    standbyMs: 20,
    ...over,
  })
  t.teardown(() => publisher.stop())
  publisher.start()
  return publisher
}

async function all(parts: Parts, ids: readonly string[], command: Command): Promise<void> {
  for (const answer of await parts.engine.executeMany(ids.map(id => ask(id, command))))
    mustBe('accepted', answer)
}

const statuses = (broker: FakeBroker): TaskStatus[] =>
  broker.sent.map(({ record }) => taskStatusSchema.parse(JSON.parse(String(record.value))))

/** What was told of each task, in its order. */
function told(broker: FakeBroker): Map<string, string> {
  const all = new Map<string, string>()
  for (const { taskId, status } of statuses(broker))
    all.set(taskId, all.has(taskId) ? `${all.get(taskId)} ${status}` : status)
  return all
}

/** What a compacted topic keeps. */
const kept = (broker: FakeBroker): Map<string, string> =>
  new Map(statuses(broker).map(({ taskId, status, revision }) => [taskId, `${status} ${revision}`]))

const keeps = (broker: FakeBroker, ids: readonly string[], what: string): boolean => {
  const newest = kept(broker)
  return ids.every(id => newest.get(id) === what)
}

const place = async ({ rows }: Parts) =>
  (
    await rows<{ log_id: string | null; position: string | null; holder: string | null }>(
      'SELECT * FROM rollcall.projectors WHERE name = $1',
      [STATUS_PUBLISHER],
    )
  )[0]

/** Whether the place is the log's end. */
const atEnd = async (parts: Parts): Promise<boolean> =>
  (await place(parts))?.position === (await parts.log.head())?.position

t.test(
  'what is in the log already is published, and each change after it once, in order',

  async t => {
    const parts = await startParts(t)
    const broker = new FakeBroker()
    const before = await submitTasks(parts.engine, 30, () => ({ labels: { team: 'a' } }))
    const publisher = publish(t, parts, broker)
    const after = await submitTasks(parts.engine, 30)
    const ids = [...before, ...after]
    await all(parts, ids, start())
    await all(parts, ids, succeed())
    await until('all is published', () => keeps(broker, ids, 'SUCCESS 2'))
    t.strictSame(
      [...told(broker)],
      ids.map(id => [id, 'PENDING PROCESSING SUCCESS']),
    )
    t.strictSame(broker.topics.get(TASK_STATUS), { name: TASK_STATUS, partitions: 12, compacted: true })
    await until('the place is moved', () => atEnd(parts))
    t.strictSame(publisher.health(), { ok: true, reason: null })
    t.equal(publisher.lagSeconds(), 0)
  },
)

t.test('it may be started and stopped twice, and goes on from its place', async t => {
  const parts = await startParts(t)
  const broker = new FakeBroker()
  const publisher = publish(t, parts, broker)
  await publisher.stop()
  await publisher.stop()
  t.equal(publisher.mode, 'stopped')
  t.equal((await place(parts))!.holder, null)
  const ids = await submitTasks(parts.engine, 5)
  publisher.start()
  publisher.start()
  await until('all is published', () => keeps(broker, ids, 'PENDING 0'))
  await publisher.stop()
  // Nothing of these tasks is known to the next one.
  await all(parts, ids, start())
  publish(t, parts, broker)
  await until('the rest is published', () => keeps(broker, ids, 'PROCESSING 1'))
  t.equal(broker.sent.length, 10)
})

t.test(
  'a publisher that ends between the send and the move of its place repeats and skips nothing',
  async t => {
    const parts = await startParts(t)
    const broker = new FakeBroker()
    const ids = await submitTasks(parts.engine, 20)
    const places = new PostgresPlaces(parts.pool)
    const dies = signalled()
    const first = publish(t, parts, broker, {
      places: {
        acquire: (...asked) => places.acquire(...asked),
        renew: (...asked) => places.renew(...asked),
        giveUp: (...asked) => places.giveUp(...asked),
        advance: async () => {
          dies.resolve()
          throw new Error('it ends here')
        },
      },
    })
    await dies.promise
    await first.stop()
    const sent = broker.sent.map(({ record }) => record.headers.ce_id)
    t.equal(new Set(sent).size, 20, 'it had sent them')
    t.notOk((await place(parts))!.position)
    await all(parts, ids, start())
    publish(t, parts, broker)
    await until('all is published', () => keeps(broker, ids, 'PROCESSING 1'))
    const again = broker.sent.slice(sent.length).map(({ record }) => record.headers.ce_id)
    t.strictSame(again.slice(0, 20), sent.slice(0, 20), 'the same events, by their ids')
  },
)

t.test(
  'of two one publishes; the other takes over when it is stopped, and skips nothing',

  async t => {
    const parts = await startParts(t)
    const other = await openParts(t, parts.url)
    const broker = new FakeBroker()
    const first = publish(t, parts, broker)
    await until('it publishes', () => first.mode === 'following')
    const second = publish(t, other, broker)
    const ids = await submitTasks(parts.engine, 20)
    await until('all is published', () => keeps(broker, ids, 'PENDING 0'))
    await until('the other stands by', () => second.mode === 'standing_by')
    t.equal(second.lagSeconds(), null, 'who stands by knows nothing of a lag')
    t.ok(second.health().ok)
    await first.stop()
    await all(parts, ids, start())
    await until('the rest is published', () => keeps(broker, ids, 'PROCESSING 1'))
    t.equal(second.mode, 'following')
    t.equal(broker.sent.length, 40, 'and nothing twice')
  },
)

t.test('the lease is kept while the broker lets wait for its answer', async t => {
  const parts = await startParts(t)
  const broker = new FakeBroker()
  const answer = signalled()
  broker.onSend = () => answer.promise
  const first = publish(t, parts, broker, { leaseMs: 3_000 })
  const ids = await submitTasks(parts.engine, 1)
  await until('it publishes', () => first.mode === 'following')
  const second = publish(t, parts, broker, { leaseMs: 3_000 })
  await sleep(5_000)
  t.strictSame([first.mode, second.mode], ['following', 'standing_by'])
  await until('it says how long it takes', () => (first.lagSeconds() ?? 0) > 1)
  answer.resolve()
  await until('it is published', () => keeps(broker, ids, 'PENDING 0'))
})

t.test(
  'what a replaced publisher sent too late is put right: the topic keeps the newest',

  async t => {
    const parts = await startParts(t)
    const other = await openParts(t, parts.url)
    const broker = new FakeBroker()
    const stuck = signalled()
    const arrives = signalled()
    broker.onSend = () => {
      stuck.resolve()
      return arrives.promise
    }
    // Its renewals do not reach the database, as those of a process that stands still.
    const places = new PostgresPlaces(parts.pool)
    const { logger, lines } = recordingLogger()
    const first = publish(t, parts, broker, {
      logger,
      leaseMs: 300,
      places: {
        acquire: (...asked) => places.acquire(...asked),
        renew: async () => {},
        giveUp: (...asked) => places.giveUp(...asked),
        advance: step => places.advance(step),
      },
    })
    const ids = await submitTasks(parts.engine, 10)
    await stuck.promise
    broker.onSend = () => {}
    const second = publish(t, other, broker)
    await until('the other takes over', () => second.mode === 'following')
    await all(parts, ids, start())
    await all(parts, ids, succeed())
    await until('the other has published all', () => keeps(broker, ids, 'SUCCESS 2'))
    arrives.resolve()
    await until('the first hears of it', () => lines.some(({ msg }) => msg === 'standing by'))
    await until('the topic keeps the newest', () => keeps(broker, ids, 'SUCCESS 2'))
    const old = broker.sent.findLastIndex(
      ({ record }) => JSON.parse(String(record.value)).status === 'PENDING',
    )
    t.ok(old >= 30, 'the old ones came late')
    t.equal(first.mode, 'standing_by')
  },
)

t.test('what a publisher was sending when it died is put right by the next one', async t => {
  const parts = await startParts(t)
  const other = await openParts(t, parts.url)
  const broker = new FakeBroker()
  const late: (typeof broker.sent)[number][] = []
  const send = broker.send.bind(broker)
  const stuck = signalled()
  broker.send = (topic, records) => {
    late.push(...records.map(record => ({ topic, record })))
    stuck.resolve()
    return new Promise(() => {})
  }
  const places = new PostgresPlaces(parts.pool)
  const dead = publish(t, parts, broker, {
    leaseMs: 300,
    settleMs: 8_000,
    places: {
      acquire: (...asked) => places.acquire(...asked),
      renew: async () => {},
      giveUp: (...asked) => places.giveUp(...asked),
      advance: step => places.advance(step),
    },
  })
  const ids = await submitTasks(parts.engine, 5)
  await stuck.promise
  broker.send = send
  const next = publish(t, other, broker, { settleMs: 8_000 })
  await until('the next one takes over', () => next.mode === 'following')
  await all(parts, ids, start())
  await until('all is published', () => keeps(broker, ids, 'PROCESSING 1'))
  broker.sent.push(...late)
  t.notOk(keeps(broker, ids, 'PROCESSING 1'), 'the topic has old ones as its newest')
  await until('the newest is sent again', () => keeps(broker, ids, 'PROCESSING 1'))
  await until('nothing is in doubt', async () => {
    const [row] = await parts.rows<{ count: number }>(
      'SELECT count(*)::int AS count FROM rollcall.status_doubts',
    )
    return row!.count === 0
  })
  await dead.stop()
})

t.test(
  'a send that failed and arrives all the same is put right when none can arrive any more',

  async t => {
    const parts = await startParts(t)
    const broker = new FakeBroker()
    const lost: (typeof broker.sent)[number][] = []
    const send = broker.send.bind(broker)
    let failing = true
    broker.send = async (topic, records) => {
      if (!failing) return send(topic, records)
      failing = false
      lost.push(...records.map(record => ({ topic, record })))
      throw new BrokerUnavailableError('no answer')
    }
    publish(t, parts, broker, { settleMs: 1_500 })
    const ids = await submitTasks(parts.engine, 5)
    await all(parts, ids, start())
    await until('all is published', () => keeps(broker, ids, 'PROCESSING 1'))
    t.ok(lost.length > 0)
    broker.sent.push(...lost)
    const came = broker.sent.length
    await until('the newest is sent again', () => broker.sent.length > came)
    t.ok(keeps(broker, ids, 'PROCESSING 1'))
  },
)

t.test(
  'while the broker is away the same batch is sent again, one at a time, and nothing is skipped',
  async t => {
    const parts = await startParts(t)
    const broker = new FakeBroker()
    const { logger, lines } = recordingLogger()
    const metrics = new Metrics({ types: [], rollCall: null })
    const publisher = publish(t, parts, broker, { logger, observer: metrics.status })
    metrics.status.lagSeconds = () => publisher.lagSeconds()
    const first = await submitTasks(parts.engine, 3)
    await until('it publishes', () => keeps(broker, first, 'PENDING 0'))
    broker.away.add(TASK_STATUS)
    const after = await submitTasks(parts.engine, 300)
    await all(parts, after, start())
    await until('it failed', async () =>
      /failures_total\{reason="unavailable"\} [2-9]/.test(await metrics.scrape()),
    )
    t.match(await metrics.scrape(), /rollcall_status_lag_seconds 0\.\d+/)
    t.equal(broker.sent.length, 3)
    t.equal(publisher.mode, 'following', 'the lease is kept meanwhile')
    broker.topics.clear()
    broker.away.clear()
    await until('all is published', () => keeps(broker, after, 'PROCESSING 1'))
    const two = told(broker)
    t.strictSame([...new Set(after.map(id => two.get(id)))], ['PENDING PROCESSING'])
    await until('the place is moved', () => atEnd(parts))
    t.match(await metrics.scrape(), /rollcall_status_published_total 603\n/)
    t.match(await metrics.scrape(), /rollcall_status_lag_seconds 0\n/)
    t.strictSame(
      lines.filter(({ level }) => level >= 40).map(({ msg }) => msg),
      ['task statuses cannot be published; this goes on until they can'],
      'said once',
    )
    t.ok(broker.topics.get(TASK_STATUS)?.compacted, 'a topic that is gone is made again')
  },
)

t.test('a stop while the broker does not answer waits for a bounded time', async t => {
  const parts = await startParts(t)
  const broker = new FakeBroker()
  const stuck = signalled()
  broker.onSend = () => {
    stuck.resolve()
    return new Promise(() => {})
  }
  const publisher = publish(t, parts, broker)
  await submitTasks(parts.engine, 1)
  await stuck.promise
  await publisher.stop()
  t.equal(publisher.mode, 'stopped')
  t.equal((await place(parts))!.holder, null, 'and others need not wait for its lease')
})

t.test('a stop while what is put right is not answered waits for a bounded time', async t => {
  const parts = await startParts(t)
  const broker = new FakeBroker()
  const publisher = publish(t, parts, broker, { settleMs: 500 })
  const ids = await submitTasks(parts.engine, 3)
  await until('it is published', () => keeps(broker, ids, 'PENDING 0'))
  const sending = signalled()
  broker.onSend = () => {
    sending.resolve()
    return new Promise(() => {})
  }
  await sending.promise
  await publisher.stop()
  t.equal(publisher.mode, 'stopped')
})

t.test('what the broker refuses for its size goes out in a short form, and in order', async t => {
  const parts = await startParts(t)
  const broker = new FakeBroker()
  broker.refuses = ({ value }) => value!.length > 5_000
  const ids = await submitTasks(parts.engine, 3)
  await all(parts, ids, start())
  const [large, ...small] = ids
  await all(parts, [large!], fail({ error: { code: 'long', message: 'x'.repeat(20_000) }, retryable: false }))
  await all(parts, small, succeed())
  publish(t, parts, broker)
  await until('all is published', () => keeps(broker, small, 'SUCCESS 2'))
  t.equal(told(broker).get(large!), 'PENDING PROCESSING FAILED')
  const failed = statuses(broker).findLast(({ taskId }) => taskId === large)
  t.match(failed?.error, { code: 'long', message: /^x{1000,1024}…$/ })
})

t.test(
  'a task whose event cannot be read is passed over and told of; the others are published',

  async t => {
    const parts = await startParts(t)
    const broker = new FakeBroker()
    const ids = await submitTasks(parts.engine, 10)
    await all(parts, ids, start())
    await parts.rows(`UPDATE rollcall_log.events SET data = '{}' WHERE stream = $1 AND revision = 1`, [
      `task-${ids[0]}`,
    ])
    const { logger, lines } = recordingLogger()
    publish(t, parts, broker, { logger })
    await until('the others are published', () => keeps(broker, ids.slice(1), 'PROCESSING 1'))
    await until('the place is moved', () => atEnd(parts))
    t.equal(kept(broker).get(ids[0]!), 'PENDING 0')
    t.equal(lines.filter(({ level }) => level === 50).length, 1)
  },
)

t.test('a log that went backwards halts it, and health says so', async t => {
  const parts = await startParts(t)
  const broker = new FakeBroker()
  const publisher = publish(t, parts, broker)
  const ids = await submitTasks(parts.engine, 3)
  await until('it publishes', () => keeps(broker, ids, 'PENDING 0'))
  await until('the place is moved', () => atEnd(parts))
  const { position } = (await place(parts))!
  await parts.rows('DELETE FROM rollcall_log.events WHERE position > $1::bigint - 2', [position])
  await until('it halts', () => publisher.mode === 'halted')
  t.match(publisher.health(), { ok: false, reason: /^the log went backwards.*task statuses were published/ })
})

t.test('a log that does not answer is waited for, from the place where it was', async t => {
  const parts = await startParts(t)
  const broker = new FakeBroker()
  let away = true
  let asked = 0
  const log = wrapLog(parts.log, {
    follow: (from, onBatch, signal) => {
      asked++
      return away ? Promise.reject(new Error('away')) : parts.log.follow(from, onBatch, signal)
    },
  })
  publish(t, parts, broker, { log })
  const ids = await submitTasks(parts.engine, 3)
  await until('it asked twice', () => asked > 1)
  away = false
  await until('it publishes', () => keeps(broker, ids, 'PENDING 0'))
})

t.test('its place moves along when the log is moved to another one', async t => {
  const parts = await startParts(t)
  const broker = new FakeBroker()
  const publisher = publish(t, parts, broker)
  parts.projector.start()
  const ids = await submitTasks(parts.engine, 20)
  await all(parts, ids.slice(0, 10), start())
  await until('it publishes', () => keeps(broker, ids.slice(0, 10), 'PROCESSING 1'))
  const target = createMemoryEventLog({ pastSeal: true })
  const moved = await copyLog({ from: parts.log, to: target, pool: parts.pool, patienceMs: 10_000 })
  t.strictSame([...moved.projectors].sort(), [STATUS_PUBLISHER, 'tasks'])
  await until('the old one halts', () => publisher.mode === 'halted')
  t.match(publisher.health().reason, `was moved to log ${target.id}`)
  t.equal((await place(parts))!.log_id, target.id)
  const sent = broker.sent.length
  const next = await openParts(t, parts.url, {
    log: own => {
      void own.close()
      return wrapLog(target, { close: async () => {} })
    },
  })
  publish(t, next, broker)
  await all(next, ids.slice(10), start())
  await until('the new one goes on', () => keeps(broker, ids, 'PROCESSING 1'))
  t.ok(broker.sent.length <= sent + 20, 'and does not begin anew')
})

t.test(
  'the topic is there before the first task, and a lag is told where it cannot be made',

  async t => {
    const parts = await startParts(t)
    const broker = new FakeBroker()
    broker.away.add(TASK_STATUS)
    const publisher = publish(t, parts, broker)
    await until('it says that it waits', () => (publisher.lagSeconds() ?? 0) > 0.2)
    broker.away.clear()
    await until('the topic is there', () => broker.topics.has(TASK_STATUS))
    await until('nothing waits', () => publisher.lagSeconds() === 0)
    t.strictSame(broker.sent, [])
  },
)

t.test('metrics say nothing of a lag where nobody publishes', async t => {
  const metrics = new Metrics({ types: [], rollCall: null })
  t.notMatch(await metrics.scrape(), /^rollcall_status_lag_seconds/m)
})
