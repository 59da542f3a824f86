/** The publisher of task statuses on a real broker: every task is told of to its end, in order, whoever is killed. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import kafkajs, { Kafka, logLevel } from 'kafkajs'
import t, { type Test } from 'tap'
import type { Broker, IncomingRecord } from '../../src/broker/broker.ts'
import { openKafkaBroker } from '../../src/broker/kafka/kafka-broker.ts'
import { TASK_STATUS } from '../../src/broker/topics.ts'
import { openEventStoreDBEventLog } from '../../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../../src/eventlog/eventstoredb/settings.ts'
import { PostgresPlaces } from '../../src/projections/postgres/postgres-places.ts'
import type { KafkaBroker } from '../../src/runtime/kafka-broker/kafka-broker.ts'
import { PostgresStatusDoubts } from '../../src/workers/postgres/status-doubts.ts'
import { type TaskStatus, taskStatusSchema } from '../../src/workers/status-message.ts'
import { STATUS_PUBLISHER, StatusPublisher } from '../../src/workers/status-publisher.ts'
import { start, succeed } from '../domain/specification.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import { ownKafkaBroker, uniqueName } from '../support/kafka.ts'
import { ask, mustBe, type Parts, SILENT, startParts, submitTasks, until } from '../support/service-parts.ts'

const SCRIPT = fileURLToPath(new URL('./status-publisher-process.ts', import.meta.url))

function open(t: Test, brokers: readonly string[]): Broker {
  const broker = openKafkaBroker({
    brokers,
    clientId: 'rollcall-test',
    logger: SILENT,
    timeouts: { sendMs: 3_000, requestMs: 2_000, connectMs: 1_000, firstRetryMs: 50, lastRetryMs: 500 },
  })
  t.teardown(() => broker.close())
  return broker
}

function publish(t: Test, { log, pool, clock }: Parts, broker: Broker): StatusPublisher {
  const places = new PostgresPlaces(pool)
  const publisher = new StatusPublisher({
    ...{ log, clock, broker, places, logger: SILENT, standbyMs: 50 },
    doubts: new PostgresStatusDoubts(pool),
  })
  t.teardown(() => publisher.stop())
  publisher.start()
  return publisher
}

/** A process that kills itself after so many batches. @returns when it has */
async function publishUntilKilled(parts: Parts, brokers: readonly string[], batches: number): Promise<void> {
  const args = ['--import=tsx', SCRIPT, parts.url, brokers.join(), String(batches)]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'ignore', 'inherit'] })
  const [code, signal] = await once(child, 'exit')
  if (signal !== 'SIGKILL') throw new Error(`it ended by itself: ${code}`)
}

/** Everything in the topic about these tasks, as another service reads it. */
function read(t: Test, broker: Broker, ids: ReadonlySet<string>) {
  const records: { record: IncomingRecord; status: TaskStatus; id: string }[] = []
  const consumer = broker.consume({
    group: uniqueName('reader'),
    topics: [TASK_STATUS],
    onBatch: async batch => {
      for (const record of batch) {
        if (!ids.has(String(record.key))) continue
        const status = taskStatusSchema.parse(JSON.parse(String(record.value)))
        const id = String(record.headers.find(([name]) => name === 'ce_id')![1])
        records.push({ record, status, id })
      }
    },
  })
  t.teardown(() => consumer.stop())
  return records
}
type Records = ReturnType<typeof read>

const isLast = (records: Records, ids: ReadonlySet<string>, status: string): boolean => {
  const last = new Map(records.map(one => [one.status.taskId, one.status.status]))
  return [...ids].every(id => last.get(id) === status)
}

/** What a reader sees that passes over what is not newer: each task's statuses. Throws where one was skipped. */
function seen(records: Records): Map<string, string> {
  const revisions = new Map<string, number>()
  const told = new Map<string, string>()
  for (const { status, record } of records) {
    const { taskId, revision } = status
    if (String(record.key) !== taskId) throw new Error(`${record.key} is the key of ${taskId}`)
    const before = revisions.get(taskId) ?? -1
    if (revision <= before) continue
    if (revision !== before + 1) throw new Error(`${taskId}: ${revision} after ${before}`)
    revisions.set(taskId, revision)
    told.set(taskId, `${told.get(taskId) ?? ''} ${status.status}`.trim())
  }
  return told
}

/** Whether all is published. */
async function atEnd({ rows, log }: Parts): Promise<boolean> {
  const [place] = await rows<{ position: string }>(
    'SELECT position FROM rollcall.projectors WHERE name = $1',
    [STATUS_PUBLISHER],
  )
  return place?.position === (await log.head())?.position
}

async function all(parts: Parts, ids: Iterable<string>): Promise<void> {
  for (const command of [start(), succeed()])
    for (const answer of await parts.engine.executeMany([...ids].map(id => ask(id, command))))
      mustBe('accepted', answer)
}

async function thousands(t: Test, server: KafkaBroker): Promise<void> {
  const parts = await startParts(t)
  const broker = open(t, server.brokers)
  const ids = new Set(await submitTasks(parts.engine, 500))
  const killed = publishUntilKilled(parts, server.brokers, 0)
  for (let times = 0; times < 3; times++) for (const id of await submitTasks(parts.engine, 500)) ids.add(id)
  await killed
  await all(parts, ids)
  await publishUntilKilled(parts, server.brokers, 2)
  publish(t, parts, broker)
  const records = read(t, broker, ids)
  await until('all are told of', () => isLast(records, ids, 'SUCCESS'))
  const told = seen(records)
  t.equal(told.size, 2_000)
  t.strictSame([...new Set(told.values())], ['PENDING PROCESSING SUCCESS'])
  const distinct = new Set(records.map(({ id }) => id)).size
  t.equal(distinct, 6_000, 'each event is there under its id')
  t.ok(records.length > distinct, `${records.length - distinct} came twice`)
  t.ok(new Set(records.map(({ record }) => record.partition)).size > 1)
  t.equal(await cleanupPolicy(t, server.brokers), 'compact')
}

async function cleanupPolicy(t: Test, brokers: readonly string[]): Promise<string | undefined> {
  const admin = new Kafka({ brokers: [...brokers], logLevel: logLevel.NOTHING }).admin()
  await admin.connect()
  t.teardown(() => admin.disconnect())
  const { resources } = await admin.describeConfigs({
    includeSynonyms: false,
    resources: [
      { type: kafkajs.ConfigResourceTypes.TOPIC, name: TASK_STATUS, configNames: ['cleanup.policy'] },
    ],
  })
  return resources[0]?.configEntries[0]?.configValue
}

async function fromEventStoreDB(t: Test, server: KafkaBroker): Promise<void> {
  const double = await startEventStoreDBDouble(t)
  const settings = eventStoreDBSettings(double.address)
  const parts = await startParts(t, { openLog: () => openEventStoreDBEventLog({ settings }) })
  const broker = open(t, server.brokers)
  const ids = new Set(await submitTasks(parts.engine, 100))
  const first = publish(t, parts, broker)
  await all(parts, [...ids].slice(0, 50))
  await first.stop()
  await all(parts, [...ids].slice(50))
  publish(t, parts, broker)
  const records = read(t, broker, ids)
  await until('all are told of', () => isLast(records, ids, 'SUCCESS'))
  t.strictSame([...new Set(seen(records).values())], ['PENDING PROCESSING SUCCESS'])
}

async function away(t: Test, server: KafkaBroker): Promise<void> {
  const parts = await startParts(t)
  const broker = open(t, server.brokers)
  const publisher = publish(t, parts, broker)
  const ids = new Set(await submitTasks(parts.engine, 20))
  await until('some are told of', () => atEnd(parts))
  await server.kill()
  for (let times = 0; times < 10; times++) {
    const more = await submitTasks(parts.engine, 10)
    for (const id of more) ids.add(id)
    await all(parts, more)
    await sleep(200)
  }
  t.equal(publisher.mode, 'following')
  t.ok((publisher.lagSeconds() ?? 0) > 0.5, 'it says how far it is behind')
  await server.restart()
  const records = read(t, broker, ids)
  await until('all are told of', () => isLast(records, new Set([...ids].slice(20)), 'SUCCESS'))
  t.strictSame([...new Set(seen(records).values())].sort(), ['PENDING', 'PENDING PROCESSING SUCCESS'])
  await until('it is well', () => publisher.health().ok && publisher.lagSeconds() === 0)
  await until('its place is moved', () => atEnd(parts))
}

// One after the other, and the one that ends the broker last.
t.test('on a real broker', async t => {
  const server = await ownKafkaBroker(t)
  if (!server) return
  await t.test('2,000 tasks, two publishers killed between send and move: each is told of, in order', t =>
    thousands(t, server),
  )
  await t.test('from a log in EventStoreDB the same is published', t => fromEventStoreDB(t, server))
  await t.test('a broker that is away for a while under load delays statuses and skips none', t =>
    away(t, server),
  )
})
