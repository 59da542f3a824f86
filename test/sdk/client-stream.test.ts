/** Streams against a real service: what they tell, and that a service which is killed takes nothing from them. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { type Client, createClient, type StreamMessage, type TaskStream } from '../../src/sdk/client.ts'
import { freePort, startCommand } from '../cli/fixture.ts'
import { testServer } from '../support/postgres.ts'
import { eventTypes, gate, startFixture, until, WAIT_MS } from './fixture.ts'

const NOBODY = '00000000-0000-4000-8000-000000000000'

/** What happened, without the states in between. */
const eventsOf = (messages: readonly StreamMessage[]): string[] =>
  messages.flatMap(one => (one.kind === 'task' && one.event !== null ? [one.event] : []))

/** Takes until it has enough, or the stream is over. */
async function take(
  stream: TaskStream,
  enough: (messages: readonly StreamMessage[]) => boolean = () => false,
): Promise<StreamMessage[]> {
  const messages: StreamMessage[] = []
  for await (const message of stream) {
    messages.push(message)
    if (enough(messages)) break
  }
  return messages
}

t.test('a task is told as it is, and then all that happens to it until it is final', async t => {
  const { client, worker } = await startFixture(t)
  const progressSeen = gate()
  const { taskId } = await client.submit({ type: 'streamed', payload: 'large', labels: { a: 'b' } })
  const stream = client.stream(taskId)
  const first = await stream.next()
  t.match(first.value, { kind: 'task', event: null, task: { taskId, status: 'PENDING' }, id: String })
  t.notMatch(Object.keys(first.value && 'task' in first.value ? first.value.task : {}), ['payload'])
  worker({
    streamed: async (_, { step, progress }) => {
      await step('RENDERING')
      progress(0.5)
      await Promise.race([progressSeen.opened, sleep(WAIT_MS / 2)])
    },
  })
  const messages = await take(stream, told => {
    const last = told.at(-1)
    if (last?.kind === 'task' && last.task.progress === 0.5) progressSeen.open()
    return false
  })
  t.strictSame(eventsOf(messages), ['TaskStarted', 'TaskStepEntered', 'TaskSucceeded'])
  t.ok(messages.some(one => one.kind === 'task' && one.event === null && one.task.progress === 0.5))
  const last = messages.at(-1)
  t.match(last, { event: 'TaskSucceeded', task: { status: 'SUCCESS' }, id: String })
  t.strictSame(await take(client.stream(taskId, { lastEventId: last!.id! })), [], 'there is no more')
  const resumed = await take(client.stream(taskId, { lastEventId: (first.value as StreamMessage).id! }))
  t.strictSame(eventsOf(resumed), eventsOf(messages), 'from a place on nothing is left out')
  t.match(await take(client.stream(taskId, { lastEventId: 'from-elsewhere' })), [
    { kind: 'resync', reason: 'unknown_id' },
    { kind: 'task', event: null, task: { status: 'SUCCESS' } },
  ])
  await t.rejects(client.stream(NOBODY).next(), { code: 'not_found', status: 404 })
})

t.test('a failed task that is tried again has a stream anew', async t => {
  const { client, worker } = await startFixture(t)
  const again = gate()
  let fail = true
  worker({
    flaky: async () => {
      if (fail) throw new Error('not yet')
      await again.opened
    },
  })
  const { taskId } = await client.submit({ type: 'flaky', retry: { maxAttempts: 1 } })
  const failed = await take(client.stream(taskId))
  t.match(failed.at(-1), { task: { status: 'FAILED' } })
  fail = false
  await client.retry(taskId)
  const running = client.stream(taskId, { lastEventId: failed.at(-1)!.id! })
  const found = await take(running, messages => eventsOf(messages).includes('TaskStarted'))
  t.strictSame(eventsOf(found), ['TaskRequeued', 'TaskStarted'])
  again.open()
})

t.test('a filter has the tasks that match, from the beginning of its stream on', async t => {
  const { client, url } = await startFixture(t)
  const bothOpen = gate()
  let open = 0
  const watching = createClient({
    url,
    fetch: async (...request) => {
      const response = await fetch(...request)
      if (++open === 2) bothOpen.open()
      return response
    },
  })
  const stream = watching.stream({ type: 'wanted', labels: { customer: 'a&b' }, tenant: 'acme' })
  const cancelled = watching.stream({ status: ['CANCELLED', 'FAILED'] })
  const first = stream.next()
  const firstCancelled = cancelled.next()
  const submit = (fields: object) =>
    client.submit({ type: 'wanted', labels: { customer: 'a&b' }, tenant: 'acme', ...fields })
  // Nothing that happens after a stream was answered is missing from it.
  await bothOpen.opened
  for (const other of [{ type: 'unwanted' }, { labels: { customer: 'a' } }, { tenant: 'other' }])
    await client.cancel((await submit(other)).taskId)
  const { taskId } = await submit({})
  t.match((await first).value, { event: 'TaskSubmitted', task: { taskId } })
  t.match((await firstCancelled).value, { event: 'TaskCancelled', task: { status: 'CANCELLED' } })
  await client.note(taskId, 'hurry')
  t.match((await stream.next()).value, { event: 'TaskNoted', task: { taskId } })
  await Promise.all([stream.return(), cancelled.return()])
})

t.test('a service that is killed and stopped under its streams takes nothing from them', async t => {
  const { url: databaseUrl } = await testServer(t)
  const service = serviceOn(t, databaseUrl, await freePort())
  await service.start()
  const client = createClient({ url: service.url, timeoutMs: 60_000, retries: 100 })
  const tasks = await Promise.all([1, 2, 3].map(payload => client.submit({ type: 'endured', payload })))
  const done = new AbortController()
  const ofTasks = tasks.map(({ taskId }) => take(client.stream(taskId)))
  const filter = client.stream({ type: 'endured' }, { signal: done.signal })
  const all: StreamMessage[] = []
  const ofFilter = collectInto(all, filter)

  const notes = startNotes(client, tasks)
  for (const [index, signal] of (['SIGKILL', 'SIGTERM'] as const).entries()) {
    await until('things have happened', () => notes.count() > (index + 1) * 4 * tasks.length, 60_000)
    await service.end(signal)
    await service.start()
  }
  await notes.stop()
  await Promise.all(tasks.map(({ taskId }) => client.cancel(taskId)))

  for (const [index, messages] of (await Promise.all(ofTasks)).entries()) {
    const { taskId } = tasks[index]!
    const stored = await eventTypes(client, taskId)
    t.ok(stored.length > 8, `${stored.length} events`)
    t.match(gapless(messages), { first: Number })
    t.match(messages.at(-1), { task: { revision: stored.length - 1, status: 'CANCELLED' } })
    t.equal(messages.filter(({ kind }) => kind === 'resync').length, 0)
  }
  const ends = () => all.filter(one => one.kind === 'task' && one.event === 'TaskCancelled').length
  await until('the filter has told of all ends', () => ends() === tasks.length, 60_000)
  done.abort()
  await ofFilter
  for (const { taskId } of tasks) {
    const own = all.filter(one => one.kind === 'task' && one.task.taskId === taskId)
    t.match(gapless(own), { first: Number })
    t.match(own.at(-1), { event: 'TaskCancelled' })
  }
  t.equal(all.filter(({ kind }) => kind === 'resync').length, 0)
})

/** Whether each event is told once and in its order from the first one on, and which that was. */
function gapless(messages: readonly StreamMessage[]): { first: number } | { told: number[] } {
  const told: number[] = []
  for (const one of messages)
    if (one.kind === 'task' && (one.event !== null || told.length === 0)) told.push(one.task.revision)
  const first = told[0] ?? -1
  return told.every((revision, index) => revision === first + index) ? { first } : { told }
}

async function collectInto(messages: StreamMessage[], stream: TaskStream): Promise<void> {
  try {
    for await (const message of stream) messages.push(message)
  } catch (error) {
    if (!(error instanceof DOMException)) throw error
  }
}

/** Lets things happen to the tasks by turns, through all that happens to the service. */
function startNotes(client: Client, tasks: readonly { taskId: string }[]) {
  let over = false
  let count = 0
  const noting = (async () => {
    while (!over) {
      await client.note(tasks[count % tasks.length]!.taskId, `note ${count}`)
      count++
      await sleep(10)
    }
  })()
  return {
    count: () => count,
    stop: async () => {
      over = true
      await noting
    },
  }
}

/** A service as a process of its own, on one port whenever it is started. */
function serviceOn(t: Test, databaseUrl: string, port: number) {
  let running: ReturnType<typeof startCommand> | null = null
  t.teardown(() => running?.child.kill('SIGKILL'))
  return {
    url: `http://127.0.0.1:${port}`,
    start: async () => {
      running = startCommand(['serve', '--json', '--log-level', 'silent', '--port', String(port)], {
        env: { ROLLCALL_DATABASE_URL: databaseUrl },
      })
      await running.until(/"ready":true/)
    },
    end: async (signal: NodeJS.Signals) => {
      running?.child.kill(signal)
      await running?.ended
    },
  }
}
