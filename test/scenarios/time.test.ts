/** What happened to others: timeouts that fired at once, and clocks that decided what was not theirs to decide. */
import t from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { aType, isProblem, startApi, TOKEN, until } from '../api/fixture.ts'
import { startWorkerProcess } from './processes.ts'

const DAY_MS = 24 * 60 * 60 * 1_000
const MAX_MS = 366 * DAY_MS
const { api, service } = await startApi(t)

const between = (from: string, to: string): number => Date.parse(to) - Date.parse(from)
const TIMEOUTS = ['queueMs', 'executionMs', 'leaseMs', 'totalMs']

/** Every place of a submit that takes milliseconds, and whether 0 is one: as JSON text around a value. */
const FIELDS: [string, boolean, (value: string) => string][] = [
  ...TIMEOUTS.map((name): (typeof FIELDS)[number] => [
    `timeouts.${name}`,
    false,
    value => `"timeouts":{"${name}":${value}}`,
  ]),
  ['delayMs', true, value => `"delayMs":${value}`],
  ['retry.initialDelayMs', true, value => `"retry":{"initialDelayMs":${value}}`],
  ['retry.maxDelayMs', true, value => `"retry":{"maxDelayMs":${value}}`],
]
const submit = (field: string, type = aType()) =>
  api.post<TaskView>('/v1/tasks', `{"type":"${type}",${field}}`)

t.test(
  'S61 huge times in every field that takes one: they work, or are refused; nothing fires at once',
  async t => {
    const ids: string[] = []
    for (const [name, , field] of FIELDS) {
      for (const ms of [2 ** 31 - 1, 2 ** 31, 365 * DAY_MS, MAX_MS]) {
        const { status, body } = await submit(field(`${ms}`))
        t.equal(status, 201, `${name} ${ms}`)
        ids.push(body.taskId)
        t.ok(between(body.createdAt, body.nextDeadline!.at) >= Math.min(ms, DAY_MS))
      }
      for (const value of [`${MAX_MS + 1}`, `${2 ** 53}`, '1e308', '8.64e15', '253402300800000']) {
        const answer = await submit(field(value))
        const { code } = answer.body as unknown as { code: 'invalid_request' | 'number_not_exact' }
        isProblem(t, answer, code === 'number_not_exact' ? code : 'invalid_request')
      }
      for (const value of ['9007199254740993', '1e400', '-1e400'])
        isProblem(t, await submit(field(value)), 'number_not_exact')
    }
    // All of them at once, and running too.
    const all = TIMEOUTS.map(name => `"${name}":${MAX_MS}`).join()
    const type = aType()
    const retry = `"retry":{"initialDelayMs":${MAX_MS},"maxDelayMs":${MAX_MS},"factor":100,"maxAttempts":2000}`
    const { body } = await submit(`"timeouts":{${all}},${retry}`, type)
    const [task] = (await api.claim({ types: [type] })).body.tasks
    t.equal(task!.taskId, body.taskId)
    ids.push(body.taskId)
    const delayed = await submit(`"timeouts":{${all}},"delayMs":${MAX_MS}`)
    ids.push(delayed.body.taskId)
    const failing = await api.started({
      retry: { initialDelayMs: MAX_MS, maxDelayMs: MAX_MS, jitter: 0 },
      timeouts: { totalMs: MAX_MS },
    })
    t.equal(
      (await api.command(failing, 'fail', { error: { message: 'x' }, retryAfterMs: MAX_MS })).status,
      200,
    )
    ids.push(failing.taskId)

    // Several looks of the timers; the last task makes sure that they look.
    const soon = await api.submit({ timeouts: { queueMs: 1 } })
    await until('1 ms is over', async () => (await api.task(soon.taskId)).status === 'FAILED')
    for (const id of ids) t.match((await api.task(id)).status, /^(PENDING|PROCESSING|RETRYING)$/)
    await until('the read model has them', async () => {
      const { rows } = await service.pool.query(
        'SELECT task_id FROM rollcall.deadlines WHERE task_id = ANY ($1)',
        [ids],
      )
      return rows.length === ids.length
    })
    const { rows } = await service.pool.query(
      `SELECT 1 FROM rollcall.deadlines WHERE due_at < now() + interval '1 hour' OR due_at > now() + interval '3 years'`,
    )
    t.strictSame(rows, [])
  },
)

t.test('S61 dates beyond what a database holds are refused', async t => {
  for (const runAt of [
    '+275760-09-13T00:00:00Z',
    '275760-09-13T00:00:00.000Z',
    '9999-12-31T23:59:59Z',
    '-271821-04-20T00:00:00Z',
    '+010000-01-01T00:00:00Z',
    'infinity',
  ])
    isProblem(t, await api.post('/v1/tasks', { type: 'a', runAt }), 'invalid_request', /^runAt/)
  for (const runAt of ['0000-01-01T00:00:00Z', '0001-01-01T00:00:00Z', '1969-12-31T23:59:59Z']) {
    const { body } = await api.post<TaskView>('/v1/tasks', { type: 'a', runAt })
    t.equal(body.runAt, body.createdAt, 'the past is at once')
  }
})

t.test('S63 zero, negative, broken and worded times, in every field that takes one', async t => {
  const nothing = [
    '-1',
    '-0.5',
    '0.5',
    '1.5',
    '"10"',
    '"0"',
    'null',
    '"P1D"',
    '"2030-01-01T00:00:00Z"',
    'true',
    '[]',
    '[1]',
    '{}',
    '""',
  ]
  for (const [name, zero, field] of FIELDS) {
    for (const value of nothing)
      isProblem(t, await submit(field(value)), 'invalid_request', new RegExp(`^${name.replace('.', '\\.')}`))
    for (const value of ['0', '-0', '0.0', '0e5']) {
      const answer = await submit(field(value))
      if (zero) t.equal(answer.status, 201, `${name} ${value}`)
      else isProblem(t, answer, 'invalid_request', /at least 1 ms; leave it out for the default/)
    }
  }
  // What workers send.
  const task = await api.started()
  const error = { message: 'x' }
  for (const value of nothing.filter(value => value !== 'null'))
    isProblem(
      t,
      await api.command(task, 'fail', { error, retryAfterMs: JSON.parse(value) }),
      'invalid_request',
      /^retryAfterMs/,
    )
  for (const value of nothing)
    isProblem(t, await api.claim({ types: ['a'], waitMs: JSON.parse(value) }), 'invalid_request', /^waitMs/)
  t.equal((await api.task(task.taskId)).revision, 1)
})

t.test('S63 a delay of 0 is none', async t => {
  const { body } = await submit('"delayMs":0')
  t.equal(body.runAt, body.createdAt)
  t.match((await api.claim({ types: [body.type], waitMs: 20_000 })).body.tasks, [{ taskId: body.taskId }])
})

for (const skewMs of [5 * 60_000, -5 * 60_000])
  t.test(`S65 a worker whose clock is ${skewMs / 60_000} minutes off works like any other`, async t => {
    const worker = startWorkerProcess(t, api.url, { skewMs })
    // Longer than its lease, which its clock believes to be over or far away.
    const { taskId } = await api.submit({
      type: 'scenario.work',
      payload: { workMs: 2_500 },
      timeouts: { leaseMs: 1_000, executionMs: 60_000 },
    })
    const { clock } = await worker.began(taskId)
    const off = clock! - Date.now()
    t.ok(Math.abs(off - skewMs) < 30_000, `its clock is ${off} ms ahead`)
    const task = await until('it is over', async () => {
      const read = await api.task(taskId)
      return (read.status === 'SUCCESS' || read.attempt > 1) && read
    })
    t.match(task, { status: 'SUCCESS', attempt: 1, result: { at: String } })
    // Its own time is content; what counts is the service's.
    t.ok(Math.abs(between(task.finishedAt!, (task.result as { at: string }).at) - skewMs) < 30_000)
    const events = await api.history(taskId)
    t.strictSame(
      events.map(({ type }) => type),
      ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'],
    )
    for (const { at } of events) t.ok(Math.abs(Date.parse(at) - Date.now()) < 60_000)

    // One that dies is noticed by the service's clock.
    const silent = await api.submit({
      type: 'scenario.work',
      payload: { workMs: 600_000 },
      timeouts: { leaseMs: 1_000 },
    })
    await worker.began(silent.taskId)
    const killedAt = performance.now()
    worker.child.kill('SIGKILL')
    await until('its attempt is over', async () => (await api.task(silent.taskId)).attempt > 1)
    const tookMs = performance.now() - killedAt
    t.ok(tookMs < 5_000, `${Math.round(tookMs)} ms`)
    await api.post(`/v1/tasks/${silent.taskId}/cancel`)
  })

t.test(
  'S65 a time that a worker sends along is no field that counts: refused where it could be mistaken',
  async t => {
    const task = await api.started()
    for (const field of ['at', 'time', 'startedAt', 'finishedAt', 'timestamp'])
      isProblem(
        t,
        await api.command(task, 'succeed', { [field]: '2020-01-01T00:00:00Z' }),
        'invalid_request',
        new RegExp(field),
      )
    const beats = [{ taskId: task.taskId, attempt: 1, leaseToken: TOKEN, at: '2020-01-01T00:00:00Z' }]
    isProblem(t, await api.post('/v1/workers/heartbeat', { worker: 'w', beats }), 'invalid_request')
    t.equal((await api.task(task.taskId)).status, 'PROCESSING')
  },
)
