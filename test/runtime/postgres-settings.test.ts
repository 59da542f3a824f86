import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import t from 'tap'
import { startEmbeddedPostgres } from '../../src/runtime/embedded-postgres.ts'
import { assertDurable, type Queryable } from '../../src/runtime/postgres-settings.ts'

const DURABLE = { fsync: 'on', full_page_writes: 'on', synchronous_commit: 'on', server_encoding: 'UTF8' }

const serverWith = (settings: Record<string, string>): Queryable => ({
  query: async () => ({ rows: [{ ...DURABLE, ...settings }] }),
})

t.test('a commit confirmed by a flush to disk, here or on a standby too, is durable', async t => {
  for (const synchronousCommit of ['on', 'remote_apply']) {
    const found = await assertDurable(serverWith({ synchronous_commit: synchronousCommit }))
    t.same(found, { fsync: 'on', fullPageWrites: 'on', synchronousCommit })
  }
})

t.test('any weaker setting is refused by name', async t => {
  const weaker = [
    ['fsync', 'off'],
    ['full_page_writes', 'off'],
    ['synchronous_commit', 'off'],
    ['synchronous_commit', 'local'],
    ['synchronous_commit', 'remote_write'],
    ['server_encoding', 'SQL_ASCII'],
  ] as const
  for (const [name, value] of weaker) {
    const refused = {
      name: 'DurabilityError',
      code: 'not_durable',
      message: new RegExp(`${name} is ${value}`),
    }
    await t.rejects(assertDurable(serverWith({ [name]: value })), refused, `${name} = ${value}`)
  }
})

t.test('a real server is judged by what holds for this connection', async t => {
  const dataDir = await mkdtemp(join(tmpdir(), 'rollcall-durable-'))
  t.teardown(() => rm(dataDir, { recursive: true, force: true }))
  const server = await startEmbeddedPostgres({ dataDir })
  t.teardown(() => server.stop())
  const client = new pg.Client(server.url)
  await client.connect()
  t.teardown(() => client.end())

  t.same(await assertDurable(client), { fsync: 'on', fullPageWrites: 'on', synchronousCommit: 'on' })
  await client.query('SET synchronous_commit = off')
  await t.rejects(assertDurable(client), { code: 'not_durable', message: /synchronous_commit is off/ })
})
