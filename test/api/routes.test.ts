import { randomUUID } from 'node:crypto'
import pino from 'pino'
import t from 'tap'
import {
  fileConfigSchema,
  keysRequired,
  rateLimitOf,
  readEnvironment,
  type ServiceConfig,
  serviceConfig,
  serviceConfigSchema,
} from '../../src/runtime/config.ts'
import { startService } from '../../src/runtime/service.ts'
import { Api, isProblem, registeredRoutes, startApi, TOKEN } from './fixture.ts'

const { api, databaseUrl } = await startApi(t)

/** Every route with a request that fits. */
const fence = { attempt: 1, leaseToken: TOKEN }
const ROUTES: ['GET' | 'POST', string, object?][] = [
  ['POST', '/v1/tasks', { type: 'a' }],
  ['POST', '/v1/tasks/batch', { tasks: [{ type: 'a' }] }],
  ['GET', '/v1/tasks'],
  ['GET', '/v1/tasks/counts'],
  ['GET', '/v1/tasks/:id'],
  ['GET', '/v1/tasks/:id/history'],
  ['GET', '/v1/tasks/:id/events'],
  ['GET', '/v1/events'],
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
  ['POST', '/v1/keys', { name: 'a', scopes: ['read'] }],
  ['GET', '/v1/keys'],
  ['POST', '/v1/keys/:id/revoke', {}],
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
})

t.test('a route that is asked with another method says which ones it takes', async t => {
  const id = randomUUID()
  const TAKEN = [
    ['/v1/tasks', 'GET, HEAD, POST'],
    [`/v1/tasks/${id}`, 'GET, HEAD'],
    [`/v1/tasks/${id}/cancel?x=1`, 'POST'],
    ['/v1/workers/claim', 'POST'],
    ['/v1/tasks/batch', 'POST'],
    ['/livez', 'GET, HEAD'],
    ['/openapi.json', 'GET, HEAD'],
  ] as const
  for (const [path, allowed] of TAKEN)
    for (const method of ['PUT', 'PATCH', 'DELETE', 'OPTIONS']) {
      const answer = await api.ask(method, path)
      isProblem(t, answer, 'method_not_allowed', new RegExp(`takes ${allowed}, not ${method}`))
      t.equal(answer.headers.allow, allowed)
    }
  isProblem(t, await api.get('/v1/workers/claim'), 'method_not_allowed')
  isProblem(t, await api.post('/livez'), 'method_not_allowed')
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

t.test('keys are required beyond loopback, unless the API is to be open there', async t => {
  const logged: string[] = []
  const start = (fields: Partial<ServiceConfig>) =>
    startService({
      ...serviceConfigSchema.parse({ databaseUrl, port: 0, ...fields }),
      file: fileConfigSchema.parse({}),
      logger: pino({ level: 'warn' }, { write: line => logged.push(JSON.parse(line).msg) }),
      requireDurable: false,
    })
  for (const [fields, status, said] of [
    [{ host: '127.0.0.1' }, 200, null],
    [{ host: 'localhost' }, 200, null],
    [{ host: '127.0.0.1', requireKeys: true }, 401, /no access key yet: rollcall keys create/],
    [{ host: '0.0.0.0' }, 401, /no access key yet: rollcall keys create/],
    [{ host: '::' }, 401, /no access key yet/],
    [{ host: '0.0.0.0', roles: ['timers' as const] }, 401, /no access key yet/],
    [{ host: '0.0.0.0', withoutKeys: true }, 200, /whoever reaches it may do everything/],
  ] as const) {
    logged.length = 0
    const started = await start(fields as Partial<ServiceConfig>)
    t.teardown(() => started.stop())
    const { port } = new URL(started.url!)
    const { status: answered } = await new Api(t, `http://127.0.0.1:${port}`).get('/metrics')
    t.equal(answered, status, JSON.stringify(fields))
    if (said) t.match(logged.join('\n'), said)
    else t.notMatch(logged.join('\n'), /key/)
    await started.stop()
  }
})

t.test('which addresses are loopback', async t => {
  const settings = { requireKeys: false, withoutKeys: false, rateLimit: undefined }
  for (const host of [
    '0.0.0.0',
    '::',
    '10.0.0.1',
    'example.com',
    '127.0.0.1.example.com',
    '::ffff:0.0.0.0',
  ]) {
    t.ok(keysRequired({ host, ...settings }), host)
    t.equal(rateLimitOf({ host, ...settings }), 2_000, host)
    t.notOk(keysRequired({ host, ...settings, withoutKeys: true }), host)
    t.equal(rateLimitOf({ host, ...settings, withoutKeys: true }), 0, host)
  }
  for (const host of ['127.0.0.1', '127.1.2.3', 'localhost', '::1']) {
    t.notOk(keysRequired({ host, ...settings }), host)
    t.ok(keysRequired({ host, ...settings, requireKeys: true }), host)
    t.equal(rateLimitOf({ host, ...settings, requireKeys: true }), 0, host)
    t.equal(rateLimitOf({ host, ...settings, rateLimit: 5 }), 5, host)
  }
})

t.test('settings of access come from the environment and the command line', async t => {
  const config = (env: Record<string, string>, given = {}) =>
    serviceConfig(given, readEnvironment(env), { databaseUrl: 'postgres://x' })
  t.match(config({}), { requireKeys: false, withoutKeys: false, rateLimit: undefined })
  t.match(config({ ROLLCALL_REQUIRE_KEYS: 'true', ROLLCALL_RATE_LIMIT: '50' }), {
    requireKeys: true,
    rateLimit: 50,
  })
  t.match(config({ ROLLCALL_REQUIRE_KEYS: 'false' }), { requireKeys: false })
  t.match(config({ ROLLCALL_RATE_LIMIT: '50' }, { rateLimit: 0 }), { rateLimit: 0 })
  for (const env of [
    { ROLLCALL_REQUIRE_KEYS: 'perhaps' },
    { ROLLCALL_RATE_LIMIT: '-1' },
    { ROLLCALL_RATE_LIMIT: 'x' },
  ])
    t.throws(() => config(env), { code: 'config', message: /requireKeys|rateLimit/ })
  t.throws(() => config({ ROLLCALL_REQUIRE_KEYS: 'true' }, { withoutKeys: true }), { code: 'config' })
})
