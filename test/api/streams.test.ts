/** Server-Sent Events of one task: what is told, in what order, and where it ends. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { Streams } from '../../src/api/streams/streams.ts'
import type { CommandEnvelope } from '../../src/domain/commands.ts'
import { openSse } from '../support/sse.ts'
import { isProblem, startApi, TOKEN, until } from './fixture.ts'

const { api, service } = await startApi(t)
const streamOf = (taskId: string) => `${api.url}/v1/tasks/${taskId}/events`

t.test('a stream begins with the state of now, tells each event, and ends with the task', async t => {
  const task = await api.submit()
  const sse = await openSse(t, streamOf(task.taskId))
  t.equal(sse.status, 200)
  t.match(sse.headers, {
    'content-type': 'text/event-stream',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
  })
  const first = await sse.until('the state', ({ event }) => event === 'task')
  t.match(first, { id: /^0\.[0-9a-f]{16}$/, data: { event: null, task: { status: 'PENDING', revision: 0 } } })
  t.notOk('payload' in (first.data.task as object), 'what is large is not told')
  t.equal(sse.retryMs, 2_000)
  const { tasks } = (await api.claim({ types: [task.type] })).body
  await api.command(tasks[0]!, 'step', { step: 'DOWNLOADING' })
  await api.command(tasks[0]!, 'succeed', { result: { a: 1 }, resultUrl: 'https://example.com/a' })
  await sse.untilEnd()
  t.ok(sse.endedWell)
  t.strictSame(
    sse.told().filter(line => !line.startsWith('null')),
    ['TaskStarted PROCESSING 1', 'TaskStepEntered PROCESSING 2', 'TaskSucceeded SUCCESS 3'],
  )
  t.match(sse.messages.at(-2), { data: { task: { progress: 1, resultUrl: 'https://example.com/a' } } })
  t.match(sse.messages.at(-1), { event: 'end', id: null, data: { reason: 'final' } })

  const again = await openSse(t, streamOf(task.taskId), { 'last-event-id': sse.lastEventId! })
  t.equal(again.status, 204, 'there is nothing more to tell, so a browser stays away')
  const late = await openSse(t, streamOf(task.taskId))
  await late.untilEnd()
  t.strictSame(late.told(), ['null SUCCESS 3'], 'whoever comes late is told how it ended')
})

t.test('a task that is not there has no stream', async t => {
  isProblem(t, await api.get(`/v1/tasks/${randomUUID()}/events`), 'not_found')
  isProblem(t, await api.get('/v1/tasks/nonsense/events'), 'invalid_request')
  const head = await api.ask('HEAD', `/v1/tasks/${randomUUID()}/events`)
  t.equal(head.status, 405)
})

t.test('progress is told without an id', async t => {
  const started = await api.started()
  const sse = await openSse(t, streamOf(started.taskId))
  await sse.until('the state', ({ event }) => event === 'task')
  const { taskId, attempt } = started
  const beats = [{ taskId, attempt, leaseToken: TOKEN, progress: 0.5 }]
  await api.post('/v1/workers/heartbeat', { worker: 'worker-1', beats })
  const told = await sse.until(
    'progress',
    ({ data }) => (data.task as { progress: number })?.progress === 0.5,
  )
  t.match(told, { id: null, data: { event: null, task: { status: 'PROCESSING', revision: 1 } } })
  sse.close()
})

t.test('with a Last-Event-ID all is told that has happened since', async t => {
  const { taskId } = await api.submit()
  const first = await openSse(t, streamOf(taskId))
  await first.until('the state', ({ event }) => event === 'task')
  first.close()
  for (let n = 1; n <= 3; n++) await api.post(`/v1/tasks/${taskId}/notes`, { note: `${n}` })
  for (const resumed of [
    await openSse(t, streamOf(taskId), { 'last-event-id': first.lastEventId! }),
    await openSse(t, `${streamOf(taskId)}?lastEventId=${first.lastEventId}`),
  ]) {
    await resumed.until('the last note', ({ data }) => (data.task as { revision: number })?.revision === 3)
    await api.get('/livez')
    t.strictSame(resumed.told(), ['TaskNoted PENDING 1', 'TaskNoted PENDING 2', 'TaskNoted PENDING 3'])
    resumed.close()
  }
  const unknown = await openSse(t, streamOf(taskId), { 'last-event-id': '2.0123456789abcdef' })
  await unknown.until('the state', ({ event }) => event === 'task')
  t.match(unknown.messages, [
    { event: 'resync', data: { reason: 'unknown_id' } },
    { event: 'task', data: { event: null, task: { revision: 3 } } },
  ])
  unknown.close()
})

t.test('whoever has missed more than is told again begins anew', async t => {
  const { taskId } = await api.submit()
  const first = await openSse(t, streamOf(taskId))
  await first.until('the state', ({ event }) => event === 'task')
  first.close()
  const { actor, source } = { actor: { kind: 'client', id: 'test' }, source: 'http' } as const
  const note = (): CommandEnvelope => ({
    ...{ taskId, actor, source, commandId: randomUUID(), correlationId: null, causationId: null },
    ...{ trace: null, ifRevision: null, command: { trigger: 'NOTE', note: 'x' } },
  })
  await service.engine.executeMany(Array.from({ length: 1_000 }, note))
  const all = await openSse(t, streamOf(taskId), { 'last-event-id': first.lastEventId! })
  await all.until('the last note', ({ data }) => (data.task as { revision: number })?.revision === 1_000)
  t.equal(all.told().length, 1_000)
  all.close()
  await api.post(`/v1/tasks/${taskId}/cancel`)
  const late = await openSse(t, streamOf(taskId), { 'last-event-id': first.lastEventId! })
  await late.untilEnd()
  t.match(late.messages[0], { event: 'resync', data: { reason: 'too_old' } })
  t.strictSame(late.told(), ['null CANCELLED 1001'])
})

t.test('a failed task that is tried again goes on in a new stream', async t => {
  const started = await api.started({ retry: { maxAttempts: 1 } })
  const { taskId } = started
  await api.command(started, 'fail', { error: { message: 'broken' } })
  const first = await openSse(t, streamOf(taskId))
  await first.untilEnd()
  t.strictSame(first.told(), ['null FAILED 2'])
  const resume = () => openSse(t, streamOf(taskId), { 'last-event-id': first.lastEventId! })
  t.equal((await resume()).status, 204)
  await api.post(`/v1/tasks/${taskId}/retry`)
  const again = await resume()
  await again.until('it waits again', ({ data }) => data.event === 'TaskRequeued')
  await api.post(`/v1/tasks/${taskId}/cancel`)
  await again.untilEnd()
  t.strictSame(
    again.told().filter(line => !line.startsWith('null')),
    ['TaskRequeued PENDING 3', 'TaskCancelled CANCELLED 4'],
  )
})

t.test('streams are counted where they begin, and not as requests that lasted', async t => {
  const { taskId } = await api.submit()
  const figure = async (line: RegExp) => Number(line.exec((await api.get('/metrics')).text)?.[1] ?? 0)
  const open = () => figure(/^rollcall_streams_open (\d+)$/m)
  const counted = () =>
    figure(
      /^rollcall_http_request_seconds_count\{route="\/v1\/tasks\/:id\/events",method="GET",status="200"\} (\d+)$/m,
    )
  await until('all of the tests before are closed', async () => (await open()) === 0)
  const before = await counted()
  const sse = await openSse(t, streamOf(taskId))
  t.equal(await open(), 1)
  t.equal(await counted(), before + 1)
  await api.post(`/v1/tasks/${taskId}/cancel`)
  await sse.untilEnd()
  await until('it is closed', async () => (await open()) === 0)
  t.equal(await counted(), before + 1)
})

t.test('no more streams than there may be', async t => {
  const streams = new Streams({ metrics: null, ring: null, logger: null } as never, 2)
  const [first] = [streams.admit(), streams.admit()]
  t.throws(() => streams.admit(), { code: 'too_many_streams', status: 503 })
  first.leave()
  first.leave()
  streams.admit()
  t.throws(() => streams.admit(), { code: 'too_many_streams' })
})
