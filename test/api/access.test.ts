import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { request } from 'node:http'
import { connect } from 'node:net'
import t from 'tap'
import { SCOPES, type Scope } from '../../src/api/access.ts'
import { KeyRing } from '../../src/api/key-ring.ts'
import type { KeptKey } from '../../src/api/keys.ts'
import { bearer, startGuarded } from './access-fixture.ts'
import { Api, isProblem, registeredRoutes, startApi, until } from './fixture.ts'

const guarded = await startGuarded(t)
const { api, service, keys } = guarded
const page = readFileSync(new URL('../../docs/api.md', import.meta.url), 'utf8')

/** What docs/api.md says that a route takes. */
const DOCUMENTED = new Map(
  [...page.matchAll(/^\| `((?:GET|POST) \S+)` \| (\w+)(, all tenants)? \|/gm)].map(
    ([, route, scope, whole]) => [route!, { scope: scope as Scope | 'none', whole: whole !== undefined }],
  ),
)

interface Said {
  status: number
  code: string | null
  challenge: string | undefined
}

/** What a route says first; what would go on and on is not waited for. */
function said(method: string, path: string, headers: Record<string, string>): Promise<Said> {
  return new Promise((resolve, reject) => {
    const sent = request(`${api.url}${path}`, { method, headers, agent: false }, response => {
      const status = response.statusCode!
      const challenge = response.headers['www-authenticate']
      if (status < 400) {
        sent.destroy()
        return resolve({ status, code: null, challenge })
      }
      let text = ''
      response.setEncoding('utf8').on('data', part => {
        text += part
      })
      response.on('end', () => resolve({ status, code: text ? JSON.parse(text).code : null, challenge }))
    })
    sent.on('error', reject)
    sent.end()
  })
}

t.test('every route and what it takes is documented', async t => {
  const routes = await registeredRoutes()
  // The reading page has parts.
  const [parts, others] = [true, false].map(part =>
    routes.filter(one => one.startsWith('GET /docs/') === part),
  )
  t.strictSame([...DOCUMENTED.keys()].sort(), others)
  for (const part of parts!) t.equal((await said('GET', part.split(' ')[1]!, {})).code, null, part)
})

t.test('every route x every scope: a key opens what its scope names, and nothing else', async t => {
  const secrets = new Map<string, string>()
  for (const scope of SCOPES)
    for (const tenant of [null, 'acme'])
      secrets.set(`${scope} ${tenant}`, (await guarded.caller({ scopes: [scope], tenant })).secret)
  for (const [route, { scope: needed, whole }] of DOCUMENTED) {
    const [method = '', pattern = ''] = route.split(' ')
    const path = pattern.replace(':id', randomUUID())
    const none = await said(method, path, {})
    if (needed === 'none') {
      t.not(none.status, 401, `${route} takes no key`)
      continue
    }
    t.match(none, { status: 401, code: 'unauthenticated', challenge: /^Bearer/ }, `${route} without a key`)
    for (const scope of SCOPES)
      for (const tenant of [null, 'acme']) {
        const answer = await said(method, path, bearer(secrets.get(`${scope} ${tenant}`)!))
        const what = `${route} with ${scope}${tenant ? ' of a tenant' : ''}`
        if (scope !== needed) t.match(answer, { status: 403, code: 'missing_scope' }, what)
        else if (whole && tenant) t.match(answer, { status: 403, code: 'whole_installation' }, what)
        else t.notOk([401, 403].includes(answer.status), what)
      }
  }
})

t.test('what is no key comes in nowhere, whatever it looks like', async t => {
  const { secret, keyId } = await guarded.caller()
  const other = `rck_${keyId}_${'0'.repeat(64)}`
  for (const authorization of [
    '',
    'Bearer',
    'Bearer ',
    `Basic ${Buffer.from(`rollcall:${secret}`).toString('base64')}`,
    secret,
    `Bearer ${other}`,
    `Bearer ${secret}0`,
    `Bearer ${secret.slice(0, -1)}`,
    `Bearer ${secret.toUpperCase()}`,
    `Bearer ${secret} ${secret}`,
    `Bearer, ${secret}`,
    `Bearer rck_${'0'.repeat(16)}_${'0'.repeat(64)}`,
    `Bearer ${'x'.repeat(8_000)}`,
  ])
    isProblem(t, await api.get('/v1/tasks', { authorization }), 'unauthenticated')
  t.equal((await api.get('/v1/tasks', bearer(secret))).status, 200)
  t.equal((await api.get('/v1/tasks', { authorization: `bEaReR   ${secret} ` })).status, 200)
  for (const name of ['key', 'access_token', 'authorization', 'token'])
    isProblem(t, await api.get(`/v1/tasks?${name}=${secret}`), 'unauthenticated')
  isProblem(
    t,
    await api.get(`/v1/tasks?key=${secret}`, bearer(secret)),
    'invalid_request',
    /not a known field/,
  )
  isProblem(
    t,
    await api.get('/v1/tasks', { cookie: `key=${secret}`, 'x-api-key': secret }),
    'unauthenticated',
  )
})

t.test('an auditor verifies, and repairs nothing', async t => {
  const { secret } = await guarded.caller({ scopes: ['audit'] })
  t.equal((await api.post('/v1/verify', {}, bearer(secret))).status, 200)
  const repair = { repair: true }
  isProblem(t, await api.post('/v1/verify', repair, bearer(secret)), 'missing_scope', /operate/)
  const both = await guarded.caller({ scopes: ['audit', 'operate'] })
  t.equal((await api.post('/v1/verify', repair, bearer(both.secret))).status, 200)
})

t.test('who may not is told so before the body is sent', async t => {
  const { secret } = await guarded.caller({ scopes: ['read'] })
  for (const [key, status] of [
    ['', '401'],
    [`Authorization: Bearer ${secret}\r\n`, '403'],
  ]) {
    const { hostname, port } = new URL(api.url)
    const socket = connect(Number(port), hostname)
    t.teardown(() => socket.destroy())
    socket.write(
      `POST /v1/tasks HTTP/1.1\r\nHost: x\r\n${key}Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{`,
    )
    const [first] = await once(socket, 'data')
    t.match(String(first), new RegExp(`^HTTP/1.1 ${status} `))
  }
})

t.test(
  'each refusal is counted and logged by its code, its scope and its key, without what opens the door',
  async t => {
    const lines: string[] = []
    const { default: pino } = await import('pino')
    const guarded = await startGuarded(t, {
      logger: pino({ level: 'warn' }, { write: line => lines.push(line) }),
    })
    const reader = await guarded.caller({ name: 'reader', scopes: ['read', 'submit'], tenant: 'acme' })
    const watcher = await guarded.caller({ name: 'watcher', scopes: ['operate'] })
    await guarded.api.get('/v1/tasks')
    await reader.get('/v1/rollcall')
    await reader.post('/v1/tasks', { type: 'a', tenant: 'other' })
    await reader.get('/metrics')
    const { text } = await watcher.get('/metrics')
    for (const [code, scope] of [
      ['unauthenticated', 'read'],
      ['missing_scope', 'audit'],
      ['other_tenant', 'submit'],
      ['missing_scope', 'operate'],
    ])
      t.match(text, `rollcall_access_refused_total{code="${code}",scope="${scope}"} 1\n`)
    const refused = lines.map(line => JSON.parse(line)).filter(({ msg }) => msg === 'access refused')
    const { keyId } = reader
    t.match(refused, [
      {
        level: 40,
        code: 'unauthenticated',
        key: null,
        keyId: null,
        route: '/v1/tasks',
        address: '127.0.0.1',
      },
      { code: 'missing_scope', scope: 'audit', key: 'reader', keyId, tenant: 'acme', route: '/v1/rollcall' },
      { code: 'other_tenant', key: 'reader', method: 'POST' },
      { code: 'missing_scope', scope: 'operate', route: '/metrics' },
    ])
    t.notMatch(lines.join(''), reader.secret.split('_')[2]!)
  },
)

t.test('a key that was revoked comes in nowhere within five seconds, and here at once', async t => {
  const admin = await guarded.caller({ scopes: ['admin'] })
  const here = await guarded.caller()
  const elsewhere = await guarded.caller()
  for (const { get } of [here, elsewhere]) t.equal((await get('/v1/tasks')).status, 200)
  t.equal((await admin.post(`/v1/keys/${here.keyId}/revoke`, {})).status, 200)
  isProblem(t, await here.get('/v1/tasks'), 'unauthenticated')
  const stream = await fetch(`${api.url}/v1/events`, { headers: bearer(elsewhere.secret) })
  // As another process does.
  await keys.revoke(elsewhere.keyId, 'test')
  const since = performance.now()
  await until('the key is forgotten', async () => (await elsewhere.get('/v1/tasks')).status === 401)
  t.ok(performance.now() - since < 5_500)
  t.match(await stream.text(), /event: end\ndata: \{"reason":"key_refused"\}/, 'its streams end')
})

t.test('a key is looked up once in five seconds, and those that come together at once', async t => {
  const asked: string[][] = []
  const { secret, keyId } = await guarded.caller()
  const ring = new KeyRing({
    find: async (ids): Promise<KeptKey[]> => {
      asked.push([...ids])
      return keys.find(ids)
    },
    used: async () => {},
  })
  const unknown = Array.from({ length: 3 }, (_, n) => `rck_${String(n).padStart(16, '0')}_${'0'.repeat(64)}`)
  const wrong = `rck_${keyId}_${'0'.repeat(64)}`
  for (let round = 0; round < 3; round++) {
    const found = await Promise.all([secret, wrong, ...unknown].map(text => ring.open(text)))
    t.match(found, [{ keyId }, null, null, null, null])
  }
  t.strictSame(asked, [[keyId, ...unknown.map(text => text.split('_')[1])]])
  for (const text of ['', 'rck_', `rck_${keyId}`, `RCK_${keyId}_${'0'.repeat(64)}`])
    t.equal(await ring.open(text), null)
  t.equal(asked.length, 1, 'what is no key is not looked up')
  ring.forget(keyId)
  t.match(await ring.open(secret), { keyId })
  t.equal(asked.length, 2)
})

t.test('where keys cannot be looked up nobody comes in, and who asks hears why', async t => {
  const guarded = await startGuarded(t)
  const { get } = await guarded.caller()
  await guarded.service.pool.query('ALTER TABLE rollcall.keys RENAME TO away')
  isProblem(t, await get('/v1/tasks'), 'internal_error')
  await guarded.service.pool.query('ALTER TABLE rollcall.away RENAME TO keys')
  t.equal((await get('/v1/tasks')).status, 200)
})

t.test('when a key was used is kept, once a minute at most', async t => {
  const { get, keyId } = await guarded.caller()
  const lastUsed = async () => {
    const { keys: all } = await keys.list({ before: null, limit: 200 })
    return all.find(key => key.keyId === keyId)!.lastUsedAt
  }
  t.equal(await lastUsed(), null)
  await get('/v1/tasks')
  const at = await until('the use is kept', lastUsed)
  await get('/v1/tasks')
  await keys.used(keyId)
  t.strictSame(await lastUsed(), at)
})

t.test('on loopback nobody has to show a key, and one that is shown restricts', async t => {
  const { api, service } = await startApi(t)
  const { PostgresKeys } = await import('../../src/api/postgres/postgres-keys.ts')
  const keys = new PostgresKeys(service.pool)
  const made = (await keys.create({ name: 'reader', scopes: ['read'], tenant: null, createdBy: 'test' }))!
  const shown = bearer(made.secret)
  t.equal((await api.post('/v1/tasks', { type: 'a' })).status, 201)
  t.equal((await api.get('/metrics')).status, 200)
  t.equal((await api.get('/v1/tasks', shown)).status, 200)
  isProblem(t, await api.post('/v1/tasks', { type: 'a' }, shown), 'missing_scope')
  isProblem(t, await api.get('/metrics', shown), 'missing_scope')
  isProblem(t, await api.get('/v1/tasks', { authorization: 'Bearer nonsense' }), 'unauthenticated')
  t.equal((await api.get('/livez', { authorization: 'Bearer nonsense' })).status, 200)
})

t.test('a process without the API asks for a key for its metrics, and for nothing else', async t => {
  const { url } = await (async () => {
    const { api } = await startGuarded(t, {
      databaseUrl: guarded.databaseUrl,
      config: { roles: ['timers'] },
    })
    return api
  })()
  const bare = new Api(t, url)
  for (const path of ['/livez', '/readyz']) t.equal((await bare.get(path)).status, 200, path)
  isProblem(t, await bare.get('/metrics'), 'unauthenticated')
  isProblem(t, await bare.get('/v1/tasks'), 'route_not_found')
  const { secret } = await guarded.caller({ scopes: ['operate'] })
  t.equal((await bare.get('/metrics', bearer(secret))).status, 200)
})

t.test('who asks stands in the history by the name of the key', async t => {
  const { post, get, name } = await guarded.caller({ name: 'billing' })
  const { body } = await post('/v1/tasks', { type: 'a' })
  const path = `/v1/tasks/${body.taskId}`
  await post(`${path}/notes`, { note: 'x' }, { 'rollcall-actor': 'ada' })
  await post(`${path}/notes`, { note: 'y' }, { 'rollcall-actor': 'a'.repeat(128) })
  const { events } = (await get<{ events: object[] }>(`${path}/history`)).body
  t.match(events, [
    { actor: { kind: 'client', id: name } },
    { actor: { kind: 'person', id: 'ada via billing' } },
    { actor: { kind: 'person', id: `${'a'.repeat(116)} via billing` } },
  ])
  t.equal(service.url, api.url)
})
