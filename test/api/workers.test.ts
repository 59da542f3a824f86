import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import type {
  ClaimAnswer,
  HeartbeatAnswer,
  ReportsAnswer,
  StartsAnswer,
} from '../../src/api/schemas/workers.ts'
import { aType, isProblem, OTHER_TOKEN, startApi, TOKEN, until } from './fixture.ts'

const { api, service } = await startApi(t)

/** Waits until so many tasks of a type may be claimed. */
const ready = (type: string, count: number) =>
  until(`${count} of ${type} are ready`, async () => {
    const rows = await service.pool.query('SELECT FROM rollcall.ready WHERE type = $1', [type])
    return rows.rowCount === count
  })

const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/

t.test('a claim hands tasks out started, highest priority first', async t => {
  const type = aType()
  await api.submit({ type, payload: { n: 1 }, labels: { a: 'b' }, correlationId: 'order-7' })
  const urgent = await api.submit({ type, priority: 9 })
  await ready(type, 2)
  const first = await api.claim({ types: [type] })
  t.match(first, { status: 200, body: { tasks: [{ taskId: urgent.taskId }] } })
  const { body } = await api.claim({ types: [type], max: 10 })
  t.equal(body.tasks.length, 1)
  t.matchOnly(body.tasks[0], {
    taskId: String,
    type,
    run: 1,
    attempt: 1,
    maxAttempts: 3,
    attemptsCharged: 0,
    payload: { n: 1 },
    context: null,
    labels: { a: 'b' },
    correlationId: 'order-7',
    leaseMs: 60_000,
    leaseUntil: ISO,
    executionDeadlineAt: ISO,
  })
  t.match(await api.task(body.tasks[0]!.taskId), {
    status: 'PROCESSING',
    worker: 'worker-1',
    why: /^worker worker-1 runs attempt 1 of 3, since .*Z; its (first )?lease is held until .*Z, no heartbeat/,
    nextDeadline: { timer: 'lease', to: 'RETRYING', effect: /tried again .* not charged/ },
    revision: 1,
  })
  t.match(await api.claim({ types: [type], waitMs: 0 }), { status: 200, body: { tasks: [] } })
})

t.test('a waiting claim is woken at once by work of its type', async t => {
  const waits: number[] = []
  for (let n = 0; n < 3; n++) {
    const type = aType()
    const waiting = api.claim({ types: ['something-else', type], waitMs: 30_000 })
    const { taskId } = await api.submit({ type })
    t.match(await waiting, { body: { tasks: [{ taskId }] } })
    const { createdAt, startedAt } = await api.task(taskId)
    waits.push(Date.parse(startedAt!) - Date.parse(createdAt))
  }
  // A claim that was not woken looks by itself half a second later; the best of three, for a busy machine.
  t.ok(Math.min(...waits) < 400, `${waits} ms`)
})

t.test('a worker that goes away while its claim waits takes no tasks along', async t => {
  const type = aType()
  const leaving = new AbortController()
  const body = { worker: 'gone', types: [type], claimId: randomUUID(), leaseToken: TOKEN, waitMs: 30_000 }
  const waiting = api.ask('POST', '/v1/workers/claim', { body, signal: leaving.signal })
  // The connection is there when the service has answered something that was sent after it.
  await api.claim({ types: [type], waitMs: 0 })
  leaving.abort()
  await t.rejects(waiting)
  const { taskId } = await api.submit({ type })
  t.match(await api.claim({ types: [type] }), { body: { tasks: [{ taskId }] } })
  t.match(await api.task(taskId), { worker: 'worker-1', attempt: 1 })
})

t.test('the same claim again is answered with the same tasks, until they are over', async t => {
  const type = aType()
  for (let n = 0; n < 3; n++) await api.submit({ type })
  const claim = { types: [type], max: 2, claimId: randomUUID() }
  await ready(type, 3)
  const first = await api.claim(claim)
  const ids = new Set(first.body.tasks.map(({ taskId }) => taskId))
  t.equal(ids.size, 2)
  for (const _ of [1, 2]) {
    const { body } = await api.claim(claim)
    t.strictSame(new Set(body.tasks.map(({ taskId }) => taskId)), ids)
  }
  for (const taskId of ids) t.strictSame(await api.eventTypes(taskId), ['TaskSubmitted', 'TaskStarted'])
  const { body } = await api.claim({ ...claim, max: 0 })
  t.equal(body.tasks.length, 2, 'a claim for none asks what it holds')
  t.match(await api.claim({ ...claim, leaseToken: OTHER_TOKEN, waitMs: 0 }), { body: { tasks: [] } })
})

t.test('a claim for no tasks takes none, and does not wait', async t => {
  const { type } = await api.submit()
  const began = performance.now()
  t.match(await api.claim({ types: [type], max: 0, waitMs: 30_000 }), { status: 200, body: { tasks: [] } })
  t.ok(performance.now() - began < 10_000)
  t.match(await api.claim({ types: [type] }), { body: { tasks: [{ attempt: 1 }] } })
})

t.test('claims do not share tasks', async t => {
  const type = aType()
  const tasks = Array.from({ length: 60 }, () => ({ type }))
  await api.post('/v1/tasks/batch', { tasks })
  const taken: string[] = []
  const worker = async (index: number): Promise<void> => {
    for (;;) {
      const { body } = await api.claim({ types: [type], max: 5, worker: `worker-${index}`, waitMs: 1_000 })
      taken.push(...body.tasks.map(({ taskId }) => taskId))
      if (body.tasks.length === 0) return
    }
  }
  await Promise.all(Array.from({ length: 6 }, (_, index) => worker(index)))
  t.equal(taken.length, 60)
  t.equal(new Set(taken).size, 60)
})

t.test('a claim that does not fit is refused, with its place', async t => {
  const cases: [object, RegExp][] = [
    [{ types: [] }, /^types/],
    [{ types: ['NOT A NAME'] }, /^types\.0/],
    [{ types: Array.from({ length: 33 }, (_, n) => `t${n}`) }, /^types/],
    [{ types: ['a'], max: -1 }, /^max/],
    [{ types: ['a'], max: 101 }, /^max/],
    [{ types: ['a'], waitMs: -1 }, /^waitMs/],
    [{ types: ['a'], waitMs: 30_001 }, /^waitMs/],
    [{ types: ['a'], leaseToken: 'short' }, /^leaseToken/],
    [{ types: ['a'], leaseToken: `${TOKEN}\u0000` }, /^leaseToken/],
    [{ types: ['a'], claimId: '' }, /^claimId/],
    [{ types: ['a'], leaseMs: 5 }, /^leaseMs: is not a known field/],
  ]
  for (const [claim, detail] of cases) isProblem(t, await api.claim({ ...claim }), 'invalid_request', detail)
})

t.test('many tasks are started by their ids, each answered in its place', async t => {
  const start = (tasks: object[], leaseToken = TOKEN, worker = 'worker-1') =>
    api.post<StartsAnswer>('/v1/workers/start', { worker, leaseToken, tasks })
  const type = aType()
  const [one, other, cancelled] = [
    await api.submit({ type }),
    await api.submit({ type }),
    await api.submit({ type }),
  ]
  await api.post(`/v1/tasks/${cancelled.taskId}/cancel`, {})
  const asked = [
    { taskId: one.taskId, attempt: 1 },
    { taskId: cancelled.taskId, attempt: 1 },
    { taskId: randomUUID(), attempt: 1 },
    { taskId: other.taskId.toUpperCase(), attempt: 1 },
    { taskId: one.taskId, attempt: 1 },
    { taskId: one.taskId, attempt: 2 },
  ]
  const first = await start(asked)
  t.equal(first.status, 200)
  const lease = { leaseUntil: ISO, executionDeadlineAt: ISO }
  t.match(first.body.results, [
    { taskId: one.taskId, kind: 'accepted', ...lease },
    { taskId: cancelled.taskId, kind: 'refused', code: 'task_finished' },
    { taskId: asked[2]!.taskId, kind: 'refused', code: 'not_found' },
    { taskId: other.taskId, kind: 'accepted', ...lease },
    { taskId: one.taskId, kind: 'repeated', ...lease },
    { taskId: one.taskId, kind: 'refused', code: 'unknown_attempt' },
  ])
  t.match(await api.task(one.taskId), { status: 'PROCESSING', worker: 'worker-1', revision: 1 })
  t.match((await start(asked.slice(0, 1))).body.results, [{ kind: 'repeated' }], 'with the same token')
  const another = await start(asked.slice(0, 1), OTHER_TOKEN, 'worker-2')
  t.match(another.body.results, [{ kind: 'refused', code: 'already_started', message: /held by worker-1/ }])
  t.equal((await api.history(one.taskId)).length, 2)
})

t.test('a START of many is checked as a whole', async t => {
  const start = (body: object) => api.post('/v1/workers/start', { worker: 'w', leaseToken: TOKEN, ...body })
  const task = { taskId: randomUUID(), attempt: 1 }
  const wrong: [object, RegExp][] = [
    [{ tasks: [] }, /^tasks/],
    [{ tasks: Array.from({ length: 1_001 }, () => task) }, /^tasks/],
    [{ tasks: [{ ...task, taskId: 'x' }] }, /^tasks\.0\.taskId/],
    [{ tasks: [{ ...task, attempt: 0 }] }, /^tasks\.0\.attempt/],
    [{ tasks: [{ ...task, more: 1 }] }, /more/],
    [{ tasks: [task], leaseToken: 'short' }, /^leaseToken/],
    [{ tasks: [task], worker: '' }, /^worker/],
  ]
  for (const [body, detail] of wrong) isProblem(t, await start(body), 'invalid_request', detail)
})

t.test('START', async t => {
  const start = (taskId: string, attempt: number, leaseToken = TOKEN, worker = 'worker-1') =>
    api.post<TaskView>(`/v1/tasks/${taskId}/start`, { worker, attempt, leaseToken })

  t.test('twice by the same worker is one START', async t => {
    const { taskId } = await api.submit()
    const first = await start(taskId, 1)
    t.match(first, { status: 200, body: { status: 'PROCESSING', worker: 'worker-1', revision: 1 } })
    const again = await start(taskId, 1)
    // Its lease is a signal: the second answer may know more of it.
    const { why, nextDeadline } = again.body
    t.strictSame(again.body, { ...first.body, why, nextDeadline })
    t.strictSame(await api.eventTypes(taskId), ['TaskSubmitted', 'TaskStarted'])
  })
  t.test("another worker's for the same attempt is refused", async t => {
    const { taskId } = await api.submit()
    await start(taskId, 1)
    isProblem(t, await start(taskId, 1, OTHER_TOKEN, 'worker-2'), 'already_started', /held by worker-1/)
    t.match(await api.task(taskId), { worker: 'worker-1', revision: 1 })
  })
  t.test('of an attempt that is over, or not reached, is refused', async t => {
    const task = await api.started({ retry: { initialDelayMs: 60_000 } })
    await api.command(task, 'fail', { error: { message: 'x' } })
    await api.post(`/v1/tasks/${task.taskId}/retry`)
    isProblem(t, await start(task.taskId, 1, OTHER_TOKEN), 'stale_attempt')
    isProblem(t, await start(task.taskId, 3, OTHER_TOKEN), 'unknown_attempt')
    t.match(await start(task.taskId, 2, OTHER_TOKEN), { status: 200, body: { attempt: 2 } })
  })
  t.test('before its time is refused', async t => {
    const { taskId } = await api.submit({ delayMs: 60_000 })
    isProblem(t, await start(taskId, 1), 'not_due')
  })
  t.test('S28 after SUCCEED leaves the task finished', async t => {
    const task = await api.started()
    await api.command(task, 'succeed', { result: 1 })
    const late = await start(task.taskId, 1)
    isProblem(t, late, 'task_finished')
    isProblem(t, await start(task.taskId, 1, OTHER_TOKEN), 'task_finished')
    t.match(await api.task(task.taskId), { status: 'SUCCESS', revision: 2 })
  })
  t.test('S28 SUCCEED without START is refused', async t => {
    const { taskId } = await api.submit()
    isProblem(t, await api.command({ taskId, attempt: 1 }, 'succeed'), 'illegal_transition', /PENDING/)
  })
  t.test('an attempt that is no whole number is refused', async t => {
    const { taskId } = await api.submit()
    for (const attempt of [0, -1, 1.5, '1', null, 1e308])
      isProblem(t, await start(taskId, attempt as number), 'invalid_request', /^attempt/)
  })
})

t.test('steps, progress and the end of a task', async t => {
  const task = await api.started()
  t.match(await api.command(task, 'step', { step: 'DOWNLOADING', worker: 'worker-1' }), {
    status: 200,
    body: { status: 'PROCESSING', step: 'DOWNLOADING', revision: 2 },
  })
  t.match(await api.command(task, 'step', { step: 'DOWNLOADING' }), { body: { revision: 2 } })
  isProblem(t, await api.command(task, 'step', { step: 'lower' }), 'invalid_request', /^step/)
  const fields = { result: { width: 1 }, resultUrl: 'https://images.example/1.png', worker: 'worker-1' }
  const done = await api.command(task, 'succeed', fields)
  t.match(done, {
    status: 200,
    body: { status: 'SUCCESS', progress: 1, step: null, why: 'succeeded in attempt 1', ...fields },
  })
  t.strictSame((await api.command(task, 'succeed', fields)).body, done.body, 'again is the same answer')
  t.match(
    (await api.history(task.taskId)).map(({ actor }) => actor.kind),
    ['client', 'worker', 'worker', 'worker'],
  )
  for (const resultUrl of ['javascript:alert(1)', 'ftp://x', 'x', `https://x/${'y'.repeat(2_048)}`])
    isProblem(t, await api.command(task, 'succeed', { resultUrl }), 'invalid_request', /^resultUrl/)
})

t.test('whoever does not hold the lease may not report', async t => {
  const task = await api.started()
  for (const command of ['succeed', 'step', 'fail', 'release'] as const) {
    const fields = { leaseToken: OTHER_TOKEN, step: 'X', error: { message: 'x' } }
    const { step, error, leaseToken } = fields
    const own = command === 'step' ? { step } : command === 'fail' ? { error } : {}
    isProblem(t, await api.command(task, command, { ...own, leaseToken }), 'not_lease_holder')
  }
  t.match(await api.task(task.taskId), { status: 'PROCESSING', revision: 1 })
})

t.test('a wish for the wait before the next attempt is heeded, 0 is none', async t => {
  const slow = await api.started()
  const fail = (retryAfterMs: unknown) =>
    api.command(slow, 'fail', { error: { message: 'busy' }, retryAfterMs })
  for (const bad of [-1, 1.5, '10', 1e308]) isProblem(t, await fail(bad), 'invalid_request', /^retryAfterMs/)
  const { body } = await fail(3_600_000)
  t.match(body, { status: 'RETRYING', nextDeadline: { timer: 'retry' }, why: /^attempt 1 ended: busy/ })
  t.equal(Date.parse(body.nextDeadline!.at) - Date.parse(body.updatedAt), 3_600_000)
  const quick = await api.started()
  const answer = await api.command(quick, 'fail', { error: { message: 'x' }, retryAfterMs: 0 })
  t.equal(answer.body.nextDeadline!.at, answer.body.updatedAt)
  t.match(await api.claim({ types: [quick.type] }), { body: { tasks: [{ attempt: 2, attemptsCharged: 1 }] } })
})

t.test('a released task goes back to the queue uncharged, with what it handed on', async t => {
  const task = await api.started()
  t.match(await api.command(task, 'release', { reason: 'shutting down', context: { page: 7 } }), {
    status: 200,
    body: { status: 'PENDING', attempt: 2, why: /^handed back/ },
  })
  const again = await api.claim({ types: [task.type] })
  t.match(again.body.tasks, [{ attempt: 2, attemptsCharged: 0, context: { page: 7 } }])
})

t.test('results that come too late', async t => {
  t.test('S03 FAIL of an old attempt leaves the live one untouched', async t => {
    const task = await api.started({ timeouts: { leaseMs: 50 }, retry: { initialDelayMs: 0 } })
    const second = (await api.claim({ types: [task.type], leaseToken: OTHER_TOKEN })).body.tasks[0]!
    t.match(second, { attempt: 2, attemptsCharged: 0 }, 'it was never heard, so it was not charged')
    const late = await api.command(task, 'fail', { error: { code: 'late', message: 'too late' } })
    isProblem(t, late, 'superseded', /Attempt 1 had timed out/)
    isProblem(t, await api.command(task, 'fail', { error: { message: 'again' } }), 'superseded')
    const events = await api.history(task.taskId)
    t.match(
      events.filter(({ type }) => type === 'LateResultRecorded'),
      [{ data: { attempt: 1, outcome: 'failed', content: { error: { code: 'late' } } } }],
      'kept once',
    )
    t.not((await api.task(task.taskId)).errorCode, 'late')
  })
  t.test('S19 success after the timeout is kept as evidence and changes nothing', async t => {
    const task = await api.started({ timeouts: { executionMs: 50 }, retry: { maxAttempts: 1 } })
    await until('it timed out', async () => (await api.task(task.taskId)).status === 'FAILED')
    isProblem(t, await api.command(task, 'succeed', { result: 'late' }), 'superseded')
    t.match(await api.task(task.taskId), { status: 'FAILED', result: null, errorCode: 'timeout_execution' })
    t.match((await api.history(task.taskId)).slice(-2), [
      { type: 'TaskTimedOut', actor: { kind: 'timer' } },
      { type: 'LateResultRecorded', data: { outcome: 'succeeded', content: { result: 'late' } } },
    ])
  })
  t.test('S21 a cancelled task that reports FAIL gets no retry', async t => {
    const task = await api.started()
    await api.post(`/v1/tasks/${task.taskId}/cancel`)
    isProblem(t, await api.command(task, 'fail', { error: { message: 'x' } }), 'superseded', /cancelled/)
    t.match(await api.task(task.taskId), { status: 'CANCELLED', attempt: 1 })
  })
  t.test('S23 after CANCELLED nothing changes the status, and all views agree', async t => {
    const task = await api.started()
    await api.post(`/v1/tasks/${task.taskId}/cancel`)
    isProblem(t, await api.command(task, 'succeed', { result: 1 }), 'superseded')
    isProblem(t, await api.command(task, 'release'), 'task_finished')
    isProblem(t, await api.command(task, 'step', { step: 'X' }), 'task_finished')
    const read = await api.task(task.taskId)
    t.match(read, { status: 'CANCELLED', result: null, revision: 3 })
    await until('the list has the last revision', async () => {
      const { body } = await api.get<{ tasks: TaskView[] }>(`/v1/tasks?type=${task.type}`)
      return body.tasks[0]?.status === 'CANCELLED' && body.tasks[0].revision === 3
    })
  })
  t.test('S31 SUCCEED in backoff is refused', async t => {
    const task = await api.started()
    await api.command(task, 'fail', { error: { message: 'x' }, retryAfterMs: 3_600_000 })
    isProblem(t, await api.command(task, 'succeed', { result: 1 }), 'superseded', /Attempt 1 had failed/)
    t.match(await api.task(task.taskId), { status: 'RETRYING' })
  })
})

t.test('heartbeats', async t => {
  const beat = (beats: object[], worker = 'worker-1') =>
    api.post<HeartbeatAnswer>('/v1/workers/heartbeat', { worker, beats })

  t.test('answer held, cancelled or lost, each in its place', async t => {
    const [held, cancelled, done, lost] = [
      await api.started(),
      await api.started(),
      await api.started(),
      await api.started(),
    ]
    await api.post(`/v1/tasks/${cancelled.taskId}/cancel`, { reason: 'no longer needed' })
    await api.command(done, 'succeed')
    const nobody = randomUUID()
    const fence = { attempt: 1, leaseToken: TOKEN }
    const ask = () =>
      beat([
        { taskId: held.taskId, ...fence, progress: 0.5 },
        { taskId: cancelled.taskId, ...fence },
        { taskId: done.taskId, ...fence },
        { taskId: lost.taskId, ...fence, leaseToken: OTHER_TOKEN },
        { taskId: nobody, ...fence },
      ])
    // A lease is a row beside the log, and follows it within moments.
    const { status, body } = await until('the leases of what is over are gone', async () => {
      const answer = await ask()
      return answer.body.results.filter(({ state }) => state === 'held').length === 1 && answer
    })
    t.equal(status, 200)
    t.matchOnly(body.results, [
      { taskId: held.taskId, attempt: 1, state: 'held', until: ISO, reason: null },
      { taskId: cancelled.taskId, attempt: 1, state: 'cancelled', until: null, reason: 'no longer needed' },
      { taskId: done.taskId, attempt: 1, state: 'lost', until: null, reason: /SUCCESS/ },
      { taskId: lost.taskId, attempt: 1, state: 'lost', until: null, reason: String },
      { taskId: nobody, attempt: 1, state: 'lost', until: null, reason: 'No task has this id.' },
    ])
    t.equal((await api.task(held.taskId)).progress, 0.5)
  })
  t.test('keep a lease that would have ended', async t => {
    const task = await api.started({ timeouts: { leaseMs: 1_000 } })
    const end = performance.now() + 2_500
    while (performance.now() < end) {
      const { body } = await beat([{ taskId: task.taskId, attempt: 1, leaseToken: TOKEN }])
      t.equal(body.results[0]!.state, 'held')
      await new Promise(resolve => setTimeout(resolve, 50))
    }
    t.match(await api.task(task.taskId), { status: 'PROCESSING', attempt: 1 })
  })
  t.test('for two attempts of one task are told apart', async t => {
    const first = await api.started()
    await api.command(first, 'fail', { error: { message: 'x' }, retryAfterMs: 0 })
    const second = (await api.claim({ types: [first.type], leaseToken: OTHER_TOKEN })).body.tasks[0]!
    const { body } = await beat([
      { taskId: second.taskId, attempt: 1, leaseToken: TOKEN },
      { taskId: second.taskId, attempt: 2, leaseToken: OTHER_TOKEN },
    ])
    t.match(body.results, [
      { attempt: 1, state: 'lost' },
      { attempt: 2, state: 'held' },
    ])
  })
  t.test('take any progress from 0 to 1, however small', async t => {
    const held = await api.started()
    for (const [progress, kept] of [
      [0.25, 0.25],
      [Number.MIN_VALUE, 0],
      [1, 1],
    ]) {
      t.match(await beat([{ taskId: held.taskId, attempt: 1, leaseToken: TOKEN, progress }]), { status: 200 })
      t.equal((await api.task(held.taskId)).progress, kept)
    }
  })
  t.test('that do not fit are refused', async t => {
    const good = { taskId: randomUUID(), attempt: 1, leaseToken: TOKEN }
    for (const progress of [-0.1, 1.1, '0.5', null])
      isProblem(t, await beat([{ ...good, progress }]), 'invalid_request', /^beats\.0\.progress/)
    isProblem(t, await beat([]), 'invalid_request', /^beats/)
    isProblem(t, await beat(Array(1_001).fill(good)), 'invalid_request', /^beats/)
    isProblem(t, await beat([{ ...good, more: 1 }]), 'invalid_request', /^beats\.0\.more/)
  })
})

t.test('reports', async t => {
  const report = (reports: unknown) =>
    api.post<ReportsAnswer>('/v1/workers/report', { worker: 'worker-1', reports })

  t.test('of many tasks are answered each in its place; a bad one is refused alone', async t => {
    const [one, two, three] = [await api.started(), await api.started(), await api.started()]
    const fence = { attempt: 1, leaseToken: TOKEN }
    const { status, body } = await report([
      { trigger: 'SUCCEED', taskId: one.taskId, ...fence, result: 1 },
      {
        trigger: 'FAIL',
        taskId: two.taskId,
        ...fence,
        error: { message: 'bad \u0000 \ud800' },
        retryable: false,
      },
      { trigger: 'SUCCEED', taskId: three.taskId, attempt: 0, leaseToken: TOKEN },
      { trigger: 'EXPLODE', taskId: three.taskId, ...fence },
      null,
      { trigger: 'SUCCEED', taskId: 'no-id', ...fence },
      { trigger: 'SUCCEED', taskId: three.taskId, ...fence, result: 'x'.repeat(300_000) },
      { trigger: 'STEP', taskId: three.taskId, ...fence, step: 'UPLOADING' },
      { trigger: 'RELEASE', taskId: three.taskId, ...fence, reason: null },
      { trigger: 'SUCCEED', taskId: three.taskId, ...fence },
      { trigger: 'SUCCEED', taskId: one.taskId, ...fence, result: 1 },
    ])
    t.equal(status, 200)
    t.matchOnly(body.results, [
      { taskId: one.taskId, kind: 'accepted', status: 'SUCCESS', revision: 2 },
      { taskId: two.taskId, kind: 'accepted', status: 'FAILED', revision: 2 },
      { taskId: three.taskId, kind: 'refused', code: 'invalid_request', message: /^attempt/ },
      { taskId: three.taskId, kind: 'refused', code: 'invalid_request', message: /^trigger/ },
      { taskId: null, kind: 'refused', code: 'invalid_request', message: String },
      { taskId: 'no-id', kind: 'refused', code: 'invalid_request', message: /^taskId/ },
      { taskId: three.taskId, kind: 'refused', code: 'content_too_large', message: /^result/ },
      { taskId: three.taskId, kind: 'accepted', status: 'PROCESSING', revision: 2 },
      { taskId: three.taskId, kind: 'accepted', status: 'PENDING', revision: 3 },
      { taskId: three.taskId, kind: 'refused', code: 'superseded', message: String },
      { taskId: one.taskId, kind: 'repeated', status: 'SUCCESS', revision: 2 },
    ])
    t.match(await api.task(two.taskId), { errorMessage: 'bad \ufffd \ufffd' })
  })
  t.test('of none, of 1,001, or of something else are refused whole', async t => {
    for (const reports of [[], Array(1_001).fill({}), {}, null])
      isProblem(t, await report(reports), 'invalid_request', /^reports/)
  })
})

t.test('a claim whose answer was lost is answered again, and each task has one outcome', async t => {
  const type = aType()
  await api.post('/v1/tasks/batch', { tasks: Array.from({ length: 5 }, () => ({ type })) })
  const claim = {
    worker: 'w',
    types: [type],
    max: 5,
    claimId: randomUUID(),
    leaseToken: TOKEN,
    waitMs: 10_000,
  }
  await ready(type, 5)
  const leaving = new AbortController()
  const lost = api.ask('POST', '/v1/workers/claim', { body: claim, signal: leaving.signal })
  await ready(type, 0)
  leaving.abort()
  await lost.catch(() => {})
  const { body } = await api.post<ClaimAnswer>('/v1/workers/claim', claim)
  t.equal(body.tasks.length, 5)
  for (const task of body.tasks) {
    t.equal((await api.command(task, 'succeed')).status, 200)
    t.strictSame(await api.eventTypes(task.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  }
})
