import { chmod, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { createClient } from '../../src/sdk/client.ts'
import { eventually, isAlive, startCommand, startDev, temporaryFolder } from './fixture.ts'

const { url } = await startDev(t)
const client = createClient({ url })
/** So that a cancelled task's worker hears of it soon: heartbeats come at a third of the lease. */
const QUICK = { timeouts: { leaseMs: 900 } }

function startWorker(t: Test, type: string, exec: string, ...args: string[]) {
  const worker = startCommand(['worker', '--url', url, '--type', type, '--exec', exec, '--json', ...args])
  t.teardown(async () => {
    worker.child.kill('SIGKILL')
    await worker.ended
  })
  return worker
}

/** The payload is a script, so that one worker does every case. */
const RUN_PAYLOAD = 'script=$(node -pe \'JSON.parse(require("fs").readFileSync(0))\'); eval "$script"'

t.test('the payload goes in, the result comes out, the exit code decides', async t => {
  startWorker(t, 'exec.sh', RUN_PAYLOAD, '--concurrency', '4')
  const cases: [script: string, expected: object][] = [
    ['echo \'{"a":[1,2]}\'', { status: 'SUCCESS', result: { a: [1, 2] } }],
    ['echo hello; echo world', { status: 'SUCCESS', result: 'hello\nworld' }],
    ['true', { status: 'SUCCESS', result: null }],
    ['echo 9007199254740993', { status: 'SUCCESS', result: '9007199254740993' }],
    ['echo "$ROLLCALL_TYPE $ROLLCALL_ATTEMPT"', { status: 'SUCCESS', result: 'exec.sh 1' }],
    [
      'echo first >&2; echo last >&2; exit 3',
      { status: 'FAILED', attempt: 2, errorCode: 'exit_3', errorMessage: 'first\nlast' },
    ],
    [
      'echo never >&2; exit 100',
      { status: 'FAILED', attempt: 1, errorCode: 'permanent', errorMessage: 'never' },
    ],
    ['kill -9 $$', { status: 'FAILED', attempt: 2, errorCode: 'signal_SIGKILL' }],
    ['head -c 300000 /dev/zero; sleep 60', { status: 'FAILED', attempt: 1, errorCode: 'result_too_large' }],
    ['sleep 60 & echo done', { status: 'SUCCESS', result: 'done' }],
    ['[ $ROLLCALL_ATTEMPT = 2 ] && echo better', { status: 'SUCCESS', attempt: 2, result: 'better' }],
  ]
  await Promise.all(
    cases.map(async ([payload, expected]) => {
      const retry = { maxAttempts: 2, initialDelayMs: 10 }
      const { taskId } = await client.submit({ type: 'exec.sh', payload, retry })
      t.match(await client.waitFor(taskId), expected, payload)
    }),
  )
})

t.test('the payload reaches the program as JSON', async t => {
  startWorker(t, 'exec.cat', 'cat')
  const payload = { text: 'ünï "quoted"\n', list: [null, true, 1.5] }
  const { taskId } = await client.submit({ type: 'exec.cat', payload })
  t.same((await client.waitFor(taskId)).result, payload)
})

/** A program that writes its pid and its child's, and waits. */
async function pidsProgram(t: Test) {
  const folder = await temporaryFolder(t)
  const file = join(folder, 'pids')
  const program = join(folder, 'program')
  await writeFile(program, `#!/bin/sh\nsleep 300 &\necho "$$ $!" >> ${file}\nwait\n`)
  await chmod(program, 0o755)
  const pids = async () =>
    (await readFile(file, 'utf8').catch(() => ''))
      .split(/\s+/)
      .map(Number)
      .filter(pid => pid > 0)
  return { program, pids }
}

t.test('a cancelled task ends its program and the children of that', async t => {
  const { program, pids } = await pidsProgram(t)
  const worker = startWorker(t, 'exec.cancel', program)
  const { taskId } = await client.submit({ type: 'exec.cancel', ...QUICK })
  await eventually('the program runs', async () => (await pids()).length === 2)
  await client.cancel(taskId)
  await eventually('all of it has ended', async () => !(await pids()).some(isAlive))
  t.equal((await client.get(taskId)).status, 'CANCELLED')
  const [line] = await worker.until(/^\{.*\}$/m)
  t.match(JSON.parse(line!), { taskId, outcome: 'stopped', message: /cancelled/ })
})

t.test('a program that ignores SIGTERM is killed after the grace', async t => {
  const file = join(await temporaryFolder(t), 'pid')
  const deaf = `trap '' TERM; echo $$ > ${file}; while :; do sleep 0.05; done`
  startWorker(t, 'exec.deaf', deaf, '--grace', '200ms')
  const { taskId } = await client.submit({ type: 'exec.deaf', ...QUICK })
  const pid = async () => Number(await readFile(file, 'utf8').catch(() => ''))
  await eventually('the program runs', async () => (await pid()) > 0)
  await client.cancel(taskId)
  await eventually('it was killed', async () => !isAlive(await pid()))
  t.equal((await client.get(taskId)).status, 'CANCELLED')
})

t.test('a stopped worker ends what runs, hands the task back and leaves nothing', async t => {
  const { program, pids } = await pidsProgram(t)
  const worker = startWorker(t, 'exec.stop', program, '--drain', '100ms')
  const { taskId } = await client.submit({ type: 'exec.stop' })
  await eventually('the program runs', async () => (await pids()).length === 2)
  worker.child.kill('SIGTERM')
  t.match(await worker.ended, { code: 0 })
  await eventually('all of it has ended', async () => !(await pids()).some(isAlive))
  t.match(await client.get(taskId), { status: 'PENDING', why: /handed back/ })
})

t.test('a program that vanishes fails no tasks: the worker hands them back and ends with 2', async t => {
  const { program } = await pidsProgram(t)
  await writeFile(program, '#!/bin/sh\nexit 0\n')
  const worker = startWorker(t, 'exec.gone', program)
  const before = await client.submit({ type: 'exec.gone' })
  t.equal((await client.waitFor(before.taskId)).status, 'SUCCESS')
  await rm(program)
  const { taskId } = await client.submit({ type: 'exec.gone' })
  const { code, stderr } = await worker.ended
  t.equal(code, 2)
  t.match(stderr, /cannot be run any more/)
  t.match(await client.get(taskId), { status: 'PENDING', why: /handed back/ })
})
