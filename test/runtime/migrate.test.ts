import { execFile } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import t from 'tap'
import { migrate } from '../../src/runtime/migrate.ts'
import { execute, testDatabase } from '../support/postgres.ts'
import { dumpSchema } from '../support/schema-dump.ts'

const LOG_MIGRATION = '0001-event-log'
const path = (relative: string) => fileURLToPath(new URL(relative, import.meta.url))

t.test('an empty database is migrated, the log first; again there is nothing to do', async t => {
  const { url } = await testDatabase(t, { migrated: false })
  const applied = await migrate(url)
  t.equal(applied[0], LOG_MIGRATION)
  const [identity] = await execute(url, 'SELECT id FROM rollcall_log.log_identity')
  t.same(await migrate(url), [])
  t.same(
    await execute(url, 'SELECT id FROM rollcall_log.log_identity'),
    [identity],
    'the log is still the same',
  )
})

t.test('each schema has its own table of what was applied', async t => {
  const { url } = await testDatabase(t)
  const tables = await execute(
    url,
    `SELECT table_schema AS schema FROM information_schema.tables WHERE table_name = 'migrations' ORDER BY 1`,
  )
  t.same(tables.at(-1), { schema: 'rollcall_log' })
  t.match(await execute(url, 'SELECT name FROM rollcall_log.migrations ORDER BY id'), [
    { name: LOG_MIGRATION },
  ])
})

t.test('four processes migrate at once: one does it, all succeed', async t => {
  const { url } = await testDatabase(t, { migrated: false })
  const script = path('../support/migrate-process.ts')
  const run = () => promisify(execFile)(process.execPath, ['--import=tsx', script, url])
  const outputs = await Promise.all([run(), run(), run(), run()])
  const applied = outputs.map(({ stdout }) => JSON.parse(stdout) as string[])
  t.equal(applied.filter(names => names.includes(LOG_MIGRATION)).length, 1)
  t.equal(applied.filter(names => names.length === 0).length, 3)
})

t.test('a migration that fails is undone, says why, and may be tried again', async t => {
  const { url } = await testDatabase(t, { migrated: false })
  await execute(url, 'CREATE SCHEMA rollcall_log')
  await execute(url, 'CREATE TABLE rollcall_log.events (id integer)')
  await t.rejects(migrate(url), {
    code: 'migration_failed',
    message: /schema rollcall_log cannot be migrated/,
  })
  t.same(await execute(url, `SELECT to_regclass('rollcall_log.log_identity') AS found`), [{ found: null }])
  await execute(url, 'DROP TABLE rollcall_log.events')
  t.equal((await migrate(url))[0], LOG_MIGRATION)
})

t.test('a server that cannot be reached says so', async t => {
  await t.rejects(migrate('postgres://nobody@127.0.0.1:1/none'), { code: 'migration_failed' })
})

t.test('a database with another history is refused', async t => {
  const { url } = await testDatabase(t)
  await execute(
    url,
    `UPDATE rollcall_log.migrations SET name = '0000-of-another-version' WHERE name = '${LOG_MIGRATION}'`,
  )
  await t.rejects(migrate(url), { code: 'migration_failed' })
})

t.test('the schema of the log is the one that was reviewed', async t => {
  const { url } = await testDatabase(t)
  const dump = await dumpSchema(url, 'rollcall_log')
  const file = path('../fixtures/schema-log.txt')
  // Written anew on purpose only, and then read as a change like any other.
  if (process.env.TAP_SNAPSHOT === '1') await writeFile(file, dump)
  t.equal(dump, await readFile(file, 'utf8'))
})
