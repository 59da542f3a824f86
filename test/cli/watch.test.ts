/** `watch` and `get --wait`: what happens, as it happens. */
import t from 'tap'
import { createClient } from '../../src/sdk/client.ts'
import { createWorker } from '../../src/sdk/worker.ts'
import { startCommand, startCommands, startDev } from './fixture.ts'

const { url } = await startDev(t)
const env = { ROLLCALL_URL: url }
const ask = startCommands(t, env)
const client = createClient({ url })
const watch = (...args: string[]) => {
  const running = startCommand(['watch', ...args], { env })
  t.teardown(() => running.child.kill('SIGKILL'))
  return running
}

t.test('a task is watched until it is final; the exit code says how it ended', async t => {
  const { taskId } = await client.submit({ type: 'watched.one' })
  const running = watch(taskId)
  await running.until(/^\S+ \S+Z {2}PENDING {5}.*waiting for a worker of type watched.one/m)
  const worker = createWorker({ url, types: { 'watched.one': () => 'done' } })
  t.teardown(() => worker.stop())
  worker.start()
  const { code, stdout, stderr } = await running.ended
  t.equal(code, 0)
  t.equal(stderr, '')
  t.match(stdout, /^\S+ \S+Z {2}PROCESSING {2}TaskStarted .*\n\S+ \S+Z {2}SUCCESS {5}TaskSucceeded .*\n$/m)
  t.notMatch(stdout, taskId, 'the id is known')

  const cancelled = await client.submit({ type: 'watched.no' })
  await client.cancel(cancelled.taskId, { reason: 'for once' })
  const after = await ask('watch', cancelled.taskId, '--json')
  t.equal(after.code, 1)
  t.match(JSON.parse(after.stdout), {
    kind: 'task',
    event: null,
    task: { taskId: cancelled.taskId, status: 'CANCELLED' },
  })
})

t.test('all that match are watched, each by its id, in JSON a message a line', async t => {
  const people = watch('--type', 'watched.all', '--label', 'customer=acme', '--status', 'cancelled,failed')
  const programs = watch('--type', 'watched.all', '--json')
  // They are there once they tell of what is submitted after they began.
  const submitted: string[] = []
  const submit = setInterval(async () => {
    const { taskId } = await client.submit({ type: 'watched.all', labels: { customer: 'acme' } })
    submitted.push(taskId)
    await client.cancel(taskId)
  }, 100)
  t.teardown(() => clearInterval(submit))
  const [line] = await people.until(/^.*TaskCancelled.*$/m)
  await programs.until(/"TaskCancelled"/)
  clearInterval(submit)
  t.match(line, /^\S+ \S+Z {2}[0-9a-f-]{36} {2}watched\.all {2}CANCELLED {3}TaskCancelled +\S/)
  t.notMatch(people.stdout(), 'PENDING')
  for (const one of programs.stdout().trimEnd().split('\n')) {
    const message = JSON.parse(one)
    t.match(message, { kind: 'task', id: String, task: { type: 'watched.all' } })
    t.ok(submitted.includes(message.task.taskId))
  }
  for (const { child, ended } of [people, programs]) {
    child.kill('SIGINT')
    await ended
  }
})

t.test('what cannot be watched is refused', async t => {
  t.match(await ask('watch', '00000000-0000-4000-8000-000000000000'), { code: 1, stderr: /\(not_found\)/ })
  t.match(await ask('watch', 'x', '--type', 'y'), { code: 2, stderr: /not both/ })
  t.match(await ask('watch', '--status', 'gone'), { code: 2, stderr: /Allowed: PENDING/ })
})

t.test('get waits for the end, and shows how the task is when the time is over', async t => {
  const { taskId } = await client.submit({ type: 'watched.get' })
  t.match(await ask('get', taskId, '--wait', '200ms'), { code: 0, stdout: /PENDING/ })
  const waiting = ask('get', taskId, '--wait', '20s', '--json')
  await client.cancel(taskId)
  t.match(JSON.parse((await waiting).stdout), { taskId, status: 'CANCELLED' })
  t.match(await ask('get', taskId, '--wait', '5'), { code: 2, stderr: /write 5ms or 5s/ })
})
