import { hash } from 'node:crypto'
import t from 'tap'
import type { CreatedKey, KeyList, KeyView } from '../../src/api/schemas/keys.ts'
import { bearer, startGuarded } from './access-fixture.ts'
import { isProblem } from './fixture.ts'

const guarded = await startGuarded(t)
const { api, service } = guarded
const admin = await guarded.caller({ name: 'admin', scopes: ['admin'] })
const create = (body: object, headers = {}) => admin.post<CreatedKey>('/v1/keys', body, headers)

t.test('a key is answered once, opens what it names, and only its hash is kept', async t => {
  const made = await create(
    { name: 'reader', scopes: ['read', 'audit'], tenant: 'acme' },
    { 'rollcall-actor': 'ada' },
  )
  t.match(made, {
    status: 201,
    headers: { 'cache-control': 'no-store' },
    body: {
      name: 'reader',
      scopes: ['read', 'audit'],
      tenant: 'acme',
      createdBy: 'ada via admin',
      lastUsedAt: null,
      revokedAt: null,
      revokedBy: null,
    },
  })
  const { secret, keyId } = made.body
  t.match(secret, new RegExp(`^rck_${keyId}_[0-9a-f]{64}$`))
  t.equal((await api.get('/v1/tasks', bearer(secret))).status, 200)
  const { rows } = await service.pool.query('SELECT * FROM rollcall.keys WHERE key_id = $1', [keyId])
  t.strictSame(rows[0].secret_hash, hash('sha256', secret, 'buffer'))
  t.notMatch(JSON.stringify(rows), secret.slice(-64))
  t.notMatch((await admin.get('/v1/keys')).text, secret.slice(-64))
})

t.test('what is no key is refused by its fields', async t => {
  for (const [body, path] of [
    [{ scopes: ['read'] }, 'name'],
    [{ name: 'Not a name', scopes: ['read'] }, 'name'],
    [{ name: '0123456789abcdef', scopes: ['read'] }, 'name'],
    [{ name: 'x' }, 'scopes'],
    [{ name: 'x', scopes: [] }, 'scopes'],
    [{ name: 'x', scopes: ['read', 'read'] }, 'scopes'],
    [{ name: 'x', scopes: ['everything'] }, 'scopes.0'],
    [{ name: 'x', scopes: ['read'], tenant: '' }, 'tenant'],
  ] as const) {
    const answer = await create(body)
    isProblem(t, answer, 'invalid_request')
    t.match(answer.body, { errors: [{ path }] })
  }
})

t.test('two live keys do not share a name; that of a revoked one is free again', async t => {
  t.equal((await create({ name: 'twice', scopes: ['read'] })).status, 201)
  isProblem(t, await create({ name: 'twice', scopes: ['work'] }), 'key_name_taken')
  const together = await Promise.all([1, 2, 3].map(() => create({ name: 'race', scopes: ['read'] })))
  t.strictSame(together.map(({ status }) => status).sort(), [201, 409, 409])
  t.equal((await admin.post('/v1/keys/twice/revoke')).status, 200)
  t.equal((await create({ name: 'twice', scopes: ['work'] })).status, 201)
})

t.test('a key is revoked by its id or its name, and once', async t => {
  const { body: made } = await create({ name: 'leaver', scopes: ['read'] })
  const revoked = await admin.post<KeyView>('/v1/keys/leaver/revoke', {}, { 'rollcall-actor': 'ada' })
  t.match(revoked, { status: 200, body: { keyId: made.keyId, revokedAt: /Z$/, revokedBy: 'ada via admin' } })
  isProblem(t, await api.get('/v1/tasks', bearer(made.secret)), 'unauthenticated')
  t.strictSame((await admin.post(`/v1/keys/${made.keyId}/revoke`)).body, revoked.body, 'asked again it stays')
  isProblem(t, await admin.post('/v1/keys/leaver/revoke'), 'key_not_found')
  isProblem(t, await admin.post(`/v1/keys/${'0'.repeat(16)}/revoke`), 'key_not_found')
  isProblem(t, await admin.post('/v1/keys/Not%20a%20name/revoke'), 'invalid_request')
  isProblem(t, await admin.post(`/v1/keys/${made.secret}/revoke`), 'invalid_request')
})

t.test('a list goes on where it ended, the newest first', async t => {
  for (let n = 0; n < 3; n++) await create({ name: `listed-${n}`, scopes: ['read'] })
  const names: string[] = []
  let cursor: string | null = null
  do {
    const query: string = cursor === null ? '' : `&cursor=${cursor}`
    const { body } = await admin.get<KeyList>(`/v1/keys?limit=2${query}`)
    names.push(...body.keys.map(({ name }) => name))
    cursor = body.nextCursor
  } while (cursor !== null)
  t.strictSame(names.slice(0, 3), ['listed-2', 'listed-1', 'listed-0'])
  t.equal(names.at(-1), 'admin')
  const { rows } = await service.pool.query('SELECT count(*)::integer AS count FROM rollcall.keys')
  t.equal(names.length, rows[0].count)
  for (const query of ['limit=0', 'limit=201', 'cursor=x', 'limit=1&limit=2'])
    isProblem(t, await admin.get(`/v1/keys?${query}`), 'invalid_request')
})
