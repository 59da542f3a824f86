/** What a worker does when answers are lost, the service is away, or it answers what it should not. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { ClaimedTask } from '../../src/api/schemas/workers.ts'
import { createWorker, type HandlerContext, type Task } from '../../src/sdk/worker.ts'
import { aborted, eventTypes, finished, gate, startFakeService, startFixture, until } from './fixture.ts'

const CLAIM = '/v1/workers/claim'
const REPORT = '/v1/workers/report'
const BEAT = '/v1/workers/heartbeat'

t.test('a claim whose answer was lost is asked again by its name and answers the same tasks', async t => {
  const { client, worker, proxy } = await startFixture(t)
  const submitted = await Promise.all([1, 2, 3].map(payload => client.submit({ type: 'once', payload })))
  const runs: string[] = []
  proxy.fault(CLAIM, 'lose_answer', 2)
  worker({ once: (task: Task<number>) => void runs.push(task.taskId) }, { concurrency: 3 })
  const tasks = await Promise.all(submitted.map(task => finished(client, task)))
  t.ok(tasks.every(task => task.status === 'SUCCESS' && task.attempt === 1))
  t.strictSame(runs.sort(), submitted.map(task => task.taskId).sort())
  const [first, second, third] = proxy.bodies(CLAIM)
  t.strictSame(second, first)
  t.strictSame(third, first)
  t.strictSame(await eventTypes(client, tasks[0]!.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
})

t.test('a report whose answer was lost is sent again as it was, and counts once', async t => {
  const { client, worker, proxy, log } = await startFixture(t)
  proxy.fault(REPORT, 'lose_answer', 2)
  const made = worker({ once: () => 'done' })
  const task = await finished(client, await client.submit({ type: 'once' }))
  await until('the repetition is answered', () => made.counts.succeeded === 1)
  const sent = proxy.bodies(REPORT)
  t.equal(sent.length, 3)
  t.strictSame(sent[1], sent[0])
  t.strictSame(sent[2], sent[0])
  t.strictSame(await eventTypes(client, task.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  t.match(made.counts, { succeeded: 1, refused: 0 })
  t.equal(log.filter(line => line.message === 'reporting failed; trying again until it works').length, 1)
})

t.test('answers that are no answers are asked again', async t => {
  const { client, worker, proxy } = await startFixture(t)
  const spoilt = [
    { status: 503, headers: { 'retry-after': '1' }, body: '{"code":"overloaded","detail":"busy"}' },
    { status: 200, body: '<html>Welcome to nginx!</html>' },
    { status: 200, body: '{"tasks":"none","results":[]}' },
    { status: 500, body: '' },
    'lose_request',
  ] as const
  for (const path of [CLAIM, REPORT]) for (const fault of spoilt) proxy.fault(path, fault)
  worker({ once: () => 'done' })
  const task = await finished(client, await client.submit({ type: 'once' }))
  t.match(task, { status: 'SUCCESS', attempt: 1 })
})

t.test('a service that is away for three seconds costs no task and no attempt', async t => {
  const { client, worker, proxy, log } = await startFixture(t)
  const running = gate()
  const go = gate()
  let started = 0
  const made = worker(
    {
      patient: async () => {
        if (++started === 3) running.open()
        await go.opened
        return 'done'
      },
    },
    { concurrency: 3 },
  )
  const submitted = await Promise.all([1, 2, 3, 4, 5].map(() => client.submit({ type: 'patient' })))
  await running.opened
  await proxy.down()
  go.open()
  await new Promise(resolve => setTimeout(resolve, 3_000))
  t.equal(made.counts.succeeded, 0)
  await proxy.up()
  const tasks = await Promise.all(submitted.map(task => finished(client, task)))
  t.ok(tasks.every(task => task.status === 'SUCCESS' && task.attempt === 1))
  await until('all are counted', () => made.counts.succeeded === 5)
  t.ok(log.some(line => line.level === 'info' && line.message === 'reporting works again'))
})

t.test('an attempt that lost its lease is aborted, and nothing is reported for it', async t => {
  const { client, worker, proxy, log } = await startFixture(t)
  const reasons: unknown[] = []
  const made = worker(
    {
      fragile: async (task: Task<unknown>, { signal }: HandlerContext) => {
        if (task.attempt > 1) return 'second'
        await aborted(signal).catch(reason => reasons.push(reason))
        return 'first'
      },
    },
    { concurrency: 2 },
  )
  proxy.fault(BEAT, { status: 503 }, 1_000)
  const submitted = await client.submit({
    type: 'fragile',
    timeouts: { leaseMs: 500 },
    retry: { initialDelayMs: 0 },
  })
  // The lease ends, another attempt succeeds; only then does the first handler hear of it.
  const task = await finished(client, submitted)
  t.match(task, { status: 'SUCCESS', result: 'second', attempt: 2 })
  t.equal(made.running, 1)
  t.strictSame(reasons, [])
  t.ok(log.some(line => /for longer than the lease/.test(line.message)))
  proxy.heal()
  await until('the first handler is aborted', () => made.counts.lost === 1)
  t.match(reasons, [{ name: 'LeaseLostError' }])
  t.equal(proxy.bodies(REPORT).length, 1)
})

t.test('an outcome that came too late is refused, counted and logged', async t => {
  const { client, worker, proxy, log } = await startFixture(t)
  const late = gate()
  const made = worker({
    late: async () => {
      await late.opened
      return 'late'
    },
  })
  proxy.fault(BEAT, { status: 503 }, 1_000)
  const submitted = await client.submit({
    type: 'late',
    timeouts: { executionMs: 300 },
    retry: { maxAttempts: 1 },
  })
  const task = await finished(client, submitted)
  t.equal(task.status, 'FAILED')
  late.open()
  await until('the report is answered', () => made.counts.refused === 1)
  t.match(
    log.find(line => line.message === 'a report was refused'),
    { level: 'warn', taskId: task.taskId, code: 'superseded', ending: 'succeeded' },
  )
  t.equal((await client.get(task.taskId)).status, 'FAILED')
  t.ok((await eventTypes(client, task.taskId)).includes('LateResultRecorded'))
})

t.test('a heartbeat that hangs is followed by another before the lease ends', async t => {
  const { client, worker, proxy } = await startFixture(t)
  proxy.fault(BEAT, 'hang')
  worker({ long: () => new Promise(resolve => setTimeout(() => resolve('kept'), 4_500)) })
  const task = await finished(client, await client.submit({ type: 'long', timeouts: { leaseMs: 3_000 } }))
  t.match(task, { status: 'SUCCESS', attempt: 1 })
  t.ok(proxy.bodies(BEAT).length >= 2)
})

t.test('no more work is taken while outcomes pile up', async t => {
  const { client, worker, proxy } = await startFixture(t)
  proxy.fault(REPORT, { status: 503 }, 10_000)
  const made = worker({ many: () => null }, { concurrency: 20 })
  await client.submitBatch(Array.from({ length: 200 }, () => ({ type: 'many' })))
  await until('enough are claimed', () => made.counts.claimed > 100)
  await proxy.next(REPORT)
  await proxy.next(REPORT)
  t.ok(made.counts.claimed <= 121, `${made.counts.claimed} were claimed`)
  proxy.heal()
  await until('all are delivered', () => made.counts.succeeded === 200)
})

t.test('a service that is away for one member of a batch is asked again for that one', async t => {
  const task = claimed('odd')
  let reports = 0
  const proxy = await startFakeService(t, ({ path, body }) => {
    if (path === CLAIM)
      return json({ tasks: reports === 0 && proxy.bodies(CLAIM).length === 1 ? [task] : [] })
    if (path !== REPORT) return json({ results: [] })
    const sent = JSON.parse(body).reports as { taskId: string }[]
    return json({
      results: sent.map(({ taskId }) =>
        ++reports < 12
          ? { taskId, kind: 'refused', code: 'log_unavailable', message: 'away' }
          : { taskId, kind: 'accepted', status: 'SUCCESS', revision: 2 },
      ),
    })
  })
  const made = createWorker({ url: proxy.url, types: { odd: () => 1 }, waitMs: 0, logger: silent })
  t.teardown(() => made.stop({ drainMs: 0 }))
  made.start()
  await until('it is delivered', () => made.counts.succeeded === 1, 40_000)
  const [first, ...others] = proxy.bodies(REPORT)
  t.equal(others.length, 11)
  for (const other of others) t.strictSame(other, first)
})

t.test('tasks beyond what was asked for are handed back', async t => {
  const proxy = await startFakeService(t, ({ path, body }) => {
    if (path === CLAIM)
      return json({
        tasks: proxy.bodies(CLAIM).length === 1 ? [claimed('odd'), claimed('odd'), claimed('strange')] : [],
      })
    const { reports } = JSON.parse(body) as { reports: { taskId: string }[] }
    return json({
      results: reports.map(({ taskId }) => ({ taskId, kind: 'accepted', status: 'PENDING', revision: 2 })),
    })
  })
  const made = createWorker({
    url: proxy.url,
    types: { odd: () => 1 },
    concurrency: 1,
    waitMs: 0,
    logger: silent,
  })
  t.teardown(() => made.stop({ drainMs: 0 }))
  made.start()
  await until('they are handed back', () => made.counts.released === 2 && made.counts.succeeded === 1)
  t.match(made.counts, { claimed: 3, refused: 0 })
})

t.test('a claim that is refused is not asked in a hurry, and logged once', async t => {
  const messages: unknown[] = []
  const proxy = await startFakeService(t, () => ({ status: 404, body: '{"code":"route_not_found"}' }))
  const made = createWorker({
    url: proxy.url,
    types: { odd: () => 1 },
    logger: { ...silent, warn: (fields, message) => void messages.push([fields.error, message]) },
    onError: error => void messages.push(error),
  })
  t.teardown(() => made.stop({ drainMs: 0 }))
  made.start()
  const first = await proxy.next(CLAIM)
  const second = await proxy.next(CLAIM)
  t.not(JSON.parse(second.body).claimId, JSON.parse(first.body).claimId)
  t.match(messages, [
    [/answered 404 \(route_not_found\)/, 'claiming failed; trying again until it works'],
    { name: 'RollcallError', code: 'route_not_found', status: 404 },
  ])
})

const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} }
const json = (body: object) => ({ status: 200, body: JSON.stringify(body) })

const claimed = (type: string): ClaimedTask => ({
  taskId: randomUUID(),
  type,
  run: 1,
  attempt: 1,
  maxAttempts: 3,
  attemptsCharged: 0,
  payload: null,
  context: null,
  labels: {},
  correlationId: null,
  leaseMs: 60_000,
  leaseUntil: '2030-01-01T00:00:00.000Z',
  executionDeadlineAt: '2030-01-01T00:00:00.000Z',
})
