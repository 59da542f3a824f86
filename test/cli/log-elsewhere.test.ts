/** The log in EventStoreDB, by configuration alone. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { auditLog } from '../../src/engine/audit.ts'
import { openLog } from '../../src/runtime/open-log.ts'
import { createClient } from '../../src/sdk/client.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import { testServer } from '../support/postgres.ts'
import { eventually, freePort, rollcall, startCommand, startDev, temporaryFolder } from './fixture.ts'

t.test('serve says when its log is not there yet, and never its password', async t => {
  const postgres = await testServer(t)
  const port = await freePort()
  const serve = startCommand(
    ['serve', '--port', '0', '--log', `esdb://admin:S3cret@127.0.0.1:${port}`, '--log-level', 'trace'],
    { env: { ROLLCALL_DATABASE_URL: postgres.url } },
  )
  t.teardown(() => serve.child.kill('SIGKILL'))
  await serve.until(/^rollcall is ready at /)
  t.match(
    serve.stderr(),
    new RegExp(
      `^The event log at esdb://admin:\\*\\*\\*@127.0.0.1:${port} does not answer yet: .*\\nUntil`,
      'm',
    ),
  )
  await serve.until(/no task is accepted until/, 'stderr')
  serve.child.kill('SIGTERM')
  const { code, stdout, stderr } = await serve.ended
  t.equal(code, 0)
  t.notMatch(stdout + stderr, /S3cret/)
})

t.test('an address that cannot be used ends the command with 2, before anything is started', async t => {
  const folder = await temporaryFolder(t)
  const log = 'esdb://admin:S3cret@localhost?tls=false'
  for (const args of [['serve'], ['dev', '--data-dir', folder], ['demo', '--data-dir', folder]]) {
    const ended = await rollcall([...args, '--log', log], {
      env: { ROLLCALL_DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none' },
      cwd: folder,
    })
    t.match(
      ended,
      { code: 2, stdout: '', stderr: /not sent without TLS.*at log.*\(config\)/s },
      args.join(' '),
    )
    t.notMatch(ended.stderr, /S3cret/)
  }
})

t.test('dev keeps tasks in the log it is given, and halts on another one with what to do', async t => {
  const double = await startEventStoreDBDouble(t)
  const dataDir = await temporaryFolder(t)
  const dev = await startDev(t, { dataDir, args: ['--log', double.address] })
  t.match(JSON.parse(dev.stdout()), { logReached: true, log: double.address })
  const { taskId } = await createClient({ url: dev.url }).submit({ type: 'dev.elsewhere' })
  await eventually('it is in the read model', async () => {
    const { stdout } = await rollcall(['list', '--url', dev.url, '--json'])
    return JSON.parse(stdout).tasks[0]?.taskId === taskId
  })
  dev.child.kill('SIGTERM')
  t.match(await dev.ended, { code: 0, stderr: '' })

  const log = await openLog(double.address, { databaseUrl: '' })
  t.teardown(() => log.close())
  t.strictSame([...(await auditLog(log, null)).tasks.keys()], [taskId])

  const other = startCommand(['dev', '--port', '0', '--data-dir', dataDir])
  t.teardown(() => other.child.kill('SIGKILL'))
  const [, url] = await other.until(/ready at (\S+) /)
  await other.until(new RegExp(`made from log ${log.id}.*start with the --log .*rollcall log copy`), 'stderr')
  const ready = await fetch(`${url}/readyz`)
  t.equal(ready.status, 503)
  t.match(await ready.json(), {
    checks: [{ name: 'projector', ok: false, reason: /made from log .*rollcall log copy/ }],
  })
  other.child.kill('SIGTERM')
  t.match(await other.ended, { code: 0 })
})

t.test('the demo calls the roll in the log it is given, in a namespace of its own', async t => {
  const double = await startEventStoreDBDouble(t)
  const cwd = await temporaryFolder(t)
  const args = ['demo', '--tasks', '24', '--workers', '2', '--json', '--data-dir', join(cwd, 'data')]
  const { code, stdout, stderr } = await rollcall(args, { cwd, env: { ROLLCALL_LOG: double.address } })
  t.match({ code, stderr }, { code: 0, stderr: '' }, stdout)
  const report = JSON.parse(stdout)
  t.match(report, {
    ok: true,
    log: /namespace=demo_[0-9a-f]{12}$/,
    rollCall: { accepted: 24, succeeded: 20, failed: 2, cancelled: 2, missing: [], doubled: [], broken: [] },
  })
  const log = await openLog(report.log, { databaseUrl: '' })
  t.teardown(() => log.close())
  t.equal((await auditLog(log, null)).tasks.size, 24)
  t.match(await readFile(join(cwd, 'data', 'rollcall.log'), 'utf8'), new RegExp(`"logId":"${log.id}"`))
  const production = await openLog(double.address, { databaseUrl: '' })
  t.teardown(() => production.close())
  t.equal(await production.head(), null)
})

t.test('a demo whose log is not there says so', async t => {
  const cwd = await temporaryFolder(t)
  const ended = await rollcall(['demo', '--log', `esdb://127.0.0.1:${await freePort()}?tls=false`], { cwd })
  t.match(ended, { code: 3, stderr: /The event log esdb:\/\/127\.0\.0\.1:.*\(log_unavailable\)/s })
})
