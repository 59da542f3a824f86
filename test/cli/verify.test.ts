import t from 'tap'
import type { RollCallAnswer } from '../../src/api/schemas/roll-call.ts'
import { startApi, until } from '../api/fixture.ts'
import { freePort, startCommands } from './fixture.ts'

const { api, service } = await startApi(t)
const ask = startCommands(t, { ROLLCALL_URL: api.url })
const { pool } = service
/** The roll call is made once a second. */
const calledAgain = async () => new Promise(resolve => setTimeout(resolve, 1_100))

t.test('the roll call of nobody', async t => {
  const { code, stdout } = await ask('rollcall')
  t.equal(code, 0)
  t.match(stdout, /^there are no tasks\n/)
})

let ids: string[] = []

t.test('everybody answers: the first line says so, exit code 0', async t => {
  const submitted = [await api.submit({ type: 'cli.called' }), await api.submit({ type: 'cli.called' })]
  ids = submitted.map(({ taskId }) => taskId)
  await until('they are projected', async () => {
    const { body } = await api.get<RollCallAnswer>('/v1/rollcall')
    return body.tasks === 2 && body.lag.events === 0
  })
  const { code, stdout, stderr } = await ask('rollcall')
  t.match({ code, stderr }, { code: 0, stderr: '' })
  t.match(stdout, /^all 2 tasks answered\n\nTYPE +STATUS +COUNT +OLDEST +OVERDUE > 30 s\n/)
  t.match(stdout, /\ncli\.called +PENDING +2 +\S.* +0\n/)
  t.match(stdout, /\nat 20\d\d-\S+ \S+Z; the read model is 0 events, 0 ms behind; /)
  const json = await ask('rollcall', '--json')
  t.equal(json.code, 0)
  t.match(JSON.parse(json.stdout), { tasks: 2, unaccounted: { total: 0 } })
})

t.test('nothing differs: exit code 0', async t => {
  const { code, stdout } = await ask('verify')
  t.equal(code, 0)
  t.equal(stdout, 'the rows of all 2 tasks are what their streams say\n')
  const json = await ask('verify', '--json')
  t.equal(json.code, 0)
  t.strictSame(JSON.parse(json.stdout), {
    clean: true,
    checked: { tasks: 2, events: 3 },
    found: 0,
    repaired: 0,
    findings: [],
  })
})

t.test('what differs: both name it with exit code 1, and are content once it is repaired', async t => {
  await pool.query(`UPDATE rollcall.tasks SET status = 'FAILED' WHERE task_id = $1`, [ids[0]])
  await pool.query(`UPDATE rollcall.tasks SET attempt = 7 WHERE task_id = $1`, [ids[1]])
  const found = await ask('verify')
  t.equal(found.code, 1)
  t.match(found.stdout, new RegExp(`^${ids[0]}  row_differs  status is "FAILED", should be "PENDING"$`, 'm'))
  t.match(found.stdout, new RegExp(`^${ids[1]}  row_differs  attempt is 7, should be 1$`, 'm'))
  t.match(found.stdout, /^2 of 2 tasks differ from their streams\n.*verify --repair/m)

  await calledAgain()
  const called = await ask('rollcall')
  t.equal(called.code, 1)
  t.match(called.stdout, /^2 of 2 tasks unaccounted for\n/)
  t.match(called.stdout, /\n2 rows and stream differ\n {2}\S+ {2}row_differs: \S+ is /)

  const repaired = await ask('verify', '--repair')
  t.equal(repaired.code, 0)
  t.match(repaired.stdout, /^\S+ {2}row_differs {2}attempt is 7, should be 1 {2}repaired$/m)
  t.match(repaired.stdout, /^2 of 2 tasks differ from their streams; all were repaired$/m)
  t.equal((await ask('verify')).code, 0)
  await calledAgain()
  t.equal((await ask('rollcall')).code, 0)
})

t.test('nobody can tell while the projector is behind: exit code 1', async t => {
  await service.projector!.stop()
  await api.submit({ type: 'cli.called' })
  await pool.query(
    `UPDATE rollcall_log.events
        SET metadata = jsonb_set(metadata::jsonb, '{at}', to_jsonb((metadata::jsonb ->> 'at')::bigint - 70000))::text
      WHERE position = (SELECT max(position) FROM rollcall_log.events)`,
  )
  // The newest projected event is what is looked at first.
  await pool.query(`UPDATE rollcall.projectors SET event_at = event_at - interval '70 s'`)
  await calledAgain()
  const { code, stdout } = await ask('rollcall')
  t.equal(code, 1)
  t.match(stdout, /^nobody can tell: the read model is \d\d s behind the log; more than 10 s is too much/)
})

t.test('no service: exit code 3', async t => {
  const url = `http://127.0.0.1:${await freePort()}`
  for (const command of ['rollcall', 'verify'])
    t.match(await ask(command, '--url', url), { code: 3, stdout: '', stderr: /No service answers/ }, command)
})
