import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { Consumer, Consuming, IncomingRecord } from '../../src/broker/broker.ts'
import { WORKER_EVENTS } from '../../src/broker/topics.ts'
import { streamOf } from '../../src/eventlog/codec.ts'
import { LogUnavailableError } from '../../src/eventlog/event-log.ts'
import { letterIdOf } from '../../src/workers/dead-letters.ts'
import { Ingest } from '../../src/workers/ingest.ts'
import { PostgresDeadLetters } from '../../src/workers/postgres/dead-letters.ts'
import { start } from '../domain/specification.ts'
import { FakeBroker } from '../support/fake-broker.ts'
import { testServer } from '../support/postgres.ts'
import {
  ask,
  history,
  NEVER,
  openParts,
  type Parts,
  type PartsOptions,
  recordingLogger,
  signalled,
  startParts,
  submitTasks,
  typesOf,
  until,
  wrapLog,
} from '../support/service-parts.ts'
import { anEvent, aRecord, recordOf, says } from './worker-event-records.ts'

const TRIED = 5

function ingestOf(parts: Parts) {
  const { engine, leases, pool } = parts
  const deadLetters = new PostgresDeadLetters(pool)
  const { logger, lines } = recordingLogger()
  const ingest = new Ingest({ broker: new FakeBroker(), engine, leases, deadLetters, logger })
  return {
    ingest,
    deadLetters,
    lines,
    take: (...records: IncomingRecord[]) => ingest.handleBatch(records, NEVER),
    letters: async () => {
      const ids = await parts.rows<{ id: string }>('SELECT letter_id AS id FROM rollcall.dead_letters')
      return deadLetters.read(ids.map(({ id }) => id))
    },
  }
}

async function starting(t: Test, options: PartsOptions = {}) {
  const parts = await startParts(t, options)
  return { ...parts, ...ingestOf(parts) }
}

const bad = (over: Partial<IncomingRecord> = {}): IncomingRecord =>
  aRecord({ value: Buffer.from('{'), ...over })

t.test('one bad record among 999 good ones: those are events, it is a dead letter', async t => {
  const { engine, take, letters, log, lines } = await starting(t)
  const ids = await submitTasks(engine, 999)
  const records = ids.map(taskId => says(taskId, 'SUCCEED'))
  const poison = bad()
  records.splice(500, 0, poison)
  await take(...records)
  t.match(await letters(), [{ record: poison, fault: { code: 'invalid_json' }, status: 'waiting' }])
  const tasks = await engine.readMany(ids)
  t.notOk(ids.some(id => (tasks.get(id) as { task?: { status: string } }).task?.status !== 'SUCCESS'))
  t.match(
    lines.filter(({ msg }) => msg === 'a dead letter'),
    [{ level: 50, offset: poison.offset, code: 'invalid_json' }],
  )
  await take(...records)
  t.equal((await letters()).length, 1, 'the batch again makes no other letter')
  t.strictSame(await typesOf(log, ids[998]!), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
})

t.test('batches larger than what is handled at once are handled, in their order', async t => {
  const { engine, ingest, letters, log } = await starting(t)
  const ids = await submitTasks(engine, 10)
  const noise = Array.from({ length: 2_500 }, () => says(randomUUID(), 'HEARTBEAT'))
  await ingest.handleBatch(
    [...ids.map(id => says(id, 'START')), ...noise, ...ids.map(id => says(id, 'SUCCEED')), bad()],
    NEVER,
  )
  t.equal((await letters()).length, 1)
  for (const id of ids)
    t.strictSame(await typesOf(log, id), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  await ingest.handleBatch([], NEVER)
  await t.rejects(ingest.handleBatch([bad()], AbortSignal.abort()), { name: 'AbortError' })
  t.equal((await letters()).length, 1, 'what was stopped is not begun')
})

t.test('dead letters are kept byte for byte, once', async t => {
  const { take, letters } = await starting(t)
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
  const records = [
    aRecord(),
    aRecord({ key: Buffer.alloc(0), value: Buffer.alloc(0) }),
    aRecord({ key: Buffer.alloc(0) }),
    aRecord({ value: Buffer.alloc(0) }),
    aRecord({ key: bytes, value: bytes }),
    aRecord({ key: Buffer.from(randomUUID()), value: Buffer.alloc(1024 * 1024 + 1, 0xff) }),
    aRecord({
      headers: [
        ['twice', Buffer.from('b')],
        ['twice', Buffer.from('a')],
        ['twice', Buffer.alloc(0)],
        ['bytes', bytes],
        ['\0\ud800 "name"\n', Buffer.from('x')],
        ['', Buffer.alloc(0)],
        ['__proto__', Buffer.from('p')],
      ],
    }),
    aRecord({ topic: 'another.topic', partition: 11, offset: '9223372036854775807', timestamp: -1 }),
    // The place of the first one on a topic that was made anew, and that of the second at another time.
    aRecord({ offset: '0', value: Buffer.from('1') }),
    aRecord({ offset: '0', value: Buffer.from('2') }),
    aRecord({ offset: '0', value: Buffer.from('2'), timestamp: 1 }),
    aRecord({ offset: '0', headers: [['a', Buffer.from('b')]] }),
    aRecord({ offset: '0', headers: [['ab', Buffer.alloc(0)]] }),
    aRecord({ offset: '0', headers: [['b', Buffer.from('b')]] }),
    aRecord({ offset: '0', key: Buffer.from('1') }),
  ]
  await take(...records)
  await take(...records.slice(0, 5))
  await Promise.all([take(...records), take(...records)])
  const kept = await letters()
  t.strictSame(
    kept.map(({ record }) => record),
    records,
  )
  t.strictSame(
    kept.map(({ letterId }) => letterId),
    records.map(letterIdOf),
  )
  const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/
  t.notOk(
    kept.some(({ letterId }) => !uuid.test(letterId)),
    'the ids are UUIDs of version 8',
  )
  // No date at all: it holds up nothing.
  await take(aRecord({ timestamp: 2 ** 63 }), aRecord({ timestamp: Number.NaN }), aRecord({ timestamp: 0.5 }))
  t.equal((await letters()).length, records.length + 3)
})

t.test('what is not possible now rejects the batch, and the same records again complete it', async t => {
  const away = { append: false, read: false }
  const unavailable = () => {
    throw new LogUnavailableError('away')
  }
  let conflicts = 0
  let gate: Promise<void> | null = null
  const parts = await starting(t, {
    engine: { appendDeadlineMs: 20 },
    log: log =>
      wrapLog(log, {
        appendMany: async appends => {
          if (away.append) unavailable()
          if (conflicts > 0) {
            conflicts--
            return appends.map(() => ({ kind: 'conflict', actual: 0 }))
          }
          return log.appendMany(appends)
        },
        readStreams: async streams => {
          await gate
          if (away.read) unavailable()
          return log.readStreams(streams)
        },
      }),
  })
  const { engine, take, letters, log } = parts
  /** One task of each, all in one batch with a bad record. */
  const batchOf = async () => {
    const ids = await submitTasks(engine, 3)
    const records = [
      says(ids[0]!, 'START'),
      says(ids[1]!, 'SUCCEED'),
      bad(),
      says(ids[0]!, 'PROGRESS', { progress: 0.5 }),
      says(ids[0]!, 'FAIL', { error: { message: 'm' }, retryable: false }),
      says(ids[2]!, 'START'),
    ]
    return { ids, records }
  }
  const completed = async (t: Test, { ids, records }: Awaited<ReturnType<typeof batchOf>>) => {
    const before = (await letters()).map(({ letterId }) => letterId)
    for (let times = 0; times < 3; times++) await take(...records)
    const letterId = letterIdOf(records[2]!)
    t.strictSame(
      (await letters()).map(({ letterId }) => letterId),
      [...new Set([...before, letterId])],
    )
    t.strictSame(await typesOf(log, ids[0]!), ['TaskSubmitted', 'TaskStarted', 'TaskFailed'])
    t.strictSame(await typesOf(log, ids[1]!), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    t.strictSame(await typesOf(log, ids[2]!), ['TaskSubmitted', 'TaskStarted'])
  }
  await t.test('the log takes no appends', async t => {
    const batch = await batchOf()
    away.append = true
    for (let times = 0; times < TRIED + 2; times++)
      await t.rejects(take(...batch.records), { code: 'log_unavailable' })
    t.match(await letters(), [{ record: batch.records[2] }], 'what can be kept is kept')
    away.append = false
    await completed(t, batch)
  })
  await t.test('the log cannot be read', async t => {
    const batch = await batchOf()
    away.read = true
    await t.rejects(take(...batch.records), { code: 'log_unavailable' })
    for (const id of batch.ids) parts.cache.delete(id)
    await t.rejects(take(...batch.records), { code: 'log_unavailable' })
    away.read = false
    await completed(t, batch)
  })
  await t.test('conflicts without end', async t => {
    const batch = await batchOf()
    conflicts = 6
    await t.rejects(take(...batch.records), { code: 'conflict' })
    await completed(t, batch)
    const [alone] = (await submitTasks(engine, 1)) as [string]
    const implying = says(alone, 'SUCCEED')
    conflicts = 6
    await t.rejects(take(implying), { code: 'conflict' }, 'its START alone is passing')
    await take(implying)
    t.strictSame(await typesOf(log, alone), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  })
  await t.test('too much waits', async t => {
    const batch = await batchOf()
    const opened = signalled()
    gate = opened.promise
    const waiting = engine.executeMany(Array.from({ length: 20_000 }, () => ask(randomUUID(), start())))
    // An outcome would read first, and wait as well.
    await t.rejects(take(...batch.records.filter((_, index) => index === 0 || index === 5)), {
      code: 'overloaded',
    })
    gate = null
    opened.resolve()
    await waiting
    await completed(t, batch)
  })
  await t.test('the service stops; another goes on', async t => {
    const batch = await batchOf()
    const other = await openParts(t, parts.url)
    await other.engine.stop()
    await t.rejects(ingestOf(other).take(...batch.records), { code: 'shutting_down' })
    await completed(t, batch)
  })
})

t.test('a record on which the service fails five times is set apart', async t => {
  const failing = new Set<string>()
  const parts = await starting(t, {
    log: log =>
      wrapLog(log, {
        appendMany: async appends => {
          const isGood = appends.map(({ stream }) => !failing.has(stream))
          const answers = await log.appendMany(appends.filter((_, index) => isGood[index]))
          return isGood.map(good =>
            good ? answers.shift()! : { kind: 'rejected', reason: 'invalid_event', message: 'a bug' },
          )
        },
      }),
  })
  const { engine, take, letters, log } = parts
  const failsFor = (taskId: string) => failing.add(streamOf(taskId))
  await t.test('alone, while the others of its batch go on', async t => {
    const [one, other] = (await submitTasks(engine, 2)) as [string, string]
    failsFor(one)
    const batch = [says(one, 'START'), says(other, 'START')]
    for (let times = 1; times < TRIED; times++) {
      await t.rejects(take(...batch), { code: 'internal_error' })
      t.strictSame(await letters(), [])
    }
    await take(...batch)
    t.match(await letters(), [{ record: batch[0], fault: { code: 'internal_error', taskId: one } }])
    t.strictSame(await typesOf(log, other), ['TaskSubmitted', 'TaskStarted'])
  })
  await t.test('not when it passes before', async t => {
    const [one] = (await submitTasks(engine, 1)) as [string]
    failsFor(one)
    const record = says(one, 'START')
    for (let times = 1; times < TRIED; times++) await t.rejects(take(record))
    failing.clear()
    await take(record)
    failsFor(one)
    const next = says(one, 'SUCCEED', {})
    for (let times = 1; times < TRIED; times++) await t.rejects(take(record, next))
    t.equal((await letters()).length, 1)
  })
  await t.test('also where another began to fail later: the batch comes to its end', async t => {
    const [one, other] = (await submitTasks(engine, 2)) as [string, string]
    const batch = [says(one, 'START'), says(other, 'START')]
    failing.clear()
    failsFor(one)
    for (let times = 1; times < TRIED - 1; times++) await t.rejects(take(...batch))
    const late = says(other, 'RELEASE')
    failsFor(other)
    let tries = 0
    while (tries < 3 * TRIED) {
      tries++
      const passed = await take(...batch, late).then(
        () => true,
        () => false,
      )
      if (passed) break
    }
    t.ok(tries <= TRIED, `it took ${tries}`)
  })
})

t.test('while Postgres is away a bad record is not passed, and it is kept once it is back', async t => {
  const server = await testServer(t)
  const parts = await openParts(t, server.url)
  const { take, letters } = ingestOf(parts)
  const [taskId] = (await submitTasks(parts.engine, 1)) as [string]
  const poison = bad()
  await server.stop()
  await t.rejects(take(poison))
  await t.rejects(take(poison, says(randomUUID(), 'HEARTBEAT')))
  await server.restart()
  await take(poison, says(taskId, 'START'))
  t.match(await letters(), [{ record: poison }])
  t.strictSame(await typesOf(parts.log, taskId), ['TaskSubmitted', 'TaskStarted'])
  await take(recordOf(anEvent(taskId, 'SUCCEED')))
  t.match((await history(parts.log, taskId)).at(-1), { event: { type: 'TaskSucceeded' } })
})

t.test('it consumes once the topic is there, and ends whenever it is told to', async t => {
  const parts = await startParts(t)
  const { engine, leases, pool } = parts
  class ConsumingBroker extends FakeBroker {
    consuming: Consuming | null = null
    stopped = 0
    override consume(consuming?: Consuming): Consumer {
      this.consuming = consuming!
      return {
        health: () => ({ ok: false, reason: 'of the consumer' }),
        stop: async () => {
          this.stopped++
        },
      }
    }
  }
  const open = () => {
    const broker = new ConsumingBroker()
    const { logger, lines } = recordingLogger()
    const deadLetters = new PostgresDeadLetters(pool)
    return { broker, lines, ingest: new Ingest({ broker, engine, leases, deadLetters, logger }) }
  }
  const { broker, ingest, lines } = open()
  t.match(ingest.health(), { ok: false, reason: 'it was not started' })
  broker.away.add(WORKER_EVENTS)
  ingest.start()
  ingest.start()
  await until('it says why it waits', () => /nobody answers/.test(ingest.health().reason ?? ''))
  t.match(lines, [{ level: 40, topic: WORKER_EVENTS }])
  broker.away.clear()
  await until('it consumes', () => broker.consuming !== null)
  t.match(broker.topics.get(WORKER_EVENTS), { partitions: 12, compacted: false })
  t.match(broker.consuming, { group: 'rollcall-ingest', topics: [WORKER_EVENTS] })
  t.match(ingest.health(), { reason: 'of the consumer' })
  const [taskId] = (await submitTasks(engine, 1)) as [string]
  await broker.consuming!.onBatch([says(taskId, 'START')], NEVER)
  t.match(await parts.task(taskId), { status: 'PROCESSING' })
  await Promise.all([ingest.stop(), ingest.stop()])
  t.equal(broker.stopped, 1)

  const waiting = open()
  waiting.broker.away.add(WORKER_EVENTS)
  waiting.ingest.start()
  await waiting.ingest.stop()
  t.equal(waiting.broker.consuming, null, 'stopped while it waited')
  const never = open()
  await never.ingest.stop()
  never.ingest.start()
  await never.ingest.stop()
  t.equal(never.broker.topics.size, 0, 'stopped before it was started')
})
