import t from 'tap'
import { createClient } from '../../src/sdk/client.ts'
import { testDatabase, testServer } from '../support/postgres.ts'
import { rollcall, startCommand, startCommands } from './fixture.ts'

t.test('roles apart do together what one process does', async t => {
  const { url } = await testServer(t)
  const serve = (...args: string[]) => {
    const running = startCommand(['serve', '--json', '--log-level', 'warn', ...args], {
      env: { ROLLCALL_DATABASE_URL: url },
    })
    t.teardown(() => running.child.kill('SIGKILL'))
    return running
  }
  const api = serve('--roles', 'api', '--port', '0')
  const rest = serve('--roles', 'projector')
  const timers = serve('--roles', 'timers', '--port', '0')
  const [[line], [other]] = await Promise.all([api.until(/^\{.*\}$/m), rest.until(/^\{.*\}$/m)])
  const ready = JSON.parse(line!)
  t.match(ready, { ready: true, roles: ['api'], pid: api.pid })
  t.match(JSON.parse(other!), { ready: true, url: null, roles: ['projector'] })
  const { url: health } = JSON.parse((await timers.until(/^\{.*\}$/m))[0]!)
  t.equal((await fetch(`${health}/readyz`)).status, 200, 'a process without the API shows its health')
  t.match(await (await fetch(`${health}/metrics`)).text(), /^rollcall_read_model_reachable 1$/m)
  t.equal((await fetch(`${health}/v1/tasks`)).status, 404, 'and nothing else')

  const client = createClient({ url: ready.url })
  const { taskId } = await client.submit({ type: 'serve.apart', timeouts: { queueMs: 1 } })
  t.equal((await client.waitFor(taskId, { timeoutMs: 20_000 })).status, 'FAILED', 'the timers fire')
  const listed = await rollcall(['list', '--url', ready.url, '--json'])
  t.match(JSON.parse(listed.stdout).tasks, [{ taskId }], 'the projector projects')

  for (const { child } of [api, rest, timers]) child.kill('SIGTERM')
  t.match(await Promise.all([api.ended, rest.ended, timers.ended]), [{ code: 0 }, { code: 0 }, { code: 0 }])
})

t.test('a database is refused until it is migrated, and when it may forget', async t => {
  const { url } = await testDatabase(t, { migrated: false })
  const ask = startCommands(t, { ROLLCALL_DATABASE_URL: url })
  const early = await ask('serve', '--port', '0')
  t.match(early, { code: 2, stdout: '', stderr: /not prepared.*rollcall migrate.*\(not_migrated\)/ })
  t.notMatch(early.stderr, new URL(url).password, 'the password stays out of messages')

  t.match(await ask('migrate'), { code: 0, stdout: /^applied 0001-event-log, / })
  t.match(await ask('migrate', '--json'), { code: 0, stdout: '{"applied":[]}\n' })

  // The test's server runs without durability.
  const forgetful = await ask('serve', '--port', '0', '--log-level', 'silent')
  t.match(forgetful, { code: 2, stdout: '', stderr: /fsync is off.*\(not_durable\)/s })
})
