/** What happened to others: streams and waits that lost, doubled or hung when something was restarted. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { type Api, startApi, until } from '../api/fixture.ts'
import { freePort } from '../cli/fixture.ts'
import { testServer } from '../support/postgres.ts'
import { openSse, type Sse } from '../support/sse.ts'
import { STOP_MS, serve } from './processes.ts'

const open = (t: Test, { url }: Api, path: string, lastEventId: string | null = null): Promise<Sse> =>
  openSse(t, url + path, lastEventId === null ? {} : { 'last-event-id': lastEventId })
const revisionIn = (data: Record<string, unknown>) =>
  (data.task as { revision?: number } | undefined)?.revision
const untilRevision = (sse: Sse, revision: number) =>
  sse.until(`revision ${revision}`, ({ data }) => data.event !== null && revisionIn(data) === revision)
const begun = (sse: Sse) => sse.until('it began', ({ event }) => event === 'task' || event === 'place')
/** The revisions of the transitions it was told. */
const transitions = ({ messages }: Sse): number[] =>
  messages
    .filter(({ event, data }) => event === 'task' && data.event !== null)
    .map(({ data }) => revisionIn(data)!)
const upTo = (last: number): number[] => Array.from({ length: last }, (_, index) => index + 1)
const note = (api: Api, taskId: string) => api.post(`/v1/tasks/${taskId}/notes`, { note: 'x' })

t.test(
  'S23 cancelled, and then everything else: streams and waits of every process say CANCELLED',
  async t => {
    const { api, databaseUrl } = await startApi(t)
    const { api: other } = await startApi(t, { databaseUrl })
    const task = await api.started()
    const path = `/v1/tasks/${task.taskId}/events`
    const streams = await Promise.all([api, other].map(at => open(t, at, path)))
    const filters = await Promise.all([api, other].map(at => open(t, at, `/v1/events?type=${task.type}`)))
    const waits = [api, other].map(at => at.get<TaskView>(`/v1/tasks/${task.taskId}`, { prefer: 'wait=50' }))
    await Promise.all([...streams, ...filters].map(begun))
    await api.post(`/v1/tasks/${task.taskId}/cancel`)
    for (const at of [other, api]) await at.command(task, 'succeed', { result: 1 })
    for (const { body } of await Promise.all(waits)) t.equal(body.status, 'CANCELLED')
    for (const sse of streams) {
      await sse.untilEnd()
      t.equal(sse.told().at(-1), 'TaskCancelled CANCELLED 2')
    }
    for (const sse of filters) {
      await untilRevision(sse, 3)
      t.strictSame(sse.told(), ['TaskCancelled CANCELLED 2', 'LateResultRecorded CANCELLED 3'])
    }
  },
)

t.test('S69 Postgres restarts: streams stay open, and tell all of it once', async t => {
  const postgres = await testServer(t)
  const { api } = await startApi(t, { databaseUrl: postgres.url })
  const { taskId, type } = await api.submit()
  const streams = [
    await open(t, api, `/v1/tasks/${taskId}/events`),
    await open(t, api, `/v1/events?type=${type}`),
  ]
  await Promise.all(streams.map(begun))
  // Where it is read while the log is away it is answered so, and asks again.
  const waiting = (async () => {
    for (;;) {
      const answer = await api.get<TaskView>(`/v1/tasks/${taskId}`, { prefer: 'wait=50' })
      if (answer.status !== 503) return answer
      await sleep(100)
    }
  })()
  let revision = 0
  for (let time = 1; time <= 2; time++) {
    for (let n = 0; n < 20; n++) await note(api, taskId)
    revision += 20
    // Some are told by then, some are not.
    await postgres.stop()
    await until('it noticed', async () => (await api.get('/readyz')).status === 503)
    await postgres.restart()
    await until('a note is taken', async () => (await note(api, taskId)).status === 200)
    revision = (await api.task(taskId)).revision
  }
  await api.post(`/v1/tasks/${taskId}/cancel`)
  for (const sse of streams) {
    await untilRevision(sse, revision + 1)
    t.strictSame(transitions(sse), upTo(revision + 1))
  }
  t.match(await waiting, { status: 200, body: { status: 'CANCELLED' } }, 'who waits hears of it too')
})

t.test('S72 SIGTERM with 200 streams and 50 long polls: all end in order, and it ends in time', async t => {
  const postgres = await testServer(t)
  const { api, running } = await serve(t, postgres.url, await freePort())
  const { taskId, type } = await api.submit()
  const paths = [`/v1/tasks/${taskId}/events`, `/v1/events?type=${type}`]
  const streams = await Promise.all(Array.from({ length: 200 }, (_, n) => open(t, api, paths[n % 2]!)))
  await Promise.all(streams.map(begun))
  const polls = Array.from({ length: 50 }, () =>
    api.get<TaskView>(`/v1/tasks/${taskId}`, { prefer: 'wait=50' }),
  )
  await until('they wait', async () => /^rollcall_waits_open 50$/m.test((await api.get('/metrics')).text))
  t.match((await api.get('/metrics')).text, /^rollcall_streams_open 200$/m)
  const stoppedAt = performance.now()
  running.child.kill('SIGTERM')
  const { code } = await running.ended
  t.equal(code, 0)
  const tookMs = Math.round(performance.now() - stoppedAt)
  t.ok(tookMs < STOP_MS, `the service ended in ${tookMs} ms`)
  for (const answer of await Promise.all(polls))
    if (answer.status !== 200 || answer.body.status !== 'PENDING') t.fail(`${answer.status} ${answer.text}`)
  await Promise.all(streams.map(sse => sse.untilEnd()))
  t.ok(
    streams.every(({ endedWell }) => endedWell),
    'no stream was cut',
  )
  for (const { messages } of streams)
    if (JSON.stringify(messages.at(-1)?.data) !== '{"reason":"shutting_down"}')
      t.fail(JSON.stringify(messages.at(-1)))
  const hints = new Set(streams.map(({ retryMs }) => retryMs!))
  t.ok(
    [...hints].every(ms => ms >= 1_000 && ms <= 5_000),
    'each is told when to come back',
  )
  t.ok(hints.size > 50, 'not all at once')
})

t.test(
  'a service that is killed while events flow: who comes back misses nothing and sees nothing twice',
  async t => {
    const postgres = await testServer(t)
    const port = await freePort()
    // The one that takes the commands lives on.
    const { api: writer } = await startApi(t, { databaseUrl: postgres.url })
    let { api, running } = await serve(t, postgres.url, port)
    const { taskId, type } = await writer.submit()
    const paths = [`/v1/tasks/${taskId}/events`, `/v1/events?type=${type}`]
    const told: number[][] = [[], []]
    let streams = await Promise.all(paths.map(path => open(t, api, path)))
    await Promise.all(streams.map(begun))
    let flowing = true
    let revision = 0
    const flow = (async () => {
      while (flowing) {
        if ((await note(writer, taskId)).status === 200) revision++
        // Fewer than are told again, however long a start takes.
        await sleep(40)
      }
    })()
    for (let time = 1; time <= 2; time++) {
      const from = revision
      await Promise.all(streams.map(sse => untilRevision(sse, from + 10)))
      running.child.kill('SIGKILL')
      await Promise.all(streams.map(sse => sse.untilEnd()))
      ;({ api, running } = await serve(t, postgres.url, port))
      for (const [index, sse] of streams.entries()) told[index]!.push(...transitions(sse))
      streams = await Promise.all(streams.map((sse, index) => open(t, api, paths[index]!, sse.lastEventId)))
    }
    flowing = false
    await flow
    for (const [index, sse] of streams.entries()) {
      await untilRevision(sse, revision)
      t.strictSame([...told[index]!, ...transitions(sse)], upTo(revision), `${revision} events`)
      t.notOk(sse.messages.some(({ event }) => event === 'resync'))
    }
    running.child.kill('SIGTERM')
    await running.ended
  },
)
