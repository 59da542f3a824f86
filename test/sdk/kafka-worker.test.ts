/** Workers fed by Kafka, on a real broker and with the real service. */
import { setTimeout as sleep } from 'node:timers/promises'
import kafkajs from 'kafkajs'
import t from 'tap'
import { tasksTopic } from '../../src/broker/topics.ts'
import { CancelledError, done, type HandlerContext, type Task } from '../../src/sdk/worker.ts'
import { aborted, eventTypes, finished, gate, until } from './fixture.ts'
import { messageOf, startKafkaFixture } from './kafka-fixture.ts'
import { startWorkerProcess } from './process.ts'

const START = '/v1/workers/start'
const TYPES = 18

const fixture = await startKafkaFixture(t, TYPES)
if (!fixture) process.exit()
const { client, broker, brokers, proxy, aType, worker, log } = fixture

/** Faster than the default, so that the tests of rebalances are short. The broker takes no shorter session. */
const QUICK = { sessionMs: 6_000, heartbeatMs: 500 }
const startsOf = (name: string) => proxy.bodies(START).filter(body => body.worker === name)

// A long one is begun first and awaited last: nothing may have moved its partitions meanwhile.
const long = await beginLongTasks()

t.test(
  'a task comes out of Kafka, is started over HTTP, and its outcome goes back through Kafka',
  async t => {
    const type = aType()
    const seen: Task<unknown>[] = []
    const made = worker(t, {
      [type]: async (task: Task<{ words: string }>, { step, progress }: HandlerContext) => {
        seen.push(task)
        await step('GENERATING', { at: 1 })
        progress(0.5)
        return done({ words: task.payload.words.length }, { resultUrl: 'https://images.example/1.png' })
      },
    })
    const submitted = await client.submit({
      type,
      payload: { words: 'a red fox' },
      labels: { team: 'design' },
    })
    const task = await finished(client, submitted)
    t.match(task, { status: 'SUCCESS', result: { words: 9 }, worker: made.name, attempt: 1 })
    t.match(seen, [
      { taskId: task.taskId, type, run: 1, attempt: 1, context: null, labels: { team: 'design' } },
    ])
    t.strictSame(await eventTypes(client, task.taskId), [
      'TaskSubmitted',
      'TaskStarted',
      'TaskStepEntered',
      'TaskSucceeded',
    ])
    t.equal(proxy.bodies('/v1/workers/report').length, 0)
    t.equal(proxy.bodies('/v1/workers/claim').length, 0)
    await until('it is counted', () => made.counts.succeeded === 1)
    await made.stop()
    t.match(made.counts, { claimed: 1, skipped: 0, refused: 0, undelivered: 0 })
  },
)

t.test('an attempt that fails is tried again with what it saved', async t => {
  const type = aType()
  const contexts: unknown[] = []
  worker(t, {
    [type]: (task: Task<unknown>, { save }: HandlerContext) => {
      contexts.push(task.context)
      if (task.attempt > 1) return 'resumed'
      save({ frame: 240 })
      throw new Error('the disk is full')
    },
  })
  const task = await finished(client, await client.submit({ type, retry: { initialDelayMs: 0 } }))
  t.match(task, { status: 'SUCCESS', result: 'resumed', attempt: 2 })
  t.strictSame(contexts, [null, { frame: 240 }])
})

t.test('with nobody to confirm all goes through Kafka, heartbeats and progress too', async t => {
  const type = aType()
  const go = gate()
  const made = worker(
    t,
    {
      [type]: async (task: Task<number>, { progress }: HandlerContext) => {
        progress(0.25)
        await go.opened
        return task.payload + 1
      },
    },
    { url: undefined, kafka: { confirm: 'none' } },
  )
  const submitted = await client.submit({ type, payload: 1, timeouts: { leaseMs: 1_000 } })
  await until('progress is shown', async () => (await client.get(submitted.taskId)).progress === 0.25)
  // Its message comes again while it runs, and when it has ended: this process knows its attempts.
  const again = () => broker.send(tasksTopic(type), [messageOf(submitted, { payload: 7 })])
  await again()
  await until('it is passed', () => made.counts.skipped === 1)
  await sleep(2_000)
  go.open()
  const task = await finished(client, submitted)
  t.match(task, { status: 'SUCCESS', result: 2, worker: made.name, attempt: 1 })
  await again()
  await until('it is passed as well', () => made.counts.skipped === 2)
  t.strictSame(await eventTypes(client, task.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  t.equal(made.counts.claimed, 1)
})

t.test('many tasks of a partition run at once', async t => {
  const type = aType()
  const go = gate()
  const made = worker(t, { [type]: () => go.opened }, { concurrency: 9 })
  const submitted = await Promise.all(Array.from({ length: 12 }, () => client.submit({ type })))
  // Five of them, at least, have to be of one partition.
  await until('all slots are taken', () => made.running === 9)
  go.open()
  const tasks = await Promise.all(submitted.map(task => finished(client, task)))
  t.ok(tasks.every(task => task.status === 'SUCCESS'))
  t.equal(made.counts.claimed, 12)
})

t.test('two workers share a type: each task is done once, by no more at once than asked for', async t => {
  const type = aType()
  const runs = new Map<string, number>()
  const most = [0, 0]
  const make = (n: number) => {
    let running = 0
    return worker(
      t,
      {
        [type]: async (task: Task<number>) => {
          most[n] = Math.max(most[n]!, ++running)
          runs.set(task.taskId, (runs.get(task.taskId) ?? 0) + 1)
          await sleep(task.payload)
          running--
        },
      },
      { concurrency: 3, worker: `${type}-${n}`, kafka: { timeouts: QUICK } },
    )
  }
  const both = [make(0)]
  const results = await client.submitBatch(
    Array.from({ length: 60 }, (_, index) => ({ type, payload: 40 + (index % 40) })),
  )
  await until('the first is at work', () => both[0]!.counts.claimed > 3)
  both.push(make(1))
  const taskIds = results.flatMap(result => (result.kind === 'refused' ? [] : [result.taskId]))
  const tasks = await Promise.all(taskIds.map(taskId => finished(client, { taskId })))
  t.ok(tasks.every(task => task.status === 'SUCCESS' && task.attempt === 1))
  t.ok(
    most.every(count => count >= 1 && count <= 3),
    `${most} at once`,
  )
  t.equal(runs.size, 60)
  t.ok([...runs.values()].every(count => count === 1))
  // The slots of a worker are shared by its partitions: none was started that could not be begun.
  t.strictSame(
    both.map(({ counts }) => counts.released),
    [0, 0],
  )
  t.ok(startsOf(`${type}-0`).every(({ tasks }) => (tasks as unknown[]).length <= 3))
})

t.test('what is not to be started is passed by, and no handler runs for it', async t => {
  const type = aType()
  const ran: string[] = []
  const retry = { initialDelayMs: 0 }
  const [cancelled, taken, good] = await Promise.all([
    client.submit({ type }),
    client.submit({ type, retry, timeouts: { leaseMs: 1_500 } }),
    client.submit({ type }),
  ])
  await client.cancel(cancelled.taskId)
  // By one who took it by its id; its lease ends, and the next attempt is offered.
  const token = 'a-token-of-somebody'
  const path = `${proxy.url}/v1/tasks/${taken.taskId}/start`
  const body = JSON.stringify({ worker: 'somebody', attempt: 1, leaseToken: token })
  const headers = { 'content-type': 'application/json' }
  t.equal((await fetch(path, { method: 'POST', headers, body })).status, 200)
  // There may have been no time to send these.
  await broker.ensureTopics([{ name: tasksTopic(type), partitions: 2, compacted: false }])
  await broker.send(tasksTopic(type), [messageOf(cancelled), messageOf(taken)])
  const made = worker(t, {
    [type]: ({ taskId, attempt }: Task<unknown>) => void ran.push(`${taskId}/${attempt}`),
  })
  t.equal((await finished(client, good)).status, 'SUCCESS')
  t.match(await finished(client, taken), { status: 'SUCCESS', attempt: 2 })
  await until('they are passed', () => made.counts.skipped >= 2)
  t.strictSame(ran.sort(), [`${good.taskId}/1`, `${taken.taskId}/2`].sort())
  t.match(
    log.find(line => line.taskId === cancelled.taskId),
    { level: 'debug', code: 'task_finished' },
  )
})

t.test('messages that are no tasks are passed by, and the log says where they lie', async t => {
  const type = aType()
  const good = await client.submit({ type })
  const bad = [
    { key: 'x', value: null, headers: {} },
    { key: 'x', value: Buffer.from('{'), headers: {} },
    { key: 'x', value: Buffer.from('['.repeat(300_000)), headers: {} },
    messageOf(good, { type: 'another' }),
    messageOf(good, { taskId: 'x' }),
    messageOf(good, { attempt: 0 }),
  ]
  await broker.ensureTopics([{ name: tasksTopic(type), partitions: 2, compacted: false }])
  await broker.send(tasksTopic(type), bad)
  const made = worker(t, { [type]: () => null })
  t.equal((await finished(client, good)).status, 'SUCCESS')
  await until('they are passed', () => made.counts.skipped >= bad.length)
  const lines = log.filter(line => line.topic === tasksTopic(type))
  t.equal(lines.length, bad.length)
  for (const line of lines)
    t.match(line, { level: 'warn', partition: Number, offset: /^\d+$/, fault: String, message: /is no task/ })
  t.match(made.counts, { claimed: 1 })
})

t.test('a START that is not answered is asked again as it was, and no handler begins before', async t => {
  const type = aType()
  let runs = 0
  const spoilt = [
    'lose_request',
    'lose_answer',
    { status: 503, headers: { 'retry-after': '0' }, body: '{"code":"overloaded"}' },
    { status: 200, body: '<html>Welcome to nginx!</html>' },
    { status: 200, body: '{"results":[]}' },
  ] as const
  for (const fault of spoilt) proxy.fault(START, fault)
  const made = worker(t, { [type]: () => ++runs }, { worker: `${type}-1` })
  const submitted = await client.submit({ type })
  const asked = () => startsOf(made.name)
  await until('they have met it', () => asked().length > spoilt.length || runs > 0)
  t.ok(asked().length > spoilt.length, 'no answer, no handler')
  t.match(await finished(client, submitted), { status: 'SUCCESS', result: 1, attempt: 1 })
  for (const body of asked()) t.strictSame(body, asked()[0])
  t.strictSame(await eventTypes(client, submitted.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  t.match(made.counts, { claimed: 1, skipped: 0 })
})

t.test('a cancel reaches the handler', async t => {
  const type = aType()
  const started = gate()
  let reason: unknown
  const made = worker(t, {
    [type]: async (_: unknown, { signal }: HandlerContext) => {
      started.open()
      await aborted(signal).catch(error => {
        reason = error
      })
    },
  })
  const { taskId } = await client.submit({ type, timeouts: { leaseMs: 1_500 } })
  await started.opened
  await client.cancel(taskId, { reason: 'not wanted' })
  await until('it is aborted', () => made.counts.cancelled === 1)
  t.ok(reason instanceof CancelledError)
  t.equal((await client.get(taskId)).status, 'CANCELLED')
})

t.test('a worker that stops hands back what it has begun and leaves the rest to the next', async t => {
  const type = aType()
  const started = gate()
  const first = worker(
    t,
    {
      [type]: async (_: unknown, { signal, save }: HandlerContext) => {
        save({ page: 7 })
        started.open()
        await aborted(signal)
      },
    },
    { concurrency: 1 },
  )
  const submitted = await Promise.all([1, 2, 3, 4].map(payload => client.submit({ type, payload })))
  await started.opened
  await sleep(300)
  const stopping = first.stop({ drainMs: 100 })
  t.equal(first.stop(), stopping)
  await stopping
  t.match(first.counts, { claimed: 1, released: 1, refused: 0, undelivered: 0 })
  t.notOk(log.some(line => line.level !== 'debug' && /a batch was rejected/.test(line.message)))
  const contexts: unknown[] = []
  worker(t, { [type]: (task: Task<unknown>) => void contexts.push([task.attempt, task.context]) })
  const tasks = await Promise.all(submitted.map(task => finished(client, task)))
  t.ok(tasks.every(task => task.status === 'SUCCESS'))
  t.strictSame(contexts.sort(), [
    [1, null],
    [1, null],
    [1, null],
    [2, { page: 7 }],
  ])
})

t.test('a START that is on its way at the stop is settled, and its task handed back', async t => {
  const type = aType()
  const made = worker(t, { [type]: () => 'never' }, { worker: `${type}-1` })
  proxy.fault(START, 'hold_answer')
  const { taskId } = await client.submit({ type })
  await until('the task is started', async () => (await client.get(taskId)).status === 'PROCESSING')
  await made.stop()
  await until('it is back', async () => (await client.get(taskId)).status === 'PENDING')
  t.strictSame(await eventTypes(client, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskReleased'])
  t.match(made.counts, { claimed: 1, released: 1, succeeded: 0 })
})

t.test('a worker that never started stops, and one that starts and stops at once', async t => {
  const type = aType()
  const made = worker(t, { [type]: () => null })
  await made.stop()
  t.throws(() => made.start(), /was stopped/)
  const other = worker(t, { [type]: () => null })
  await other.stop()
  t.match([made.counts, other.counts], [{ claimed: 0 }, { claimed: 0 }])
})

t.test('with nobody to confirm, a task that ends its worker does not come to the next one again', async t => {
  const [quick, endless, deadly] = [aType(), aType(), aType()]
  const { exited } = startWorkerProcess(t, [
    ...[proxy.url, '1000', quick, endless],
    ...[brokers.join(','), deadly],
  ])
  await client.submit({ type: deadly })
  t.strictSame(await exited, [null, 'SIGKILL'])
  const admin = new kafkajs.Kafka({ brokers: [...brokers], logLevel: kafkajs.logLevel.NOTHING }).admin()
  await admin.connect()
  t.teardown(() => admin.disconnect())
  const topic = tasksTopic(deadly)
  const [places] = await admin.fetchOffsets({ groupId: `rollcall.workers.${deadly}`, topics: [topic] })
  const passed = places!.partitions.filter(({ offset }) => Number(offset) > 0)
  t.equal(passed.length, 1, 'its message was passed before its handler began')
})

t.test('a worker process ends in order on SIGTERM, and nothing keeps it', async t => {
  const [quick, endless] = [aType(), aType()]
  const args = [proxy.url, '1000', quick, endless, brokers.join(',')]
  const { child, told, exited, started } = startWorkerProcess(t, args)
  const first = await client.submit({ type: endless })
  await started(first.taskId)
  const second = await client.submit({ type: quick })
  await started(second.taskId)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
  t.match(told.at(-1), { stopped: { succeeded: 1, released: 1, undelivered: 0 } })
  t.match(await finished(client, second), { status: 'SUCCESS', result: 'done before the end' })
  await until('it is back', async () => (await client.get(first.taskId)).status === 'PENDING')
  t.strictSame(await eventTypes(client, first.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskReleased'])
})

t.test(
  'handlers that take longer than a session cause no rebalance, and do not hold up each other',
  async t => {
    const { type, submitted, before, membership, handled } = long
    const tasks = await Promise.all(submitted.map(task => finished(client, task)))
    t.ok(tasks.every(task => task.status === 'SUCCESS' && task.attempt === 1))
    t.equal(handled(), submitted.length)
    t.strictSame(await membership(), before, `the members of the group of ${type}`)
  },
)

/** Two that take longer than the session may be silent, and others beside them; one more waits for a slot. */
async function beginLongTasks() {
  const type = aType()
  let handled = 0
  worker(
    t,
    {
      [type]: async (task: Task<number>) => {
        await sleep(task.payload)
        handled++
      },
    },
    { concurrency: 2, kafka: { timeouts: QUICK } },
  )
  const submitted = await Promise.all([8_000, 8_000, 1].map(payload => client.submit({ type, payload })))
  const admin = new kafkajs.Kafka({ brokers: [...brokers], logLevel: kafkajs.logLevel.NOTHING }).admin()
  await admin.connect()
  t.teardown(() => admin.disconnect())
  const membership = async () => {
    const { groups } = await admin.describeGroups([`rollcall.workers.${type}`])
    return groups.flatMap(({ state, members }) => [state, ...members.map(({ memberId }) => memberId)])
  }
  const before = await until('the worker is a member', async () => {
    const now = await membership()
    return now[0] === 'Stable' && now.length === 2 && now
  })
  return { type, submitted, before, membership, handled: () => handled }
}
