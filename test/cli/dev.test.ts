import { readdir } from 'node:fs/promises'
import { connect } from 'node:net'
import t from 'tap'
import { createClient } from '../../src/sdk/client.ts'
import {
  eventually,
  freePort,
  isAlive,
  postgresPid,
  rollcall,
  startCommand,
  startDev,
  temporaryFolder,
} from './fixture.ts'

const STOP_MS = 5_000

const listens = (port: number): Promise<boolean> =>
  new Promise(resolve => {
    const socket = connect(port, '127.0.0.1')
    socket.on('connect', () => resolve(true)).on('error', () => resolve(false))
    socket.on('connect', () => socket.destroy())
  })

t.test('from nothing to ready, kept across an orderly stop, nothing left running', async t => {
  const dataDir = await temporaryFolder(t)
  const port = await freePort()
  const since = performance.now()
  const dev = startCommand(['dev', '--port', String(port), '--data-dir', dataDir])
  t.teardown(() => dev.child.kill('SIGKILL'))
  await dev.until(/ready/)
  t.equal(
    dev.stdout(),
    `rollcall is ready at http://127.0.0.1:${port} (data in ${dataDir}, stop with Ctrl-C)\n`,
    'one line on stdout',
  )
  t.comment(`ready from nothing after ${Math.round(performance.now() - since)} ms`)
  const client = createClient({ url: `http://127.0.0.1:${port}` })
  const { taskId } = await client.submit({ type: 'dev.kept' })
  const postgres = await postgresPid(dataDir)
  t.ok(isAlive(postgres))
  // A worker that waits for work is no reason to wait.
  const claim = fetch(`http://127.0.0.1:${port}/v1/workers/claim`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      worker: 'waiting',
      types: ['dev.none'],
      waitMs: 30_000,
      claimId: 'claim-1',
      leaseToken: 'a-lease-token-of-16-or-more',
    }),
  }).catch(() => null)

  const asked = performance.now()
  // Twice at once, as a Ctrl-C under npm arrives.
  dev.child.kill('SIGTERM')
  dev.child.kill('SIGINT')
  t.match(await dev.ended, { code: 0, stderr: '' })
  const stopMs = performance.now() - asked
  t.ok(stopMs < STOP_MS, `ended after ${Math.round(stopMs)} ms`)
  await claim
  t.notOk(isAlive(postgres), 'the database has ended')
  t.notOk(await listens(port), 'the port is free')
  t.same((await readdir(dataDir)).sort(), ['postgres', 'rollcall.log'])

  const warm = performance.now()
  const again = await startDev(t, { dataDir, port })
  t.comment(`ready again after ${Math.round(performance.now() - warm)} ms`)
  t.equal((await client.get(taskId)).status, 'PENDING')

  t.test('the data folder is not shared', async t => {
    const other = await rollcall(['dev', '--port', '0', '--data-dir', dataDir])
    t.match(other, { code: 2, stdout: '', stderr: new RegExp(`in use by the running process ${again.pid}`) })
  })

  t.test('a database that is killed is started again, and the service goes on', async t => {
    const before = await postgresPid(dataDir)
    process.kill(before, 'SIGKILL')
    await eventually('another database runs', async () => {
      const now = await postgresPid(dataDir).catch(() => before)
      return now !== before && isAlive(now)
    })
    const { taskId } = await client.submit({ type: 'dev.restarted' }, { timeoutMs: 30_000 })
    t.equal((await client.get(taskId)).status, 'PENDING')
  })

  t.test('after SIGKILL the next start recovers by itself, with every accepted task', async t => {
    const results = await client.submitBatch(Array.from({ length: 20 }, () => ({ type: 'dev.killed' })))
    const ids = results.map(result => (result.kind === 'refused' ? '' : result.taskId))
    const orphan = await postgresPid(dataDir)
    again.child.kill('SIGKILL')
    await again.ended
    const recovered = await startDev(t, { dataDir, port })
    // It has ended before another one may run; its entry stands until the system has reaped it.
    await eventually('the orphan of before is gone', async () => !isAlive(orphan))
    for (const id of ids) t.equal((await client.get(id)).status, 'PENDING')
    const postgres = await postgresPid(dataDir)
    recovered.child.kill('SIGTERM')
    t.match(await recovered.ended, { code: 0 })
    t.notOk(isAlive(postgres))
  })
})
