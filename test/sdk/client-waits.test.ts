/** Waiting for a task at the service, and looking whether it has changed. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { createClient as createBrowserClient } from '../../src/sdk/browser-client.ts'
import { createClient } from '../../src/sdk/client.ts'
import { startFixture, until, WAIT_MS } from './fixture.ts'
import { type Connection, startScriptedService } from './scripted-stream.ts'

const TASK = '00000000-0000-4000-8000-000000000000'

/** Answers with a task of this status; the wait is said to be done where there is one. */
function answer(connection: Connection, status: string, headers: Record<string, string> = {}): void {
  connection.refuse(200, { taskId: TASK, status, why: 'so it is' }, { etag: `"${status}"`, ...headers })
}

const waitOf = ({ headers }: Connection): number => Number(/^wait=(\d+)$/.exec(String(headers.prefer))?.[1])

t.test('waitFor has the service wait, in one request', async t => {
  const { client, proxy } = await startFixture(t)
  const { taskId } = await client.submit({ type: 'image.generate' })
  const asked = proxy.next(`/v1/tasks/${taskId}`)
  const waiting = createClient({ url: proxy.url }).waitFor(taskId, { timeoutMs: WAIT_MS })
  t.equal((await asked).headers.prefer, 'wait=19')
  await sleep(300)
  await client.cancel(taskId)
  t.equal((await waiting).status, 'CANCELLED')
  t.equal(proxy.seen.length, 1)
})

t.test('waitFor asks for no more than is left, and tells at the end how the task stands', async t => {
  const { client, proxy } = await startFixture(t)
  const { taskId } = await client.submit({ type: 'image.generate' })
  await t.rejects(createClient({ url: proxy.url }).waitFor(taskId, { timeoutMs: 1_700 }), {
    code: 'timeout',
    message: /did not finish within 1700 ms. It is PENDING: .*worker of type image.generate/,
  })
  t.strictSame(
    proxy.seen.slice(0, 2).map(({ headers }) => headers.prefer),
    ['wait=1', undefined],
  )
})

t.test('a service that does not wait is asked from time to time, whatever it says', async t => {
  const headers: Record<string, string>[] = [{}, { 'preference-applied': 'wait=30' }]
  for (const said of headers) {
    const { url, connections } = await startScriptedService(t, connection =>
      answer(connection, connection.number < 5 ? 'PENDING' : 'SUCCESS', said),
    )
    const began = performance.now()
    await createClient({ url }).waitFor(TASK)
    t.equal(connections.length, 5)
    // Half of 50, 100, 200 and 400 ms at least.
    t.ok(performance.now() - began > 350, JSON.stringify(said))
  }
})

t.test('a wait that was cut by the service is asked again', async t => {
  const { url, connections } = await startScriptedService(t, async connection => {
    await sleep(1_000)
    answer(connection, connection.number < 3 ? 'PENDING' : 'SUCCESS', { 'preference-applied': 'wait=1' })
  })
  await createClient({ url }).waitFor(TASK)
  t.strictSame(connections.map(waitOf), [30, 30, 30])
})

t.test('waits leave connections to other calls: those beyond a bound look from time to time', async t => {
  const { url, connections } = await startScriptedService(t, connection => {
    if (Number.isNaN(waitOf(connection))) answer(connection, 'PENDING')
  })
  for (const [create, places] of [
    [createClient, 128],
    [createBrowserClient, 2],
  ] as const) {
    connections.length = 0
    const client = create({ url })
    const leaving = new AbortController()
    const waits = Array.from({ length: places + 20 }, () => client.waitFor(TASK, { signal: leaving.signal }))
    await until('all have asked', () => connections.length >= places + 20)
    t.equal((await client.get(TASK)).status, 'PENDING')
    t.equal(connections.filter(one => waitOf(one) > 0).length, places)
    leaving.abort(new Error('enough'))
    t.ok((await Promise.allSettled(waits)).every(({ status }) => status === 'rejected'))
  }
})

t.test('get waits as long as it was told to, over a lost connection as well', async t => {
  const { url, connections } = await startScriptedService(t, async connection => {
    await sleep(1_200)
    if (connection.number === 1) connection.drop()
    else answer(connection, 'PENDING', { 'preference-applied': `wait=${waitOf(connection)}` })
  })
  t.equal((await createClient({ url, timeoutMs: 400 }).get(TASK, { waitSeconds: 5 })).status, 'PENDING')
  const [first, second] = connections.map(waitOf)
  t.equal(first, 5)
  t.ok(second! >= 1 && second! <= 3, `the rest of the wait, ${second} s`)
  for (const waitSeconds of [-1, 1.5, 61])
    await t.rejects(createClient({ url }).get(TASK, { waitSeconds }), { name: 'TypeError' })
})

t.test('getIfChanged answers once there is something new', async t => {
  const { client } = await startFixture(t)
  const { taskId } = await client.submit({ type: 'image.generate' })
  const { task, etag } = await until('it has a place in the queue', async () => {
    const found = await client.getIfChanged(taskId, null)
    return found && /^"0\.\d+"$/.test(found.etag) && found
  })
  t.match(task, { taskId, status: 'PENDING' })
  t.equal(await client.getIfChanged(taskId, etag), null)
  t.equal(await client.getIfChanged(taskId, etag, { waitSeconds: 1 }), null)
  const changing = client.getIfChanged(taskId, etag, { waitSeconds: 20 })
  await client.note(taskId, 'please hurry')
  t.match(await changing, { task: { revision: 1 }, etag: /^"1/ })
})
