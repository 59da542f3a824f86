import { once } from 'node:events'
import { chmod, chown, mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { processIdentity } from '../../src/runtime/embedded-postgres-owner.ts'
import {
  dataFolder,
  isLinux,
  isRoot,
  madeFolder,
  owner,
  query,
  start,
  statFields,
} from './embedded-postgres-fixture.ts'

t.test('it starts from nothing and speaks UTF8, with no LANG and with a strange one', async t => {
  const dataDir = join(await dataFolder(t), 'made', 'by the start')
  for (const env of [
    {},
    { LANG: 'xx_YY.ISO-8859-1', LC_ALL: 'xx_YY', PGDATA: '/nowhere', PGSSLMODE: 'require' },
  ]) {
    const { answer, end } = await owner(t, dataDir, { env })
    const { url } = await answer
    const rows = await query(
      url,
      `SELECT current_database() AS database, current_setting('server_encoding') AS encoding,
              current_setting('timezone') AS timezone, current_setting('fsync') AS fsync, length('ß漢😀') AS length`,
    )
    t.same(rows, [{ database: 'rollcall', encoding: 'UTF8', timezone: 'UTC', fsync: 'on', length: 3 }])
    await end()
  }
})

t.test('what was committed is there after a restart, and stopping twice is stopping once', async t => {
  const dataDir = await dataFolder(t)
  const first = await start(t, { dataDir })
  await query(first.url, 'CREATE TABLE kept AS SELECT 42 AS answer')
  await Promise.all([first.stop(), first.stop()])
  await first.stop()
  t.same(await first.exited, { code: 0, signal: null })
  t.equal(await processIdentity(first.pid), undefined, 'the server is gone')

  const second = await start(t, { dataDir })
  t.same(await query(second.url, 'SELECT answer FROM kept'), [{ answer: 42 }])
  t.equal(
    new URL(second.url).password,
    new URL(first.url).password,
    'the password stays, so a url differs by its port only',
  )
  await second.stop()
  t.same(await readdir(dataDir), ['postgres'], 'no claim is left in the folder')
})

t.test('a cluster that ran without durability is written out before it runs with it', async t => {
  const dataDir = await madeFolder(t)
  const mark = join(dataDir, 'postgres', 'rollcall.not-durable')
  const careless = await start(t, { dataDir, durable: false })
  t.same(await query(careless.url, 'SHOW fsync'), [{ fsync: 'off' }])
  t.ok(await stat(mark), 'the folder is marked')
  await careless.stop()

  const durable = await start(t, { dataDir, durable: true })
  const names = ['fsync', 'full_page_writes', 'synchronous_commit']
  for (const name of names) t.same(await query(durable.url, `SHOW ${name}`), [{ [name]: 'on' }])
  await t.rejects(stat(mark), { code: 'ENOENT' }, 'the mark is gone')
})

t.test('it listens on 127.0.0.1 with a password, whether or not 5432 is taken', async t => {
  const dataDir = await madeFolder(t)
  const other = createServer().listen(5432, '127.0.0.1')
  // Taken by a stranger is as good.
  await new Promise(resolve => other.once('listening', resolve).once('error', resolve))
  t.teardown(() => other.close())

  const server = await start(t, { dataDir })
  t.not(server.port, 5432)
  const settings = await query(
    server.url,
    `SELECT current_setting('listen_addresses') AS tcp, current_setting('unix_socket_directories') AS sockets`,
  )
  t.same(settings, [{ tcp: '127.0.0.1', sockets: '' }])
  const wrong = new URL(server.url)
  wrong.password = 'guess'
  await t.rejects(query(wrong.href, 'SELECT 1'), { code: '28P01' })
})

t.test(
  'a port that was asked for and is taken is named in the refusal, and the folder is free again',
  async t => {
    const dataDir = await madeFolder(t)
    const other = createServer().listen(0, '127.0.0.1')
    await once(other, 'listening')
    t.teardown(() => other.close())
    const { port } = other.address() as { port: number }

    await t.rejects(start(t, { dataDir, port }), { code: 'port_in_use', message: new RegExp(String(port)) })
    other.close()
    await once(other, 'close')
    t.equal((await start(t, { dataDir, port })).port, port)
  },
)

t.test('a server that was killed is reported, and the next start recovers what was committed', async t => {
  const dataDir = await madeFolder(t)
  const server = await start(t, { dataDir, durable: true })
  await query(server.url, 'CREATE TABLE kept AS SELECT 42 AS answer')
  process.kill(server.pid, 'SIGKILL')
  t.same(await server.exited, { code: null, signal: 'SIGKILL' })
  await server.stop()

  const next = await start(t, { dataDir })
  t.same(await query(next.url, 'SELECT answer FROM kept'), [{ answer: 42 }])
})

t.test('a folder that is not ours is refused and left as it is', async t => {
  const dataDir = await dataFolder(t)
  const folder = join(dataDir, 'postgres')
  await mkdir(folder)
  await writeFile(join(folder, 'thesis.txt'), 'the only copy')
  await t.rejects(start(t, { dataDir }), { code: 'data_dir_not_ours' })

  await writeFile(join(folder, 'PG_VERSION'), '18\n')
  await t.rejects(start(t, { dataDir }), { code: 'data_dir_not_ours', message: /not made by Rollcall/ })
  t.equal(await readFile(join(folder, 'thesis.txt'), 'utf8'), 'the only copy')

  await rm(folder, { recursive: true })
  await writeFile(folder, 'a file')
  await t.rejects(start(t, { dataDir }), { code: 'data_dir_not_ours', message: /it is a file/ })
  t.equal(await readFile(folder, 'utf8'), 'a file')
  await t.rejects(start(t, { dataDir: folder }), { code: 'data_dir_unusable' })
  t.same(await readdir(dataDir), ['postgres'], 'no claim is left in the folder')
})

t.test('a cluster of another Postgres is refused, and one copied with other rights is taken', async t => {
  const dataDir = await madeFolder(t)
  const cluster = join(dataDir, 'postgres')
  await (await start(t, { dataDir })).stop()
  await writeFile(join(cluster, 'PG_VERSION'), '17\n')
  await t.rejects(start(t, { dataDir }), {
    code: 'version_mismatch',
    message: /Postgres 17,.* carries Postgres 18/,
  })

  await writeFile(join(cluster, 'PG_VERSION'), '18\n')
  await chmod(cluster, 0o755)
  if (isRoot) await chown(cluster, 0, 0)
  const server = await start(t, { dataDir })
  t.same(await query(server.url, 'SELECT 1 AS one'), [{ one: 1 }])
  t.equal((await stat(cluster)).mode & 0o777, 0o700)
})

t.test('a start that fails says why in the words of the server', async t => {
  const dataDir = await madeFolder(t)
  const settings = { shared_buffers: 'plenty' }
  await t.rejects(start(t, { dataDir, settings }), {
    code: 'start_failed',
    message: /Last lines of its log:[\s\S]*plenty/,
  })
  for (const name of ['fsync', 'Synchronous-Commit', 'listen_addresses', 'port']) {
    await t.rejects(start(t, { dataDir, settings: { [name]: 'off' } }), { code: 'invalid_settings' }, name)
  }
  const server = await start(t, { dataDir, settings: { work_mem: '7MB' } })
  t.same(await query(server.url, 'SHOW work_mem'), [{ work_mem: '7MB' }])
})

t.test('a server that stays silent while it starts is given up, and nothing is left of it', async t => {
  const dataDir = await madeFolder(t)
  await t.rejects(start(t, { dataDir, startTimeoutMs: 0 }), { code: 'start_failed', message: /silent/ })
  t.same(await readdir(dataDir), ['postgres'])
  t.ok(await start(t, { dataDir }))
})

t.test('a server that does not react is stopped within 5 s all the same', async t => {
  const dataDir = await madeFolder(t)
  const { pid, stop, exited } = await start(t, { dataDir })
  process.kill(pid, 'SIGSTOP')
  const begun = performance.now()
  await stop()
  t.ok(performance.now() - begun < 5_000)
  t.same(await exited, { code: null, signal: 'SIGKILL' })
  t.ok(await start(t, { dataDir }), 'and the next start recovers')
})

t.test('a Ctrl-C in the terminal does not reach the server', { skip: !isLinux && 'reads /proc' }, async t => {
  const { pid } = await start(t, { dataDir: await madeFolder(t) })
  const [, , group, session] = await statFields(pid)
  t.same([group, session], [String(pid), String(pid)], 'it has a process group and a session of its own')
})
