/** What opens doors is in no line of the log, at its most talkative, and in no row. */
import { Writable } from 'node:stream'
import t from 'tap'
import { createLogger } from '../../src/runtime/logging.ts'
import { execute } from '../support/postgres.ts'
import { bearer, startGuarded } from './access-fixture.ts'
import { Api, until } from './fixture.ts'

const KAFKA_PASSWORD = 'kafka-pass-7d1f0c55'
const LEASE_TOKEN = 'lease-token-5b0c91aa4e'

t.test('no secret is logged or stored', async t => {
  let log = ''
  const sink = new Writable({
    write: (chunk, _encoding, done) => {
      log += chunk
      done()
    },
  })
  const guarded = await startGuarded(t, {
    logger: createLogger('trace', sink),
    file: {
      types: { 'of.kafka': { kafka: { maxOutstanding: 1, partitions: 1, offerHoldMs: 1_000 } } },
    } as object,
    config: {
      // Nobody listens there; what cannot be reached is talked about most.
      kafkaBrokers: ['127.0.0.1:9'],
      kafkaSasl: 'plain',
      kafkaUsername: 'rollcall',
      kafkaPassword: KAFKA_PASSWORD,
      rateLimit: 1_000,
    },
  })
  const { api, service, databaseUrl } = guarded
  const admin = await guarded.caller({ name: 'admin' })
  const tenant = await guarded.caller({ name: 'tenant', scopes: ['read'], tenant: 'acme' })
  const made = (await admin.post('/v1/keys', { name: 'made', scopes: ['read'] })).body.secret as string
  const unknown = `rck_${'a'.repeat(16)}_${'5ec2e7'.repeat(10)}5ec2`
  const password = new URL(databaseUrl).password
  t.ok(password.length > 10)

  // Shown well, shown wrongly, and where no key belongs.
  for (const secret of [admin.secret, tenant.secret, made, unknown, `${admin.secret}0`]) {
    const path = `/v1/tasks?key=${secret}`
    for (const headers of [
      bearer(secret),
      { authorization: secret },
      { authorization: `Basic ${secret}` },
      { cookie: `key=${secret}` },
      {},
    ]) {
      await api.get('/v1/tasks', headers)
      await api.get(path, headers)
      await api.get(`/${secret}`, headers)
      await api.get(`/v1/keys/${secret}`, headers)
      await api.post(`/v1/keys/${secret}/revoke`, {}, headers)
      await api.post('/v1/tasks', `{"type": ${secret}`, headers)
      await api.post('/v1/tasks', { type: secret }, headers)
    }
  }
  const type = 'of.kafka'
  const { taskId } = (await admin.post('/v1/tasks', { type })).body
  await admin.post(`/v1/tasks/${taskId}/start`, { worker: 'w', attempt: 1, leaseToken: LEASE_TOKEN })
  await admin.post(`/v1/tasks/${taskId}/succeed`, { attempt: 2, leaseToken: LEASE_TOKEN })
  await admin.post('/v1/keys/made/revoke')

  // Connections that break, and a database that refuses.
  await execute(
    databaseUrl,
    'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()',
  )
  await until('the service is well again', async () => (await api.get('/livez')).status === 200)
  await until('the database is asked again', async () => (await admin.get('/v1/tasks')).status === 200)
  await service.pool.query('ALTER TABLE rollcall.keys RENAME TO away')
  const other = new Api(t, api.url)
  await until(
    'keys cannot be looked up',
    async () => (await other.get('/v1/tasks', bearer(unknown))).status === 500,
    10_000,
  )
  await service.pool.query('ALTER TABLE rollcall.away RENAME TO keys')
  await service.stop()

  t.ok(log.length > 5_000, 'it was talkative')
  const { rows: tables } = await execute(
    databaseUrl,
    `SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname LIKE 'rollcall%'`,
  ).then(rows => ({ rows: rows as { name: string }[] }))
  let stored = ''
  for (const { name } of tables) {
    const rows = await execute(databaseUrl, `SELECT t::text AS row FROM ${name} t`)
    // Bytes are shown in hex.
    for (const { row } of rows)
      stored += `${row}\n${String(row).replaceAll(/\\\\x([0-9a-f]+)/g, (_, hex) => Buffer.from(hex, 'hex').toString('latin1'))}\n`
  }
  t.match(stored, taskId as string, 'the rows were read')
  t.match(stored, '"of.kafka"', 'and their bytes')
  for (const [name, secret] of Object.entries({
    admin: admin.secret.slice(-64),
    tenant: tenant.secret.slice(-64),
    made: made.slice(-64),
    unknown: unknown.slice(-64),
    'lease token': LEASE_TOKEN,
    'database password': password,
    'Kafka password': KAFKA_PASSWORD,
  })) {
    t.notOk(log.includes(secret), `${name}: ${near(log, secret)}`)
    t.notOk(stored.includes(secret), `${name}: ${near(stored, secret)}`)
  }
})

/** Around the place where it is, for whoever has to find out who wrote it. */
function near(text: string, secret: string): string {
  const at = text.indexOf(secret)
  return at < 0 ? 'nowhere' : text.slice(Math.max(0, at - 300), at)
}
