/** What happened to others with a broker between them and their workers: all through records, on a real broker. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { DeadLetterList } from '../../src/api/schemas/dead-letters.ts'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { WORKER_EVENTS } from '../../src/broker/topics.ts'
import type { TaskMessage } from '../../src/workers/task-message.ts'
import { until } from '../api/fixture.ts'
import { plainProducer } from '../broker/kafka/fixture.ts'
import { endedRight } from '../integration/kafka-right.ts'
import { healthOf, PATIENCE_MS, Stage } from '../integration/kafka-stage.ts'
import { eventsOf, nothing, RawWorker, recordOf } from '../integration/kafka-worker.ts'

const CONTENT_BYTES = 256 * 1024
const TYPE = 'scenario'
const stage = await Stage.open(t, ['api', 'projector', 'timers', 'dispatcher', 'ingest'], {
  [TYPE]: { maxOutstanding: 200, offerHoldMs: 60_000 },
  delayed: { offerHoldMs: 1_000 },
})

if (stage) {
  const { api, broker } = stage
  const producer = await plainProducer(t, stage.kafka)
  /** It only reads; the tests say what is said. */
  const worker = await RawWorker.start(t, broker, TYPE, { says: nothing })

  type Submitted = NonNullable<Parameters<typeof api.submit>[0]>
  /** A task that was handed to the worker, in this attempt. */
  const handed = (taskId: string, attempt = 1): Promise<TaskMessage> =>
    until(
      `attempt ${attempt} of ${taskId} is handed out`,
      () => worker.tasks.find(one => one.taskId === taskId && one.attempt === attempt),
      PATIENCE_MS,
    )
  const submitted = async (over: Submitted = {}): Promise<TaskMessage> =>
    handed((await api.submit({ type: TYPE, ...over })).taskId)
  const send = (...events: Parameters<typeof recordOf>[0][]): Promise<void> =>
    broker.send(WORKER_EVENTS, events.map(recordOf))
  const becomes = (taskId: string, status: TaskView['status']) =>
    until(
      `${taskId} is ${status}`,
      async () => {
        const task = await api.task(taskId)
        return task.status === status && task
      },
      PATIENCE_MS,
    )
  const lettersOf = async (taskId: string) => {
    const { body } = await api.get<DeadLetterList>(`/v1/dead-letters?taskId=${taskId}`)
    return body.letters.map(({ code }) => code)
  }
  const lives = async (t: Test) => {
    const { checks } = await healthOf(stage.home.url!)
    t.match(
      checks.find(({ name }) => name === 'ingest'),
      { ok: true },
      'ingest is well',
    )
  }

  t.test('S03 the late FAIL of an old attempt comes as a record: the live attempt goes on', async t => {
    const old = await submitted({
      timeouts: { leaseMs: 1_000 },
      retry: { maxAttempts: 2, initialDelayMs: 0, jitter: 0 },
    })
    await send(eventsOf(old, 'old')[0])
    const live = await handed(old.taskId, 2)
    const [start, end] = eventsOf(live, 'live')
    await send(start)
    await becomes(old.taskId, 'PROCESSING')
    const before = await api.task(old.taskId)
    const beating = setInterval(() => {
      const { taskId, worker, attempt, leaseToken } = start
      const beat = { taskId, worker, attempt, leaseToken, trigger: 'HEARTBEAT' as const }
      void send({ ...beat, commandId: randomUUID() })
    }, 200)
    t.teardown(() => clearInterval(beating))
    const late = { ...eventsOf({ ...old, payload: { fails: 1 } }, 'old')[1], retryable: false }
    await send(late, { ...late, commandId: 'again' })
    await stage.passed()
    const after = await api.task(old.taskId)
    t.match(after, { status: 'PROCESSING', attempt: 2, worker: 'live', result: null })
    t.strictSame([after.errorCode, after.errorMessage], [before.errorCode, before.errorMessage])
    const kept = (await api.history(old.taskId)).filter(({ type }) => type === 'LateResultRecorded')
    t.match(kept, [{ data: { attempt: 1, outcome: 'failed' } }], 'kept once')
    t.equal(kept.length, 1)
    await send(end)
    await endedRight(t, stage, new Map([[old.taskId, 'SUCCESS in attempt 2']]))
  })

  t.test(
    'S05 a delay of three times the hold of an offer: it is handed out once, when it is due',
    async t => {
      const other = await RawWorker.start(t, broker, 'delayed')
      const { taskId, createdAt } = await api.submit({ type: 'delayed', delayMs: 3_000 })
      await endedRight(t, stage, new Map([[taskId, 'SUCCESS in attempt 1']]))
      t.equal(other.tasks.length, 1, 'one message')
      const [record] = other.records
      t.ok(record!.timestamp - Date.parse(createdAt) >= 2_900, 'none before it was due')
    },
  )

  t.test('S10 bytes that are no record: a dead letter, the others are handled, health is true', async t => {
    const tasks = [await submitted(), await submitted()]
    for (const { taskId } of tasks) await broker.send(WORKER_EVENTS, [bad(taskId)])
    await send(...tasks.flatMap(task => eventsOf(task, 'raw')))
    await endedRight(t, stage, new Map(tasks.map(({ taskId }) => [taskId, 'SUCCESS in attempt 1'])))
    for (const { taskId } of tasks) t.strictSame(await lettersOf(taskId), ['invalid_json'])
    await lives(t)
  })

  t.test('S28 START after the end, from another partition: nothing runs again', async t => {
    const ends = new Map<string, string>()
    for (const payload of [{}, { givesUp: true }]) {
      const task = await submitted({ payload })
      const records = eventsOf(task, 'raw').map(recordOf)
      const end = payload.givesUp ? 'FAILED' : 'SUCCESS'
      ends.set(task.taskId, `${end} in attempt 1`)
      const to = async (partition: number, { key, value }: (typeof records)[number]) => {
        await producer.send({ topic: WORKER_EVENTS, messages: [{ key, value, partition }] })
      }
      await to(1, records[1]!)
      await becomes(task.taskId, end)
      for (const partition of [1, 2, 3]) await to(partition, records[0]!)
    }
    await endedRight(t, stage, ends)
    for (const taskId of ends.keys()) {
      const types = await api.eventTypes(taskId)
      t.equal(types.length, 3, `${types}`)
      t.equal(types[1], 'TaskStarted', 'the outcome brought its START along')
    }
  })

  t.test('S38 a FAIL whose text cannot be stored as it is: stored so that it can, and passed', async t => {
    const task = await submitted()
    const [start, end] = eventsOf({ ...task, payload: { givesUp: true } }, 'raw')
    await send(start, { ...end, error: { message: 'bad \u0000 \ud800', detail: '\u0000' } })
    await endedRight(t, stage, new Map([[task.taskId, 'FAILED in attempt 1']]))
    t.equal((await api.task(task.taskId)).errorMessage, 'bad \ufffd \ufffd')
    t.strictSame(await lettersOf(task.taskId), [])
    await lives(t)
  })

  t.test('S40 NUL in a result that comes as a record: kept as it is', async t => {
    const task = await submitted()
    const [start, end] = eventsOf(task, 'raw')
    await send(start, { ...end, result: 'a\u0000b' })
    await endedRight(t, stage, new Map([[task.taskId, 'SUCCESS in attempt 1']]))
    t.equal((await api.task(task.taskId)).result, 'a\u0000b')
  })

  t.test('S43 JSON of 300,000 levels as a record: a dead letter, process and consumer live', async t => {
    const task = await submitted()
    const [start, end] = eventsOf(task, 'raw')
    const levels = 300_000
    const result = `${'['.repeat(levels)}${']'.repeat(levels)}`
    const value = Buffer.from(JSON.stringify({ ...end, result: 'here' }).replace('"here"', result))
    await broker.send(WORKER_EVENTS, [{ key: task.taskId, value, headers: {} }])
    await send(start, end)
    await endedRight(t, stage, new Map([[task.taskId, 'SUCCESS in attempt 1']]))
    t.strictSame(await lettersOf(task.taskId), ['json_too_deep'])
    await lives(t)
  })

  t.test('S45 what is accepted at the limits comes through the broker, both ways', async t => {
    // The longest in JSON for their bytes: each character of six.
    const texts = [-1, 0, 1].map(more => 'x'.repeat(CONTENT_BYTES - 2 + more))
    texts.push('\u0001'.repeat(Math.floor((CONTENT_BYTES - 2) / 6)))
    const ends = new Map<string, string>()
    for (const payload of [...texts, 'x'.repeat(1_048_576)]) {
      const answer = await api.post<TaskView>('/v1/tasks', { type: TYPE, payload })
      if (JSON.stringify(payload).length > CONTENT_BYTES) {
        t.equal(answer.status, 413, `${payload.length} characters`)
        continue
      }
      t.equal(answer.status, 201, `${payload.length} characters`)
      const task = await handed(answer.body.taskId)
      t.ok(task.payload === payload, 'it comes to the worker as it was given')
      const [start, end] = eventsOf({ ...task, payload: null }, 'raw')
      await send(start, { ...end, commandId: 'larger', result: texts[2] }, { ...end, result: payload })
      ends.set(task.taskId, 'SUCCESS in attempt 1')
    }
    t.equal(ends.size, 3)
    await endedRight(t, stage, ends)
    for (const taskId of ends.keys()) t.strictSame(await lettersOf(taskId), ['content_too_large'])
  })

  t.test('S65 records that carry times five minutes off: timeouts and order are the server’s', async t => {
    const ends = new Map<string, string>()
    const since = Date.now()
    for (const skewMs of [-300_000, 300_000]) {
      const timeouts = { executionMs: 60_000, queueMs: 60_000 }
      const task = await submitted({ timeouts })
      const messages = eventsOf(task, 'raw').map(recordOf)
      const timestamp = String(Date.now() + skewMs)
      for (const { key, value } of messages)
        await producer.send({ topic: WORKER_EVENTS, messages: [{ key, value, timestamp }] })
      ends.set(task.taskId, 'SUCCESS in attempt 1')
    }
    await endedRight(t, stage, ends)
    for (const taskId of ends.keys())
      for (const { type, at } of await api.history(taskId))
        t.ok(Math.abs(Date.parse(at) - since) < 120_000, `${type} at ${at}`)
  })
}

function bad(taskId: string) {
  return { key: taskId, value: Buffer.from('{'), headers: {} }
}
