import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createServer } from 'node:net'
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
    [['--host', '203.0.113.1', '--without-keys'], /203.0.113.1 is not an address of this machine.*--host/],
    [['--require-keys', '--without-keys'], /keys cannot be required and left out at once/],
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
