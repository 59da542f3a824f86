/** /metrics and refusals over HTTP, on a real service. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { TaskRefusals } from '../../src/api/schemas/refusals.ts'
import { execute, testServer } from '../support/postgres.ts'
import { aType, isProblem, OTHER_TOKEN, startApi, until } from './fixture.ts'

t.test('/metrics has what happened, in the text format of Prometheus', async t => {
  const { api } = await startApi(t)
  const task = await api.started()
  await api.command(task, 'succeed', { result: 1 })
  await api.command(task, 'start', { worker: 'another', leaseToken: OTHER_TOKEN })
  await api.get('/no/such/route')
  await api.get(`/v1/tasks/${randomUUID()}`)
  const answer = await api.get('/metrics')
  t.match(answer, {
    status: 200,
    headers: { 'content-type': /^text\/plain; version=0\.0\.4; charset=utf-8$/ },
  })
  const has = (sample: string) => t.ok(answer.text.includes(`\n${sample}\n`), sample)
  const transition = (from: string, to: string, trigger: string) =>
    has(`rollcall_transitions_total{type="${task.type}",from="${from}",to="${to}",trigger="${trigger}"} 1`)
  transition('none', 'PENDING', 'SUBMIT')
  transition('PENDING', 'PROCESSING', 'START')
  transition('PROCESSING', 'SUCCESS', 'SUCCEED')
  has('rollcall_refusals_total{trigger="START",code="task_finished"} 1')
  has('rollcall_command_seconds_count{trigger="SUCCEED"} 1')
  const requests = (route: string, method: string, status: number) =>
    has(`rollcall_http_request_seconds_count{route="${route}",method="${method}",status="${status}"} 1`)
  requests('/v1/tasks', 'POST', 201)
  requests('/v1/tasks/:id/start', 'POST', 409)
  requests('/v1/tasks/:id', 'GET', 404)
  requests('none', 'none', 404)
  t.notMatch(answer.text, new RegExp(task.taskId), 'no task is named')
  t.notMatch(answer.text, /worker-1|another/, 'no worker is named')
})

t.test(
  'the gauges follow the read model; while the database is away they are absent and the scrape succeeds',
  async t => {
    const server = await testServer(t)
    const { api } = await startApi(t, { databaseUrl: server.url })
    const { type } = await api.submit()
    const shows = (sample: string) =>
      until(`it shows ${sample}`, async () => {
        const { status, text } = await api.get('/metrics')
        t.equal(status, 200)
        return text.includes(`\n${sample}\n`) && text
      })
    await shows(`rollcall_tasks{type="${type}",status="PENDING"} 1`)
    const text = await shows('rollcall_projection_lag_seconds 0')
    for (const sample of [
      'overdue_tasks 0',
      'unaccounted_tasks 0',
      'set_aside_tasks 0',
      'projection_lag_events 0',
    ])
      t.match(text, `\nrollcall_${sample}\n`)
    await server.stop()
    const without = await shows('rollcall_read_model_reachable 0')
    t.notMatch(without, /^rollcall_(tasks|overdue|unaccounted|set_aside|drift|projection)\w*[{ ]/m)
    t.match(without, /^rollcall_transitions_total\{.*\} 1$/m)
    await server.restart()
    await shows('rollcall_read_model_reachable 1')
  },
)

t.test('a task shows what it was refused; its history stays as it is', async t => {
  const { api } = await startApi(t)
  const task = await api.started()
  t.same((await api.get(`/v1/tasks/${task.taskId}/refusals`)).body, {
    taskId: task.taskId,
    count: 0,
    first: [],
    last: [],
  })
  const refusedStart = await api.command(task, 'start', { worker: 'thief', leaseToken: OTHER_TOKEN })
  isProblem(t, refusedStart as never, 'already_started')
  const read = async () => (await api.get<TaskRefusals>(`/v1/tasks/${task.taskId}/refusals`)).body
  const { first } = await until('it is kept', async () => {
    const refusals = await read()
    return refusals.count === 1 && refusals
  })
  t.match(first, [
    {
      number: 1,
      trigger: 'START',
      code: 'already_started',
      revision: 1,
      actor: { kind: 'worker', id: 'thief' },
    },
  ])
  t.same(await api.eventTypes(task.taskId), ['TaskSubmitted', 'TaskStarted'])
})

t.test('refusals of a task that is not there: 404, and nothing is kept for it', async t => {
  const { api, service, databaseUrl } = await startApi(t)
  const id = randomUUID()
  isProblem(t, await api.post(`/v1/tasks/${id}/cancel`), 'not_found')
  isProblem(t, await api.get(`/v1/tasks/${id}/refusals`), 'not_found')
  isProblem(t, await api.get('/v1/tasks/nonsense/refusals'), 'invalid_request')
  const { taskId } = await api.submit({ type: aType() })
  await api.post(`/v1/tasks/${taskId}/cancel`)
  isProblem(t, await api.post(`/v1/tasks/${taskId}/retry`), 'illegal_transition')
  await service.stop()
  t.same(
    await execute(databaseUrl, 'SELECT task_id, code FROM rollcall.refusals'),
    [{ task_id: taskId, code: 'illegal_transition' }],
    'a stop writes what was to be kept',
  )
})
