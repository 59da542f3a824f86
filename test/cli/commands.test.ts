import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import {
  eventually,
  freePort,
  rollcall,
  startCommand,
  startCommands,
  startDev,
  temporaryFolder,
} from './fixture.ts'

const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/
const NOBODY = '00000000-0000-4000-8000-000000000000'

const { url } = await startDev(t)
const ask = startCommands(t, { ROLLCALL_URL: url })
const askJson = async (...args: string[]) => {
  const { code, stdout, stderr } = await ask(...args, '--json')
  if (code !== 0) throw new Error(`${args.join(' ')} ended with ${code}: ${stderr}`)
  return JSON.parse(stdout)
}
const submit = async (...args: string[]): Promise<string> => (await askJson('submit', ...args)).taskId

t.test('submit tells id, status and why, and sends all that was given', async t => {
  const [human, task] = await Promise.all([
    ask('submit', 'cli.submit', '{"hello":"world"}'),
    askJson(
      'submit',
      'cli.submit',
      '[1,2]',
      '--priority',
      '-7',
      '--delay',
      '1.5h',
      '--label',
      'a=b',
      '--label',
      'c=d=e',
    ).then((task: TaskView) => askJson('get', task.taskId)),
  ])
  t.match(human, { code: 0, stderr: '' })
  t.match(human.stdout, new RegExp(`^${UUID.source}  PENDING  waiting for a worker of type cli.submit\n$`))
  t.match(task, {
    payload: [1, 2],
    priority: -7,
    labels: { a: 'b', c: 'd=e' },
    nextDeadline: { timer: 'not_before' },
  })
  t.equal(Date.parse(task.runAt) - Date.parse(task.createdAt), 1.5 * 3_600_000)
})

t.test('limits and attempts are sent as they are meant', async t => {
  const id = await submit(
    ...['cli.limits', '--max-attempts', '5', '--timeout-queue', '2d', '--timeout-execution', '10m'],
    ...['--timeout-lease', '500ms', '--timeout-total', '7d', '--correlation-id', 'order-1'],
  )
  const { events } = await askJson('history', id)
  t.match(events[0].data, {
    retry: { maxAttempts: 5 },
    timeouts: { queueMs: 172_800_000, executionMs: 600_000, leaseMs: 500, totalMs: 604_800_000 },
  })
  t.match(events[0], { source: 'command_line', actor: { kind: 'person' }, correlationId: 'order-1' })
})

t.test('the payload comes from the argument, a file or standard input', async t => {
  const file = join(await temporaryFolder(t), 'payload.json')
  await writeFile(file, '{"from":"file"}')
  const input = rollcall(['submit', 'cli.payload', '-', '--json'], {
    input: '"from stdin"',
    env: { ROLLCALL_URL: url },
  })
  const [none, text, fromFile, fromInput] = await Promise.all([
    askJson('submit', 'cli.payload'),
    askJson('submit', 'cli.payload', '"text"'),
    askJson('submit', 'cli.payload', `@${file}`),
    input.then(({ stdout }) => JSON.parse(stdout)),
  ])
  t.same(
    [none.payload, text.payload, fromFile.payload, fromInput.payload],
    [null, 'text', { from: 'file' }, 'from stdin'],
  )
})

t.test('a key given twice answers the same task', async t => {
  const args = ['cli.key', '{}', '--idempotency-key', 'order-7']
  t.equal(await submit(...args), await submit(...args))
})

t.test('get shows a task for people, without control characters of others', async t => {
  const id = await submit('cli.get', '{"n":1}', '--label', 'evil=\u001b[31mred')
  const { stdout } = await ask('get', id)
  t.match(stdout, new RegExp(`^cli.get {2}${id}\n`))
  t.match(stdout, /^status {6}PENDING$/m)
  t.match(stdout, /^why {9}waiting for a worker of type cli.get(; it is next)?$/m)
  t.match(stdout, /^next {8}queue in 2\d h.*: no worker has started it in time; the task fails$/m)
  t.match(stdout, /^payload {5}\{"n":1\}$/m)
  t.match(stdout, /^revision {4}0, hash [0-9a-f]{12}$/m)
  // biome-ignore lint/suspicious/noControlCharactersInRegex: that there are none is what this is about
  t.notMatch(stdout, /\x1b/)
})

t.test('list filters, pages, and has the same rows for people and programs', async t => {
  const ids: string[] = []
  for (let task = 0; task < 3; task++) ids.push(await submit('cli.list'))
  await ask('cancel', ids[0]!)
  await eventually('the list has caught up', async () => {
    const { tasks } = await askJson('list', '--type', 'cli.list')
    return tasks.length === 3 && tasks[2].status === 'CANCELLED'
  })
  const [table, filtered, two, all] = await Promise.all([
    ask('list', '--type', 'cli.list'),
    askJson('list', '--type', 'cli.list', '--status', 'cancelled,failed'),
    askJson('list', '--type', 'cli.list', '--oldest', '--limit', '2'),
    askJson('list', '--type', 'cli.list', '--all'),
  ])
  const rows = table.stdout.trimEnd().split('\n')
  t.match(rows[0], /^TASK +TYPE +STATUS +TRY +CHANGED +REMARK$/)
  t.same(
    rows.slice(1).map(row => row.split(/ {2,}/).slice(0, 3)),
    [
      [ids[2], 'cli.list', 'PENDING'],
      [ids[1], 'cli.list', 'PENDING'],
      [ids[0], 'cli.list', 'CANCELLED'],
    ],
  )
  t.same(
    filtered.tasks.map((task: TaskView) => task.taskId),
    [ids[0]],
  )
  t.same(
    two.tasks.map((task: TaskView) => task.taskId),
    [ids[0], ids[1]],
  )
  t.type(two.nextCursor, 'string')
  t.match(all, { tasks: { length: 3 }, nextCursor: null, lagSeconds: Number })
})

t.test('list searches by what a task was submitted with, and counts the same tasks', async t => {
  const type = 'cli.search'
  const given = [
    '--label',
    'project=demo',
    '--label',
    'n=1',
    '--tenant',
    'acme',
    '--correlation-id',
    'order-1',
  ]
  const { taskId, tenant, labels } = await askJson('submit', type, ...given)
  t.match({ tenant, labels }, { tenant: 'acme', labels: { project: 'demo', n: '1' } })
  const other = await submit(type)
  await ask('cancel', other, '--reason', 'wrong month')
  const found = async (...args: string[]) =>
    (await askJson('list', '--type', type, ...args)).tasks.map((task: TaskView) => task.taskId)
  await eventually('the list has caught up', async () => (await found('--error', 'MONTH')).length === 1)
  t.same(await found('--error', 'cancelled'), [other])
  for (const args of [
    ['--tenant', 'acme'],
    ['--label', 'project=demo', '--label', 'n=1'],
    ['--correlation-id', 'order-1'],
    ['--status', 'pending', '--created-after', '2020-01-01T00:00:00+02:00'],
  ])
    t.same(await found(...args), [taskId], args.join(' '))
  t.same(await found('--created-before', '2020-01-01T00:00:00Z'), [])
  t.same(await found('--label', 'project=other'), [])

  const counts = await ask('list', '--type', type, '--counts')
  t.match(counts, { code: 0 })
  t.same(
    counts.stdout
      .trimEnd()
      .split('\n')
      .map(line => line.trim().split(/ +/)),
    [
      ['PENDING', '1'],
      ['PROCESSING', '0'],
      ['RETRYING', '0'],
      ['SUCCESS', '0'],
      ['FAILED', '0'],
      ['CANCELLED', '1'],
    ],
  )
  t.match(await askJson('list', '--type', type, '--tenant', 'acme', '--counts'), {
    counts: { PENDING: { count: 1, exact: true }, CANCELLED: { count: 0, exact: true } },
  })
  t.match(await ask('list', '--counts', '--all'), { code: 2, stderr: /--counts.*cannot be used with.*--all/ })
  t.match(await ask('list', '--created-after', 'yesterday'), { code: 2, stderr: /Write a time as/ })
})

t.test('an empty list says so, and is an empty list for programs', async t => {
  t.match(await ask('list', '--type', 'cli.none'), { code: 0, stdout: '', stderr: 'no tasks\n' })
  t.same((await askJson('list', '--type', 'cli.none', '--all')).tasks, [])
})

t.test('cancel, retry and note answer, and the history has who and why', async t => {
  const id = await submit('cli.history')
  t.match(await ask('note', id, 'looks odd'), { code: 0, stdout: `noted as revision 1 of ${id}\n` })
  const cancelled = await ask('cancel', id, '--reason', 'no longer needed')
  t.match(cancelled.stdout, new RegExp(`^${id} {2}CANCELLED {2}cancelled by person .+: no longer needed\n$`))
  t.match(await ask('retry', id), {
    code: 1,
    stdout: '',
    stderr: /^error: .*CANCELLED.* \(illegal_transition\)\n$/,
  })

  // A refusal is written a moment after its answer.
  const until = performance.now() + 20_000
  let json = await askJson('history', id)
  while (json.refusals.count === 0 && performance.now() < until) json = await askJson('history', id)
  const table = await ask('history', id)
  const rows = table.stdout.trimEnd().split('\n')
  t.match(rows[0], /^REV +TIME +EVENT +WHO +HASH +WHAT$/)
  t.match(rows[1], /^ +0 +\S+ \S+Z +TaskSubmitted +person \S+ +[0-9a-f]{8} +cli.history$/)
  t.match(rows[2], /^ +1 .* TaskNoted .* looks odd$/)
  t.match(rows[3], /^ +2 .* TaskCancelled .* no longer needed$/)
  t.same(rows.slice(4, 6), ['', '1 command was refused:'])
  t.match(
    rows[6],
    /^ {2}\S+ \S+Z {2}RETRY by person \S+ at revision 2: illegal_transition\. The task is in a status .*$/,
  )
  t.equal(rows.length, 7)
  t.match(json, {
    taskId: id,
    events: { length: 3 },
    chain: { whole: true, fault: null },
    refusals: { count: 1 },
  })
})

t.test('retry puts a failed task back', async t => {
  const waited = await ask('submit', 'cli.retry', '--timeout-queue', '1ms', '--wait', '--json')
  t.equal(waited.code, 1, 'the wait for a task that fails ends with 1')
  const failed: TaskView = JSON.parse(waited.stdout)
  t.equal(failed.status, 'FAILED')
  const { code, stdout } = await ask('retry', failed.taskId, '--reason', 'again')
  t.match({ code, stdout }, { code: 0, stdout: / {2}PENDING {2}/ })
})

t.test('waiting that is over before the task shows it as it is, and ends with 1', async t => {
  const { code, stdout, stderr } = await ask('submit', 'cli.wait', '--wait-timeout', '200ms')
  t.equal(code, 1)
  t.match(stdout, /^status {6}PENDING$/m)
  t.match(stderr, /^not finished in time; look again with: rollcall get /)
})

t.test('an answer of no ends with 1 and says what was refused', async t => {
  const [unknown, json] = await Promise.all([ask('get', NOBODY), ask('get', NOBODY, '--json')])
  t.match(unknown, { code: 1, stdout: '', stderr: /^error: No task has this id\..* \(not_found\)\n$/ })
  t.match(json, { code: 1, stdout: '' })
  t.match(JSON.parse(json.stderr), { type: 'urn:rollcall:problem:not_found', status: 404, code: 'not_found' })
})

t.test('what cannot be used ends with 2 and says what to write instead', async t => {
  const cases: [args: string[], stderr: RegExp][] = [
    [['submit', 'x', 'hello'], /not JSON.*A text needs its quotes/],
    [['submit', 'x', '9007199254740993'], /9007199254740993 .*cannot be kept exactly/],
    [['submit', 'x', '@/no/such/file'], /cannot be read from \/no\/such\/file: ENOENT/],
    [['submit', 'x', '--delay', '500'], /no unit; write 500ms or 500s/],
    [['submit', 'x', '--delay', 'soon'], /500ms, 10s, 5m/],
    [['submit', 'x', '--delay', '1s', '--run-at', '2030-01-01T00:00:00Z'], /--delay or --run-at, not both/],
    [['submit', 'x', '--run-at', '2030-01-01 00:00'], /2030-01-31T09:00:00Z/],
    [['submit', 'x', '--label', 'novalue'], /key=value/],
    [['submit', 'x', '--priority', '1e3'], /whole number/],
    [['submit', 'Bad Type'], /type: must match/],
    [['get', '123'], /must be a UUID/],
    [['list', '--status', 'done'], /PENDING, PROCESSING/],
    [['lst'], /unknown command 'lst'.*Did you mean list/s],
    [['list', '--nope'], /unknown option '--nope'/],
    [['get'], /missing required argument 'id'/],
    [['list', '--url', 'ftp://x'], /--url must be an address such as/],
    [['worker', '--type', 'x', '--exec', './no-such-program'], /there is no program \.\/no-such-program/],
    [['worker', '--type', 'x', '--exec', 'cat | ('], /the shell cannot read it/],
    [['migrate'], /--database-url/],
    [['serve', '--database-url', 'mysql://x'], /must be a postgres/],
    [['serve', '--database-url', 'postgres://x', '--roles', 'api,cook'], /roles/],
    [['demo', '--tasks', '1'], /from 10 to 5000/],
    [['demo', '--pictures', '/dev/null/x'], /cannot be written to \/dev\/null\/x.*--pictures/],
  ]
  await Promise.all(
    cases.map(async ([args, stderr]) => {
      const ended = await ask(...args)
      t.match(ended, { code: 2, stdout: '' }, args.join(' '))
      t.match(ended.stderr, stderr, args.join(' '))
      t.match(ended.stderr, /^error: /, args.join(' '))
    }),
  )
})

t.test('with --json every failure is a problem on stderr', async t => {
  const ended = await ask('submit', 'x', '--delay', '500', '--json')
  t.match(ended, { code: 2, stdout: '' })
  t.match(JSON.parse(ended.stderr), { type: 'urn:rollcall:problem:usage', code: 'usage', detail: /no unit/ })
})

t.test('a service that does not answer ends with 3 and says how to start one', async t => {
  const dead = `http://127.0.0.1:${await freePort()}`
  const [human, json, migrate] = await Promise.all([
    rollcall(['list', '--url', dead]),
    ask('list', '--url', dead, '--json'),
    ask('migrate', '--database-url', `${dead.replace('http', 'postgres')}/rollcall`),
  ])
  t.match(human, { code: 3, stdout: '', stderr: new RegExp(`${dead}.*ECONNREFUSED.*rollcall dev.*--url`) })
  t.match(json, { code: 3, stdout: '' })
  t.match(JSON.parse(json.stderr), { code: 'unreachable' })
  t.match(migrate, { code: 3, stdout: '', stderr: /does not answer: .*ECONNREFUSED.*--database-url/ })
})

t.test('help and version are on stdout and end with 0', async t => {
  const [bare, help, worker, version] = await Promise.all([
    rollcall([]),
    ask('--help'),
    ask('worker', '--help'),
    ask('--version'),
  ])
  t.match(bare, { code: 0, stderr: '', stdout: /Begin here:/ })
  t.equal(bare.stdout, help.stdout)
  t.notMatch(help.stdout, /demo-worker/, 'the hidden command is not shown')
  t.match(worker.stdout, /100 failed for good/)
  t.match(version, { code: 0, stdout: /^\d+\.\d+\.\d+\n$/ })
})

t.test('a reader that has seen enough is no failure', async t => {
  const { child, ended } = startCommand(['list', '--all', '--json', '--url', url])
  child.stdout?.destroy()
  t.match(await ended, { code: 0, stderr: '' })
})
