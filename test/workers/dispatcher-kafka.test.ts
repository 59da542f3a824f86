/** The dispatcher on a real broker: what is delivered, through the broker's outages too. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Kafka, logLevel } from 'kafkajs'
import t, { type Test } from 'tap'
import type { Broker, IncomingRecord } from '../../src/broker/broker.ts'
import { openKafkaBroker } from '../../src/broker/kafka/kafka-broker.ts'
import { tasksTopic } from '../../src/broker/topics.ts'
import { Dispatcher, type DispatchSettings } from '../../src/workers/dispatcher.ts'
import { cancel, start, succeed, TOKEN_A } from '../domain/specification.ts'
import { kafkaBroker, ownKafkaBroker, uniqueName } from '../support/kafka.ts'
import {
  ask,
  mustBe,
  openParts,
  type Parts,
  SILENT,
  startParts,
  submitTasks,
  until,
} from '../support/service-parts.ts'

const settings = (over: Partial<DispatchSettings> = {}): DispatchSettings => ({
  maxOutstanding: 100,
  partitions: 3,
  offerHoldMs: 60_000,
  ...over,
})

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

function dispatch(
  t: Test,
  parts: Parts,
  broker: Broker,
  types: Record<string, DispatchSettings>,
): Dispatcher {
  const { workState, engine, signal } = parts
  const dispatcher = new Dispatcher({ broker, workState, engine, signal, types, logger: SILENT })
  t.teardown(() => dispatcher.stop())
  dispatcher.start()
  return dispatcher
}

/** A worker: each message is started, then done; what comes twice is refused by the log. */
function work(t: Test, parts: Parts, broker: Broker, type: string) {
  const seen: IncomingRecord[] = []
  const answers: string[] = []
  const consumer = broker.consume({
    group: uniqueName('workers'),
    topics: [tasksTopic(type)],
    onBatch: async records => {
      for (const record of records) {
        seen.push(record)
        const { taskId, attempt } = JSON.parse(record.value!.toString())
        const started = await parts.engine.execute(
          ask(taskId, start({ attempt, leaseTokenHash: TOKEN_A }), {
            commandId: `start:${taskId}:${attempt}`,
          }),
        )
        answers.push(started.kind === 'refused' ? started.code : started.kind)
        if (started.kind === 'accepted')
          mustBe(
            'accepted',
            await parts.engine.execute(ask(taskId, succeed({ attempt, leaseTokenHash: TOKEN_A }))),
          )
      }
    },
  })
  t.teardown(() => consumer.stop())
  return { seen, answers }
}

const allDone = async (parts: Parts, ids: readonly string[]): Promise<boolean> => {
  const loaded = await parts.engine.readMany(ids)
  return [...loaded.values()].every(one => one.kind === 'task' && one.task.status === 'SUCCESS')
}

async function setUp(t: Test) {
  const parts = await startParts(t)
  parts.projector.start()
  parts.timers.start()
  return parts
}

t.test('three dispatchers hand out through a real broker what one worker does, each task once', async t => {
  const kafka = await kafkaBroker(t)
  if (!kafka) return
  const parts = await setUp(t)
  const broker = open(t, kafka.brokers)
  const type = uniqueName('type')
  for (const one of [parts, await openParts(t, parts.url), await openParts(t, parts.url)])
    dispatch(t, one, broker, { [type]: settings({ maxOutstanding: 10 }) })
  const worker = work(t, parts, broker, type)
  const ids = await submitTasks(parts.engine, 200, () => ({ type, labels: { team: 'a' } }))
  await until('all are done', () => allDone(parts, ids))
  t.strictSame(worker.seen.map(({ key }) => String(key)).sort(), [...ids].sort(), 'each was sent once')
  t.strictSame([...new Set(worker.answers)], ['accepted'])
  const headers = Object.fromEntries(worker.seen[0]!.headers.map(([name, bytes]) => [name, String(bytes)]))
  t.match(headers, {
    ce_specversion: '1.0',
    ce_id: /^[0-9a-f-]{36}\/1\/1$/,
    ce_type: 'rollcall.task.offered',
    ce_source: 'rollcall',
    ce_subject: String(worker.seen[0]!.key),
    ce_time: /^\d{4}-.*Z$/,
    'content-type': 'application/json',
  })
  t.ok(new Set(worker.seen.map(({ partition }) => partition)).size > 1, 'the topic has its partitions')
})

t.test('a topic that is deleted is made again, and other types go on', async t => {
  const kafka = await kafkaBroker(t)
  if (!kafka) return
  const parts = await setUp(t)
  const broker = open(t, kafka.brokers)
  const [lost, sound] = [uniqueName('lost'), uniqueName('sound')] as const
  dispatch(t, parts, broker, { [lost]: settings(), [sound]: settings() })
  const first = await submitTasks(parts.engine, 3, () => ({ type: lost }))
  await until('they are sent', async () => {
    const rows = await parts.rows<{ n: number }>('SELECT count(*)::int AS n FROM rollcall.offers')
    return rows[0]!.n === 3
  })
  await sleep(500)
  const admin = new Kafka({ brokers: kafka.brokers, logLevel: logLevel.NOTHING }).admin()
  await admin.connect()
  t.teardown(() => admin.disconnect())
  await admin.deleteTopics({ topics: [tasksTopic(lost)] })
  const after = await submitTasks(parts.engine, 3, () => ({ type: lost }))
  const other = await submitTasks(parts.engine, 3, () => ({ type: sound }))
  const workers = [work(t, parts, broker, sound)]
  await until('the other type is done', () => allDone(parts, other))
  await until('the topic is there again', async () => (await admin.listTopics()).includes(tasksTopic(lost)))
  workers.push(work(t, parts, broker, lost))
  await until('what was sent after it is done', () => allDone(parts, after))
  // What was in the topic when it went is offered again like all that is not started in its time.
  await parts.rows(`UPDATE rollcall.offers SET held_until = now() - interval '1 second'`)
  await until('and what was in it', () => allDone(parts, first))
})

t.test('a message for a task that is cancelled does no harm to it, nor to those behind it', async t => {
  const kafka = await kafkaBroker(t)
  if (!kafka) return
  const parts = await setUp(t)
  const broker = open(t, kafka.brokers)
  const type = uniqueName('type')
  dispatch(t, parts, broker, { [type]: settings({ partitions: 1 }) })
  const [cancelled, other] = (await submitTasks(parts.engine, 2, () => ({ type }))) as [string, string]
  await until('both are offered', async () => {
    const rows = await parts.rows<{ n: number }>('SELECT count(*)::int AS n FROM rollcall.offers')
    return rows[0]!.n === 2
  })
  await sleep(300)
  mustBe('accepted', await parts.engine.execute(ask(cancelled, cancel())))
  const worker = work(t, parts, broker, type)
  await until('the other is done', () => allDone(parts, [other]))
  await until('both were answered', () => worker.answers.length === 2)
  t.strictSame([...worker.answers].sort(), ['accepted', 'task_finished'])
  t.equal((await parts.task(cancelled)).status, 'CANCELLED')
})

t.test('a broker that is away for 5 s under load delays tasks: none is lost, each ends once', async t => {
  const server = await ownKafkaBroker(t)
  if (!server) return
  const parts = await setUp(t)
  const broker = open(t, server.brokers)
  const type = uniqueName('type')
  const dispatcher = dispatch(t, parts, broker, { [type]: settings({ maxOutstanding: 20 }) })
  const worker = work(t, parts, broker, type)
  const ids: string[] = []
  const submit = async (count: number) => {
    ids.push(...(await submitTasks(parts.engine, count, () => ({ type }))))
  }
  await submit(40)
  await until('some are done', () => worker.answers.length > 20)
  await server.kill()
  const since = performance.now()
  while (performance.now() - since < 5_000) {
    await submit(5)
    await sleep(250)
  }
  await server.restart()
  const back = performance.now()
  await submit(10)
  await until('all are done', () => allDone(parts, ids))
  t.comment(
    `${ids.length} tasks, ${worker.seen.length} messages, done ${Math.round(performance.now() - back)} ms after the broker was back`,
  )
  t.ok(performance.now() - back < 30_000, 'before the hold of an offer would be over')
  t.strictSame([...new Set(worker.seen.map(({ key }) => String(key)))].sort(), [...ids].sort())
  await until('it is well', () => dispatcher.health().ok)
})
