import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { testDatabase } from '../support/postgres.ts'
import { startParts, submitTasks } from '../support/service-parts.ts'
import { startCommand, startCommands } from './fixture.ts'

const parts = await startParts(t)
parts.projector.start()
await submitTasks(parts.engine, 12_000)
const { url } = await testDatabase(t)
const target = await openPostgresEventLog({ connectionString: url })
t.teardown(() => target.close())
const env = { ROLLCALL_DATABASE_URL: parts.url }
const ask = startCommands(t, env)
const COPY = ['log', 'copy', '--from', 'postgres', '--to', url]
const stored = () => target.countAfter(null, 1_000_000)

t.test('what cannot be copied is said, with exit code 2', async t => {
  t.match(await ask('log'), { code: 2 })
  t.match(await ask('log', 'copy', '--from', 'postgres'), { code: 2, stderr: /--to/ })
  t.match(await ask('log', 'copy', '--from', 'postgres', '--to', 'somewhere'), { code: 2 })
  const same = await ask('log', 'copy', '--from', 'postgres', '--to', 'postgres', '--json')
  t.match(same, { code: 2, stdout: '' })
  t.match(JSON.parse(same.stderr), { code: 'copy_refused', detail: /are the same log/ })
})

t.test('the state of a log', async t => {
  const { code, stdout } = await ask('log', 'status', '--log', 'postgres')
  t.equal(code, 0)
  t.match(stdout, new RegExp(`^log ${parts.log.id}: 12,001 events\nnewest event .*\nit takes commands\n$`))
  t.match(JSON.parse((await ask('log', 'status', '--log', url, '--json')).stdout), {
    id: target.id,
    events: 0,
    head: null,
    sealedFor: null,
  })
})

t.test('killed and interrupted, the same command goes on; in the end both logs are the same', async t => {
  const killed = startCommand(COPY, { env })
  while ((await stored()) < 500) await sleep(10)
  process.kill(killed.pid, 'SIGKILL')
  await killed.ended
  const first = await stored()
  t.ok(first < 12_001, `${first} events were copied when it was killed`)

  const interrupted = startCommand([...COPY, '--json'], { env })
  while ((await stored()) <= first + 500) await sleep(10)
  process.kill(interrupted.pid, 'SIGINT')
  const ended = await interrupted.ended
  t.equal(ended.code, 130)
  t.match(JSON.parse(ended.stderr), { code: 'interrupted', detail: /The same command goes on from here/ })
  t.equal(await parts.log.sealedFor(), null)

  const { code, stdout, stderr } = await ask(...COPY)
  t.match({ code, stderr }, { code: 0, stderr: '' })
  t.match(
    stdout,
    new RegExp(`log ${parts.log.id} was moved to log ${target.id}: 12,001 events, the same byte by byte`),
  )
  t.match(stdout, /commands were refused for \d+\.\d s\n/)
  t.match(stdout, /start them with the new log: --log postgres:\/\/[^\n]+\n$/)
  t.equal(await stored(), 12_001)
  t.match((await ask('log', 'status', '--log', 'postgres')).stdout, `it is sealed: log ${target.id}`)
  const again = await ask(...COPY, '--json')
  t.match({ code: again.code, ...JSON.parse(again.stdout) }, { code: 0, already: true, targetId: target.id })
})
