/** One live process per data folder, and what a killed one leaves behind. */

import { spawn } from 'node:child_process'
import { readdir, readlink, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { processIdentity } from '../../src/runtime/embedded-postgres-owner.ts'
import {
  childrenOf,
  dataFolder,
  isLinux,
  isRoot,
  madeFolder,
  owner,
  processesWhere,
  query,
  start,
  until,
} from './embedded-postgres-fixture.ts'

/** End a process that is not our child and may have ended already. */
function kill(pid: number) {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {}
}

t.test('a second start on the folder of a live process is refused', async t => {
  const dataDir = await madeFolder(t)
  const { answer, process, end } = await owner(t, dataDir)
  const { url } = await answer
  await t.rejects(start(t, { dataDir }), {
    code: 'data_dir_in_use',
    message: new RegExp(`running process ${process.pid}`),
  })
  t.same(await query(url, 'SELECT 1 AS one'), [{ one: 1 }], 'the first is not disturbed')
  await end()

  const mine = await start(t, { dataDir })
  await t.rejects(start(t, { dataDir }), { code: 'data_dir_in_use', message: /this process/ })
  t.same(await query(mine.url, 'SELECT 1 AS one'), [{ one: 1 }])
})

t.test('of two processes that start at the same instant at most one gets the folder', async t => {
  const dataDir = await dataFolder(t)
  const both = await Promise.all([owner(t, dataDir), owner(t, dataDir)])
  const answers = await Promise.all(both.map(({ answer }) => answer))
  const refused = answers.filter(answer => answer.code !== undefined)
  t.ok(refused.length >= 1)
  for (const { code } of refused) t.equal(code, 'data_dir_in_use')
  for (const { url } of answers.filter(answer => answer.url)) t.ok(await query(url, 'SELECT 1'))
})

t.test(
  'when its owner is killed the server ends by itself, and the next start has what was committed',
  async t => {
    const dataDir = await madeFolder(t)
    const { answer, end } = await owner(t, dataDir)
    const { url, pid } = await answer
    await query(url, 'CREATE TABLE kept AS SELECT 42 AS answer')
    await end('SIGKILL')

    const next = await start(t, { dataDir })
    t.equal(await processIdentity(pid), undefined, 'the old server is gone')
    t.same(await query(next.url, 'SELECT answer FROM kept'), [{ answer: 42 }])
    await next.stop()

    const another = await owner(t, dataDir)
    const { pid: guarded } = await another.answer
    await another.end('SIGKILL')
    await until('the server ended without anybody asking', async () => !(await processIdentity(guarded)))
  },
)

t.test(
  'a server that outlived its owner and its guard is stopped by the next start',
  {
    skip: !isLinux && 'finds the guard by /proc',
  },
  async t => {
    const dataDir = await madeFolder(t)
    const { answer, process: child, end } = await owner(t, dataDir)
    const { url, pid } = await answer
    await query(url, 'CREATE TABLE kept AS SELECT 42 AS answer')
    const guards = (await childrenOf(child.pid!)).filter(other => other !== pid)
    t.equal(guards.length, 1)
    for (const guard of guards) kill(guard)
    await end('SIGKILL')
    t.same(await query(url, 'SELECT answer FROM kept'), [{ answer: 42 }], 'it still runs')

    const lines: string[] = []
    const next = await start(t, { dataDir, onLog: line => lines.push(line) })
    t.equal(await processIdentity(pid), undefined, 'the old server is gone')
    t.same(await query(next.url, 'SELECT answer FROM kept'), [{ answer: 42 }])
    t.match(lines[0], /outlived its owner/)
  },
)

t.test('a stranger that has the pid of a dead server is left alone', async t => {
  const dataDir = await madeFolder(t)
  const cluster = join(dataDir, 'postgres')
  await (await start(t, { dataDir })).stop()
  const { uid, gid } = await stat(cluster)
  // Under the server's account, where Postgres itself would take it for a running server and refuse to start.
  const stranger = spawn('sleep', ['120'], { ...(isRoot ? { uid, gid } : {}), cwd: cluster, stdio: 'ignore' })
  t.teardown(() => stranger.kill('SIGKILL'))
  const startedAt = Math.floor(Date.now() / 1000)
  await writeFile(
    join(cluster, 'postmaster.pid'),
    [stranger.pid, cluster, startedAt, 5432, '', '127.0.0.1', '', 'ready', ''].join('\n'),
  )
  const server = await start(t, { dataDir })
  t.same(await query(server.url, 'SELECT 1 AS one'), [{ one: 1 }])
  t.equal(stranger.exitCode, null)
  t.equal(stranger.signalCode, null)
})

t.test('an initdb that was killed half-way leaves nothing that the next start minds', async t => {
  const dataDir = await dataFolder(t)
  const { end } = await owner(t, dataDir)
  const unfinished = async () =>
    (await readdir(dataDir)).filter(name => name.startsWith('postgres.initializing-'))
  await until('initdb is at work', async () => {
    const [name] = await unfinished()
    return name !== undefined && (await readdir(join(dataDir, name))).includes('PG_VERSION')
  })
  await end('SIGKILL')
  if (isLinux) {
    const within = await processesWhere(async pid => (await readlink(`/proc/${pid}/cwd`)).startsWith(dataDir))
    for (const pid of within) kill(pid)
  }
  t.equal((await unfinished()).length, 1, 'half a cluster is left')

  const server = await start(t, { dataDir })
  t.same(await query(server.url, 'SELECT 1 AS one'), [{ one: 1 }])
  t.same(await unfinished(), [])
})
