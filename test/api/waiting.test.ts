/** Prefer: wait and ETags: who is answered when, and with what. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { preferredWait } from '../../src/api/prefer.ts'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { type Answer, isProblem, startApi, TOKEN, until } from './fixture.ts'

const { api, service } = await startApi(t)

const get = (taskId: string, headers: Record<string, string> = {}) =>
  api.get<TaskView>(`/v1/tasks/${taskId}`, headers)
const waits = (taskId: string, headers: Record<string, string> = {}) =>
  get(taskId, { prefer: 'wait=50', ...headers })

/** How many requests wait by now, as the service counts them. */
const waiting = async (): Promise<number> =>
  Number(/^rollcall_waits_open (\d+)$/m.exec((await api.get('/metrics')).text)?.[1])
const untilWaiting = (count: number) => until(`${count} wait`, async () => (await waiting()) === count)

/** Sends a request that waits, and then does something that it waits for. */
async function answeredAfter(
  t: Test,
  asked: Promise<Answer<TaskView>>,
  act: () => Promise<unknown>,
): Promise<Answer<TaskView>> {
  let isAnswered = false
  void asked.then(() => {
    isAnswered = true
  })
  await untilWaiting(1)
  t.notOk(isAnswered, 'it waits')
  await act()
  const answer = await asked
  await untilWaiting(0)
  return answer
}

t.test('the wait that a Prefer header asks for', async t => {
  const cases: [string | undefined, number | null][] = [
    ['wait=10', 10],
    ['wait = 10', 10],
    ['Wait=10', 10],
    ['wait="10"', 10],
    ['respond-async, wait=10', 10],
    ['return=minimal; foo="a, wait=3", wait=10; bar', 10],
    ['wait=10, wait=20', 10],
    ['wait=61', 60],
    ['wait=999999999', 60],
    ['wait=0', null],
    ['wait=-1', null],
    ['wait=1.5', null],
    ['wait=9999999999', null],
    ['wait=ten', null],
    ['wait', null],
    ['await=10', null],
    ['', null],
    [undefined, null],
  ]
  for (const [header, seconds] of cases) t.equal(preferredWait(header), seconds, `${header}`)
})

t.test('a wait ends when the task is final, not when it moves', async t => {
  const task = await api.submit()
  const answer = await answeredAfter(t, waits(task.taskId), async () => {
    const { tasks } = (await api.claim({ types: [task.type] })).body
    await api.command(tasks[0]!, 'succeed', { result: { n: 1 } })
  })
  t.match(answer, {
    status: 200,
    headers: { 'preference-applied': 'wait=50', etag: '"2"' },
    body: { status: 'SUCCESS', result: { n: 1 } },
  })
  const again = await waits(task.taskId)
  t.match(again, { status: 200, body: { status: 'SUCCESS' } }, 'a final task is answered at once')
})

t.test('a wait whose time is over is answered with the state of then', async t => {
  const { taskId } = await api.submit()
  const answer = await get(taskId, { prefer: 'wait=1' })
  t.match(answer, { status: 200, headers: { 'preference-applied': 'wait=1' }, body: { status: 'PENDING' } })
  const cut = await answeredAfter(t, get(taskId, { prefer: 'wait=7200' }), () =>
    api.post(`/v1/tasks/${taskId}/cancel`),
  )
  t.equal(cut.headers['preference-applied'], 'wait=60', 'a longer one is cut, and told so')
})

t.test('with If-None-Match it ends as soon as the task has another ETag', async t => {
  const { taskId } = await api.submit()
  // Its place in the queue is known a moment after it, and is another ETag.
  const { headers } = await until('its place is known', async () => {
    const answer = await get(taskId)
    return answer.body.position !== null && answer
  })
  const etag = headers.etag!
  t.match(await get(taskId, { 'if-none-match': etag }), { status: 304, headers: { etag }, text: '' })
  t.match(await get(taskId, { 'if-none-match': `"9.9", W/${etag}` }), { status: 304 }, 'one of a list')
  t.match(await get(taskId, { 'if-none-match': '*' }), { status: 304 })
  t.match(await get(taskId, { 'if-none-match': '"7"' }), { status: 200, body: { taskId } })
  t.match(
    await get(taskId, { prefer: 'wait=1', 'if-none-match': etag }),
    { status: 304, headers: { etag, 'preference-applied': 'wait=1' } },
    'after its time it is the same still',
  )
  t.match(await waits(taskId, { 'if-none-match': '"7"' }), { status: 200 }, 'another one is answered at once')
  const answer = await answeredAfter(t, waits(taskId, { 'if-none-match': etag }), () =>
    api.post(`/v1/tasks/${taskId}/notes`, { note: 'x' }),
  )
  t.match(answer, { status: 200, body: { status: 'PENDING', revision: 1 } }, 'an event is enough')
})

t.test('a heartbeat and a place in the queue move the ETag too', async t => {
  const started = await api.started()
  const { etag } = (await get(started.taskId)).headers
  const beat = () => {
    const { taskId, attempt } = started
    const beats = [{ taskId, attempt, leaseToken: TOKEN, progress: 0.25 }]
    return api.post('/v1/workers/heartbeat', { worker: 'worker-1', beats })
  }
  const running = await answeredAfter(t, waits(started.taskId, { 'if-none-match': etag! }), beat)
  t.match(running, { status: 200, headers: { etag: /^"1\.\d{13}"$/ }, body: { progress: 0.25 } })

  const first = await api.submit()
  const second = await api.submit({ type: first.type })
  const behind = await until('its place is known', async () => {
    const answer = await get(second.taskId)
    return answer.body.position?.rank === 2 && answer
  })
  const moved = await answeredAfter(t, waits(second.taskId, { 'if-none-match': behind.headers.etag! }), () =>
    api.post(`/v1/tasks/${first.taskId}/cancel`),
  )
  t.match(moved, { status: 200, body: { revision: 0, position: { rank: 1 } } })
})

t.test('a task that is not there is not waited for', async t => {
  isProblem(t, await waits(randomUUID()), 'not_found')
  t.equal(await waiting(), 0)
})

t.test('S74 what comes between the look and the wait is heard of', async t => {
  // The task is cancelled at every point of the request's way, from before it is read until it waits.
  const answers = await Promise.all(
    Array.from({ length: 40 }, async (_, n) => {
      const { taskId } = await api.submit()
      const asked = waits(taskId)
      await new Promise(resolve => setTimeout(resolve, n / 4))
      await api.post(`/v1/tasks/${taskId}/cancel`)
      return asked
    }),
  )
  t.strictSame([...new Set(answers.map(({ body }) => body.status))], ['CANCELLED'])
  t.equal(await waiting(), 0)
})

t.test('who goes away waits no more', async t => {
  const { taskId } = await api.submit()
  const gone = new AbortController()
  const asked = api.ask('GET', `/v1/tasks/${taskId}`, { headers: { prefer: 'wait=50' }, signal: gone.signal })
  await untilWaiting(1)
  gone.abort()
  await t.rejects(asked)
  await untilWaiting(0)
  t.ok(service.changes.size <= 0, 'nothing is told for it either')
})

t.test('many wait for one task, and each is answered', async t => {
  const { taskId } = await api.submit()
  const asked = Array.from({ length: 100 }, () => waits(taskId))
  await untilWaiting(100)
  await api.post(`/v1/tasks/${taskId}/cancel`, { reason: 'enough' })
  for (const { body } of await Promise.all(asked)) t.equal(body.status, 'CANCELLED')
})
