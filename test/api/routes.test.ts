import { randomUUID } from 'node:crypto'
import pino from 'pino'
import t from 'tap'
import { fileConfigSchema, type ServiceConfig, serviceConfigSchema } from '../../src/runtime/config.ts'
import { startService } from '../../src/runtime/service.ts'
import { Api, isProblem, registeredRoutes, startApi, TOKEN } from './fixture.ts'

const { api, databaseUrl } = await startApi(t)

/** Every route with a request that fits. */
const fence = { attempt: 1, leaseToken: TOKEN }
const ROUTES: ['GET' | 'POST', string, object?][] = [
  ['POST', '/v1/tasks', { type: 'a' }],
  ['POST', '/v1/tasks/batch', { tasks: [{ type: 'a' }] }],
  ['GET', '/v1/tasks'],
  ['GET', '/v1/tasks/:id'],
  ['GET', '/v1/tasks/:id/history'],
  ['GET', '/v1/tasks/:id/refusals'],
  ['POST', '/v1/tasks/:id/cancel', {}],
  ['POST', '/v1/tasks/:id/retry', {}],
  ['POST', '/v1/tasks/:id/notes', { note: 'x' }],
  ['POST', '/v1/tasks/:id/start', { worker: 'w', ...fence }],
  ['POST', '/v1/tasks/:id/step', { step: 'X', ...fence }],
  ['POST', '/v1/tasks/:id/succeed', { ...fence }],
  ['POST', '/v1/tasks/:id/fail', { error: { message: 'x' }, ...fence }],
  ['POST', '/v1/tasks/:id/release', { ...fence }],
  ['POST', '/v1/workers/claim', { worker: 'w', types: ['a'], claimId: 'c-1', leaseToken: TOKEN }],
  [
    'POST',
    '/v1/workers/start',
    { worker: 'w', leaseToken: TOKEN, tasks: [{ taskId: randomUUID(), attempt: 1 }] },
  ],
  ['POST', '/v1/workers/report', { worker: 'w', reports: [{}] }],
  ['GET', '/v1/rollcall'],
  ['GET', '/v1/dead-letters'],
  ['GET', '/v1/dead-letters/:id'],
  ['POST', '/v1/dead-letters/redrive', { letterIds: [randomUUID()] }],
  ['POST', '/v1/dead-letters/discard', { letterIds: [randomUUID()], reason: 'x' }],
  ['POST', '/v1/verify', {}],
  ['POST', '/v1/workers/heartbeat', { worker: 'w', beats: [{ taskId: randomUUID(), ...fence }] }],
]

t.test('the routes tested here are all there are', async t => {
  const probes = ['GET /livez', 'GET /metrics', 'GET /readyz']
  t.strictSame(
    await registeredRoutes(),
    [...ROUTES.map(([method, path]) => `${method} ${path}`), ...probes].sort(),
  )
})

t.test('every route answers a field or a parameter it does not know with 400', async t => {
  const { taskId } = await api.submit()
  for (const [method, route, body] of ROUTES)
    t.test(`${method} ${route}`, async t => {
      const path = route.replace(':id', taskId)
      const detail = /^(taskid|trigger|unknown): is not a known field/
      if (body)
        for (const field of ['unknown', 'taskid'])
          isProblem(
            t,
            await api.ask(method, path, { body: { ...body, [field]: 1 } }),
            'invalid_request',
            detail,
          )
      isProblem(t, await api.ask(method, `${path}?unknown=1`, { body }), 'invalid_request', detail)
    })
})

t.test('every route with a body says what it is, and refuses another', async t => {
  for (const [method, route, body] of ROUTES) {
    if (!body) continue
    const path = route.replace(':id', randomUUID())
    isProblem(t, await api.ask(method, path, { body: 'not json' }), 'invalid_json')
    isProblem(t, await api.ask(method, path, { body: '[1]' }), 'invalid_request')
    const headers = { 'content-type': 'text/plain' }
    isProblem(t, await api.ask(method, path, { body: 'x', headers }), 'unsupported_media_type')
  }
})

t.test('the header fields that say who asks are checked', async t => {
  const submit = (headers: Record<string, string>) => api.post('/v1/tasks', { type: 'a' }, headers)
  isProblem(t, await submit({ 'rollcall-actor': 'x'.repeat(129) }), 'invalid_request', /^rollcall-actor/)
  isProblem(t, await submit({ 'rollcall-source': 'moon' }), 'invalid_request', /^rollcall-source/)
  isProblem(t, await submit({ 'correlation-id': 'two words' }), 'invalid_request', /^correlation-id/)
  const answer = await submit({
    'rollcall-actor': 'ada',
    'rollcall-source': 'command_line',
    'correlation-id': 'order-7',
    traceparent: 'nonsense',
  })
  t.match(answer, { status: 201, body: { correlationId: 'order-7' } })
  t.match(await api.history(answer.body.taskId as string), [
    { actor: { kind: 'person', id: 'ada' }, source: 'command_line', correlationId: 'order-7' },
  ])
})

t.test('what is no route is a problem like any other', async t => {
  isProblem(t, await api.get('/'), 'route_not_found', /^GET \/ is not a route/)
  isProblem(t, await api.get('/v1/tasks/%2e%2e/x'), 'route_not_found')
  isProblem(t, await api.post('/v1/task', { type: 'a' }), 'route_not_found')
  for (const method of ['PUT', 'PATCH', 'DELETE', 'OPTIONS'])
    isProblem(t, await api.ask(method, '/v1/tasks'), 'route_not_found', new RegExp(`^${method}`))
  isProblem(t, await api.post('/livez'), 'route_not_found')
})

t.test('a service that is well says so', async t => {
  t.match(await api.get('/livez'), { status: 200, body: { status: 'ok' } })
  const { status, body } = await api.get('/readyz')
  t.equal(status, 200)
  t.strictSame(body, {
    status: 'ok',
    checks: ['projector', 'log', 'read_model'].map(name => ({ name, ok: true, reason: null })),
  })
})

t.test('S72 waiting claims end when the service stops, and what comes meanwhile is told so', async t => {
  const { api, service } = await startApi(t)
  const waiting = Array.from({ length: 50 }, (_, n) =>
    api.claim({ types: ['nothing'], waitMs: 30_000, claimId: `claim-${n}` }),
  )
  // Answered on a connection of its own, so the claims before it have arrived.
  await api.get('/livez')
  const began = performance.now()
  await service.stop()
  t.ok(performance.now() - began < 10_000, 'no wait was sat out')
  const settled = await Promise.allSettled(waiting)
  t.ok(settled.some(({ status }) => status === 'fulfilled'))
  for (const one of settled) {
    // A connection whose request had not been read yet is cut like an idle one.
    if (one.status === 'rejected') t.match(one.reason, { code: /^ECONN/ })
    else if (one.value.status === 200) t.strictSame(one.value.body, { tasks: [] })
    else isProblem(t, one.value, 'shutting_down')
  }
  await t.rejects(api.get('/livez'), 'nobody listens any more')
  await service.stop()
})

t.test('without keys the API is open on loopback alone', async t => {
  const start = (fields: Partial<ServiceConfig>) =>
    startService({
      ...serviceConfigSchema.parse({ databaseUrl, port: 0, ...fields }),
      file: fileConfigSchema.parse({}),
      logger: pino({ level: 'silent' }),
      requireDurable: false,
    })
  for (const host of ['0.0.0.0', '::', '10.0.0.1', 'example.com', '127.0.0.1.example.com', '::ffff:0.0.0.0'])
    await t.rejects(start({ host }), { code: 'config', message: /without-keys/ }, host)
  for (const fields of [
    { host: '127.0.0.1' },
    { host: 'localhost' },
    { host: '0.0.0.0', withoutKeys: true },
    { host: '0.0.0.0', roles: ['timers' as const] },
  ]) {
    const started = await start(fields)
    t.teardown(() => started.stop())
    if (started.url) t.equal((await new Api(t, started.url).get('/livez')).status, 200, fields.host)
    else t.strictSame(fields.roles, ['timers'], 'without the API there is no address to protect')
    await started.stop()
  }
})
