/** The client against a real service, and what it makes of answers that are lost or wrong. */
import { inspect } from 'node:util'
import t from 'tap'
import { createClient, RollcallError, type TaskFilter } from '../../src/sdk/client.ts'
import { createWorker } from '../../src/sdk/worker.ts'
import { freePort } from '../cli/fixture.ts'
import { eventTypes, finished, recorder, startFakeService, startFixture, until, WAIT_MS } from './fixture.ts'

const TASKS = '/v1/tasks'

t.test('a submit whose answer was lost is sent again with its key, and makes one task', async t => {
  const { client: direct, proxy } = await startFixture(t)
  const client = createClient({ url: proxy.url })
  proxy.fault(TASKS, 'lose_answer', 2)
  const task = await client.submit({ type: 'image.generate', payload: { prompt: 'a fox' } })
  t.equal(proxy.seen.length, 3)
  t.equal(new Set(proxy.seen.map(request => request.headers['idempotency-key'])).size, 1)
  t.equal(new Set(proxy.seen.map(request => request.body)).size, 1)
  t.strictSame(await eventTypes(direct, task.taskId), ['TaskSubmitted'])
  const { tasks } = await until('it is listed', async () => {
    const list = await direct.list()
    return list.tasks.length > 0 && list
  })
  t.equal(tasks.length, 1)
})

t.test('two submits without a key are two tasks; the same key is one, and refuses another body', async t => {
  const { client } = await startFixture(t)
  const task = { type: 'report.export', payload: { month: 5 } }
  t.not((await client.submit(task)).taskId, (await client.submit(task)).taskId)
  const first = await client.submit(task, { idempotencyKey: 'may' })
  t.equal((await client.submit(task, { idempotencyKey: 'may' })).taskId, first.taskId)
  await t.rejects(client.submit({ ...task, payload: { month: 6 } }, { idempotencyKey: 'may' }), {
    code: 'idempotency_key_reused',
    status: 422,
    retryable: false,
  })
})

t.test('commands whose answers were lost are carried out once', async t => {
  const { client: direct, proxy } = await startFixture(t)
  const client = createClient({ url: proxy.url })
  const { taskId } = await direct.submit({ type: 'image.generate' })
  for (const command of ['notes', 'cancel']) proxy.fault(`${TASKS}/${taskId}/${command}`, 'lose_answer')
  await client.note(taskId, 'please hurry')
  const cancelled = await client.cancel(taskId, { reason: 'not needed any more' })
  t.match(cancelled, { status: 'CANCELLED', why: /not needed any more/ })
  t.strictSame(await eventTypes(direct, taskId), ['TaskSubmitted', 'TaskNoted', 'TaskCancelled'])
  const keys = proxy.seen
    .filter(({ path }) => path.endsWith('/notes'))
    .map(({ headers }) => headers['idempotency-key'])
  t.equal(keys.length, 2)
  t.ok(keys[0])
  t.equal(keys[1], keys[0])
})

t.test("a key of one's own names a command and a whole batch, wherever it is repeated from", async t => {
  const { client, url } = await startFixture(t)
  const other = createClient({ url })
  const tasks = [{ type: 'keyed' }, { type: 'keyed', payload: 2 }]
  const first = await client.submitBatch(tasks, { idempotencyKey: 'all' })
  const second = await other.submitBatch(tasks, { idempotencyKey: 'all' })
  t.match(first, [{ kind: 'accepted' }, { kind: 'accepted' }])
  const idsOf = (results: typeof first) => results.map(one => 'taskId' in one && one.taskId)
  t.strictSame(idsOf(second), idsOf(first))
  await t.rejects(client.submitBatch([tasks[1]!, tasks[0]!], { idempotencyKey: 'all' }), {
    code: 'idempotency_key_reused',
    status: 422,
  })
  const { taskId } = await client.submit({ type: 'keyed', tenant: 'acme' })
  for (const one of [client, other]) {
    await one.note(taskId, 'once', { idempotencyKey: 'note-1' })
    await one.cancel(taskId, { idempotencyKey: 'cancel-1' })
  }
  t.strictSame(await eventTypes(client, taskId), ['TaskSubmitted', 'TaskNoted', 'TaskCancelled'])
})

t.test('a batch with a key is sent again whole when a part of it was put off', async t => {
  const proxy = await startFakeService(t, ({ body }) => {
    const results = (JSON.parse(body).tasks as { payload: string }[]).map(({ payload }) =>
      payload === 'late' && proxy.seen.length < 2
        ? { kind: 'refused', code: 'overloaded', message: 'later' }
        : { kind: proxy.seen.length < 2 ? 'accepted' : 'repeated', taskId: payload },
    )
    return { status: 200, body: JSON.stringify({ results }) }
  })
  const tasks = ['early', 'late'].map(payload => ({ type: 'fake', payload }))
  const results = await createClient({ url: proxy.url }).submitBatch(tasks, { idempotencyKey: 'all' })
  t.match(results, [
    { kind: 'accepted', taskId: 'early' },
    { kind: 'repeated', taskId: 'late' },
  ])
  t.strictSame(
    proxy.seen.map(({ headers, body }) => [headers['idempotency-key'], JSON.parse(body).tasks]),
    Array.from({ length: 2 }, () => ['all', tasks]),
  )
})

t.test('a failed task is retried by hand, and revisions guard commands', async t => {
  const { client, worker } = await startFixture(t)
  let fail = true
  worker({
    flaky: () => {
      if (fail) throw new Error('not yet')
      return 'now'
    },
  })
  const failed = await finished(client, await client.submit({ type: 'flaky', retry: { maxAttempts: 1 } }))
  t.equal(failed.status, 'FAILED')
  await t.rejects(client.retry(failed.taskId, { ifRevision: failed.revision - 1 }), {
    code: 'revision_mismatch',
    status: 412,
  })
  fail = false
  await client.retry(failed.taskId, { ifRevision: failed.revision, reason: 'fixed' })
  t.match(await finished(client, failed), { status: 'SUCCESS', result: 'now', run: 2 })
  await t.rejects(client.cancel(failed.taskId), { code: 'task_finished', status: 409, retryable: false })
})

t.test('history comes in pages, and all of it through the iterator', async t => {
  const { client } = await startFixture(t)
  const { taskId } = await client.submit({ type: 'noted' })
  for (const note of ['one', 'two', 'three']) await client.note(taskId, note)
  const page = await client.history(taskId, { from: 1, limit: 2 })
  t.strictSame(
    page.events.map(event => event.revision),
    [1, 2],
  )
  t.equal(page.next, 3)
  const revisions: number[] = []
  for await (const event of client.events(taskId, { limit: 1 })) revisions.push(event.revision)
  t.strictSame(revisions, [0, 1, 2, 3])
})

t.test('lists are filtered and paged', async t => {
  const { client } = await startFixture(t)
  const ids: string[] = []
  for (const payload of [1, 2, 3]) ids.push((await client.submit({ type: 'listed', payload })).taskId)
  const other = await client.submit({ type: 'other' })
  await client.cancel(other.taskId)
  await until(
    'the read model has all',
    async () => (await client.list({ status: 'CANCELLED' })).tasks.length === 1,
  )
  const first = await client.list({ type: 'listed', order: 'oldest', limit: 2 })
  const second = await client.list({ type: 'listed', order: 'oldest', limit: 2, cursor: first.nextCursor! })
  t.strictSame(
    [...first.tasks, ...second.tasks].map(task => task.taskId),
    ids,
  )
  t.equal(second.nextCursor, null)
  t.equal((await client.list({ status: ['PENDING', 'CANCELLED'] })).tasks.length, 4)
})

t.test('lists and counts take every filter', async t => {
  const { client, worker } = await startFixture(t)
  const task = { type: 'sought', tenant: 'acme', labels: { customer: 'a&b' }, correlationId: 'order-1' }
  worker({
    sought: () => {
      throw new Error('The disk is FULL')
    },
  })
  const sought = await finished(client, await client.submit({ ...task, retry: { maxAttempts: 1 } }))
  const other = await client.submit({ type: 'unsought' })
  const matching = async (filter: TaskFilter) => (await client.list(filter)).tasks.map(one => one.taskId)
  await until('both are listed', async () => (await matching({})).length === 2)
  for (const filter of [
    { tenant: 'acme' },
    { labels: { customer: 'a&b' } },
    { correlationId: 'order-1' },
    { error: 'disk is full' },
    { createdAfter: sought.createdAt, createdBefore: new Date(other.createdAt) },
    { status: 'FAILED' as const, type: 'sought' },
  ]) {
    t.strictSame(await matching(filter), [sought.taskId], JSON.stringify(filter))
    const { counts } = await client.counts(filter)
    t.match(counts, { FAILED: { count: 1, exact: true }, PENDING: { count: 0, exact: true } })
  }
  t.strictSame(await matching({ labels: { customer: 'a' } }), [])
})

t.test('a batch answers for each of its tasks', async t => {
  const { client } = await startFixture(t)
  const results = await client.submitBatch([
    { type: 'good', idempotencyKey: 'a' },
    { type: 'Not A Type' },
    { type: 'good', idempotencyKey: 'a' },
  ])
  t.match(results, [
    { kind: 'accepted', status: 'PENDING' },
    { kind: 'refused', code: 'invalid_request', errors: [{ path: 'type' }] },
    { kind: 'repeated' },
  ])
  await t.rejects(client.submitBatch([]), { code: 'invalid_request', status: 400 })
})

t.test('members of a batch that the service put off are sent again with their keys', async t => {
  const proxy = await startFakeService(t, ({ body }) => {
    const round = proxy.seen.length
    const results = (JSON.parse(body).tasks as { payload: string }[]).map(({ payload }) =>
      payload === 'late' && round < 3
        ? { kind: 'refused', code: 'overloaded', message: 'later' }
        : { kind: 'accepted', taskId: payload, status: 'PENDING', revision: 0 },
    )
    return { status: 200, body: JSON.stringify({ results }) }
  })
  const tasks = ['early', 'late', 'last'].map(payload => ({ type: 'fake', payload }))
  const results = await createClient({ url: proxy.url }).submitBatch(tasks)
  t.match(results, [{ taskId: 'early' }, { taskId: 'late' }, { taskId: 'last' }])
  const sent = proxy.bodies('/v1/tasks/batch').map(body => body.tasks as { idempotencyKey: string }[])
  t.strictSame(
    sent.map(members => members.length),
    [3, 1, 1],
  )
  t.equal(sent[1]?.[0]?.idempotencyKey, sent[0]?.[1]?.idempotencyKey)
})

t.test(
  'waitFor goes on while the service is away, and says where the task stands when time is up',
  async t => {
    const { client: direct, proxy } = await startFixture(t)
    const client = createClient({ url: proxy.url, timeoutMs: 1_000 })
    const { taskId } = await direct.submit({ type: 'image.generate' })
    await t.rejects(client.waitFor(taskId, { timeoutMs: 300 }), {
      code: 'timeout',
      message: /did not finish within 300 ms. It is PENDING: .*worker of type image.generate/,
    })
    const waiting = client.waitFor(taskId, { timeoutMs: WAIT_MS })
    await proxy.down()
    await direct.cancel(taskId)
    await proxy.up()
    t.equal((await waiting).status, 'CANCELLED')
    const unknown = '00000000-0000-4000-8000-000000000000'
    await t.rejects(client.waitFor(unknown), { code: 'not_found', status: 404 })
  },
)

t.test('a signal ends a call and a wait with its reason', async t => {
  const { client, proxy } = await startFixture(t)
  const { taskId } = await client.submit({ type: 'image.generate' })
  const reason = new Error('the page was closed')
  const leaving = new AbortController()
  const waiting = client.waitFor(taskId, { signal: leaving.signal })
  leaving.abort(reason)
  await t.rejects(waiting, reason)
  await t.rejects(client.get(taskId, { signal: leaving.signal }), reason)
  proxy.fault(`${TASKS}/${taskId}`, 'hang')
  const hanging = new AbortController()
  const asked = proxy.next(`${TASKS}/${taskId}`)
  const getting = createClient({ url: proxy.url }).get(taskId, { signal: hanging.signal })
  await asked
  hanging.abort(reason)
  await t.rejects(getting, reason)
})

t.test('errors say what was wrong, where, and whether to try again', async t => {
  const { client } = await startFixture(t)
  await t.rejects(client.submit({ type: 'x', timeouts: { leaseMs: 0 }, priority: 5_000 }), {
    name: 'RollcallError',
    code: 'invalid_request',
    status: 400,
    retryable: false,
    errors: [{ path: 'priority' }, { path: 'timeouts.leaseMs' }],
    message: /^POST http.*\/v1\/tasks was answered 400 \(invalid_request\): .*leaseMs/,
  })
  await t.rejects(client.get('../../metrics'), { code: 'invalid_request', status: 400 })
  await t.rejects(client.get('00000000-0000-4000-8000-000000000000'), { code: 'not_found', status: 404 })
  const cyclic: Record<string, unknown> = {}
  cyclic.self = cyclic
  for (const payload of [{ id: 1n }, cyclic])
    await t.rejects(client.submit({ type: 'x', payload }), { code: 'not_json', status: 0, retryable: false })
})

t.test('a service that is not there, hangs or is something else is named', async t => {
  const quick = { timeoutMs: 400, retries: 1 }
  await t.rejects(createClient({ url: 'http://127.0.0.1:1', ...quick }).get('x'), {
    code: 'unreachable',
    status: 0,
    retryable: true,
    message: /http:\/\/127.0.0.1:1\/v1\/tasks\/x was not answered \(ECONNREFUSED\); is the service running/,
  })
  const proxy = await startFakeService(t, () => ({ status: 200, body: '<html>It works!</html>' }))
  proxy.fault(`${TASKS}/slow`, 'hang', 9)
  proxy.fault(
    `${TASKS}/teapot`,
    { status: 418, headers: { 'content-type': 'text/plain' }, body: 'no\u0007 coffee' },
    9,
  )
  const client = createClient({ url: `${proxy.url}/`, ...quick })
  await t.rejects(client.get('slow'), { code: 'timeout', retryable: true })
  await t.rejects(client.get('wrong'), { code: 'bad_answer', detail: '<html>It works!</html>' })
  await t.rejects(client.get('teapot'), { code: 'unexpected_status', status: 418, detail: 'no  coffee' })
})

t.test('retries are bounded, wait as long as asked, and only where another try may help', async t => {
  const proxy = await startFakeService(t, () => ({ status: 200, body: '{}' }))
  const away = { status: 503, body: '{"code":"shutting_down","detail":"later"}' }
  proxy.fault(`${TASKS}/a`, away, 99)
  await t.rejects(createClient({ url: proxy.url, retries: 2 }).get('a'), {
    code: 'shutting_down',
    status: 503,
  })
  t.equal(proxy.seen.length, 3)
  proxy.fault(`${TASKS}/b`, { ...away, headers: { 'retry-after': '1' } })
  const began = performance.now()
  await createClient({ url: proxy.url }).get('b')
  t.ok(performance.now() - began >= 950)
  proxy.fault(`${TASKS}/c`, { ...away, headers: { 'retry-after': '3600' } })
  await t.rejects(createClient({ url: proxy.url }).get('c'), {
    code: 'shutting_down',
    retryAfterMs: 3_600_000,
  })
  proxy.fault(`${TASKS}/d`, { status: 500, body: '' }, 99)
  const before = proxy.seen.length
  await t.rejects(createClient({ url: proxy.url }).get('d'), {
    code: 'unexpected_status',
    status: 500,
    retryable: false,
  })
  t.equal(proxy.seen.length, before + 1)
})

t.test("a fetch of one's own and headers of one's own are used, under a path too", async t => {
  const proxy = await startFakeService(t, ({ path, headers }) => ({
    status: 200,
    body: JSON.stringify({ taskId: path, status: headers.authorization }),
  }))
  let calls = 0
  const client = createClient({
    url: `${proxy.url}/rollcall`,
    headers: { authorization: 'Bearer secret' },
    fetch: (...request) => {
      calls++
      return fetch(...request)
    },
  })
  t.match(await client.get('x'), { taskId: '/rollcall/v1/tasks/x', status: 'Bearer secret' })
  t.equal(calls, 1)
  const deaf = createClient({
    url: proxy.url,
    timeoutMs: 100,
    retries: 0,
    fetch: () => new Promise(() => {}),
  })
  await t.rejects(deaf.get('x'), { code: 'timeout' })
  const moved = createClient({ url: proxy.url, retries: 0, fetch })
  proxy.fault(`${TASKS}/moved`, { status: 307, headers: { location: '/elsewhere' } })
  await t.rejects(moved.get('moved'), RollcallError)
  t.notOk(proxy.seen.some(request => request.path === '/elsewhere'))
})

t.test('a key is sent as it is meant, and stands in no error', async t => {
  const key = 'rck_0123456789abcdef_secret'
  const proxy = await startFakeService(t, ({ headers }) => ({
    status: headers.authorization === `Bearer ${key}` ? 401 : 200,
    body: '{"code":"unauthenticated","detail":"The key is revoked."}',
  }))
  const nowhere = `http://127.0.0.1:${await freePort()}`
  const worker = createWorker({ url: proxy.url, key, types: { keyed: () => {} }, logger: recorder([]) })
  const claimed = proxy.next('/v1/workers/claim')
  worker.start()
  t.equal((await claimed).headers.authorization, `Bearer ${key}`)
  await worker.stop()
  for (const options of [
    { url: proxy.url, key },
    { url: proxy.url, key, fetch },
    { url: nowhere, key, fetch, retries: 0 },
    { url: nowhere, key, retries: 0 },
  ]) {
    const client = createClient(options)
    t.notMatch(inspect(client, { depth: 9, showHidden: true }), 'secret')
    for (const call of [() => client.get('x'), () => client.stream('x').next()]) {
      const error = await call().then(t.fail, error => error)
      t.match(error, {
        code: options.url === nowhere ? 'unreachable' : 'unauthenticated',
        retryable: Boolean,
      })
      t.notMatch(inspect(error, { depth: 9, showHidden: true }), 'secret')
    }
  }
})

t.test('options that cannot be meant fail at once, and repeat no secret', async t => {
  const url = 'http://127.0.0.1:8080'
  for (const options of [
    { url: '' },
    { url: 'localhost:8080' },
    { url, timeoutMs: 0 },
    { url, retries: -1 },
    { url, key: '' },
    { url, key: 'secret\n' },
    { url, key: 'k', headers: { Authorization: 'Bearer secret' } },
    { url, headers: { 'x-token': 'secret\r\nx: y' } },
    { url: `http://secret:secret@127.0.0.1` },
  ])
    t.throws(() => createClient(options), { name: 'TypeError', message: /^(?!.*secret)/s })
})
