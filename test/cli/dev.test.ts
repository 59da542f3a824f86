import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { createClient } from '../../src/sdk/client.ts'
import {
  eventually,
  freePort,
  isAlive,
  postgresPid,
  rollcall,
  startCommand,
  startCommands,
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
    t.notOk(isAlive(orphan), 'the orphan of before is gone')
    for (const id of ids) t.equal((await client.get(id)).status, 'PENDING')
    const postgres = await postgresPid(dataDir)
    recovered.child.kill('SIGTERM')
    t.match(await recovered.ended, { code: 0 })
    t.notOk(isAlive(postgres))
  })
})

t.test('asked to stop twice it ends at once, its database too', async t => {
  const dev = await startDev(t)
  const postgres = await postgresPid(dev.dataDir)
  // A server that does not move cannot end in order.
  process.kill(postgres, 'SIGSTOP')
  dev.child.kill('SIGTERM')
  await new Promise(resolve => setTimeout(resolve, 600))
  dev.child.kill('SIGTERM')
  process.kill(postgres, 'SIGCONT')
  t.match(await dev.ended, { code: 1 })
  t.notOk(isAlive(postgres))
})

t.test('asked to stop while it starts, it ends with nothing left', async t => {
  const dataDir = await temporaryFolder(t)
  const dev = startCommand(['dev', '--port', '0', '--data-dir', dataDir])
  await eventually('the start is under way', () => existsSync(join(dataDir, 'postgres', 'postmaster.pid')))
  const postgres = await postgresPid(dataDir)
  dev.child.kill('SIGTERM')
  t.match(await dev.ended, { code: 0, stdout: '' })
  t.notOk(isAlive(postgres))
})

t.test('a taken port is named, with the option that changes it, and nothing is left behind', async t => {
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise(resolve => server.once('listening', resolve))
  t.teardown(() => server.close())
  const { port } = server.address() as { port: number }
  const dataDir = join(await temporaryFolder(t), 'data')
  const { code, stdout, stderr } = await rollcall(['dev', '--port', String(port), '--data-dir', dataDir])
  t.match({ code, stdout }, { code: 2, stdout: '' })
  t.match(stderr, new RegExp(`^error: Port ${port} of 127.0.0.1 is in use .*--port.* \\(port_in_use\\)\n$`))
  t.notOk(existsSync(dataDir))
})

t.test('settings that cannot be used are refused, each with its name', async t => {
  const dataDir = await temporaryFolder(t)
  const ask = startCommands(t, { ROLLCALL_DATA_DIR: dataDir, ROLLCALL_PORT: String(await freePort()) })
  const cases: [args: string[], stderr: RegExp][] = [
    [['--log-level', 'loud'], /logLevel/],
    [['--config', '/no/such/file'], /\/no\/such\/file cannot be read/],
    [['--port', '99999'], /from 0 to 65535/],
    [['--host', '203.0.113.1'], /203.0.113.1 is not an address of this machine.*--host/],
    [['--host', '0.0.0.0'], /0.0.0.0.*--without-keys/],
  ]
  for (const [args, stderr] of cases) {
    const ended = await ask('dev', ...args)
    t.match(ended, { code: 2, stdout: '' }, args.join(' '))
    t.match(ended.stderr, stderr, args.join(' '))
  }
})

t.test('the log is in the data folder, JSON line by line', async t => {
  const dev = await startDev(t)
  await createClient({ url: dev.url }).submit({ type: 'dev.logged' })
  dev.child.kill('SIGTERM')
  await dev.ended
  const lines = (await readFile(join(dev.dataDir, 'rollcall.log'), 'utf8')).trimEnd().split('\n')
  const entries = lines.map(line => JSON.parse(line))
  t.ok(entries.some(({ part }) => part === 'postgres'))
  t.ok(entries.some(({ event }) => event === 'TaskSubmitted'))
})
