/** What happened to others: two things at once, and the wrong one won. */
import t, { type Test } from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import type { ClaimedTask } from '../../src/api/schemas/workers.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { type Api, isProblem, OTHER_TOKEN, startApi, until } from '../api/fixture.ts'
import { start, succeed, timeout } from '../domain/specification.ts'
import {
  ask,
  ManualClock,
  mustBe,
  said,
  startEngine,
  submitTasks,
  submitting,
  typesOf,
  wrapLog,
} from '../support/service-parts.ts'

const { api, databaseUrl } = await startApi(t)
const HOUR_MS = 60 * 60 * 1_000
const NOW = { initialDelayMs: 0, jitter: 0 }

const FINAL = /^Task(Succeeded|Failed|TimedOut|Cancelled)$/

/** One final event, and every view says the same. */
async function endsOnce(t: Test, from: Api, taskId: string, status: TaskView['status']) {
  const types = await from.eventTypes(taskId)
  t.equal(types.filter(type => FINAL.test(type)).length, 1, `${types}`)
  const task = await from.task(taskId)
  t.equal(task.status, status)
  await until('the list agrees', async () => {
    const { body } = await from.get<{ tasks: TaskView[] }>(`/v1/tasks?type=${task.type}`)
    return body.tasks[0]?.revision === task.revision && body.tasks[0].status === status
  })
}

t.test(
  'S03 an old attempt fails while the next one runs: whatever it sends, the live one goes on',
  async t => {
    const old = await api.started({ timeouts: { leaseMs: 1_500 }, retry: NOW })
    const live = (await api.claim({ types: [old.type], leaseToken: OTHER_TOKEN, waitMs: 20_000 })).body
      .tasks[0]!
    t.equal(live.attempt, 2)
    // Its own lease is as short: it must be heard.
    const beat = () =>
      api.post('/v1/workers/heartbeat', {
        worker: 'worker-2',
        beats: [{ taskId: live.taskId, attempt: 2, leaseToken: OTHER_TOKEN }],
      })
    const before = await api.task(live.taskId)
    const sent: [Parameters<Api['command']>[1], object][] = [
      ['fail', { error: { code: 'late', message: 'too late' } }],
      ['fail', { error: { code: 'late', message: 'too late' }, retryable: false }],
      ['release', {}],
      ['step', { step: 'DOWNLOADING' }],
      ['succeed', { result: 'late' }],
    ]
    for (const [command, fields] of sent) {
      const answer = await api.command(old, command, { ...fields })
      t.ok(answer.status === 409, `${command}: ${answer.status} ${answer.text}`)
      await beat()
    }
    const after = await api.task(live.taskId)
    t.match(after, { status: 'PROCESSING', attempt: 2, result: null, worker: before.worker })
    t.strictSame([after.errorCode, after.errorMessage], [before.errorCode, before.errorMessage])
    const kept = (await api.history(live.taskId)).filter(({ type }) => type === 'LateResultRecorded')
    t.match(kept, [{ data: { attempt: 1, outcome: 'failed' } }], 'kept once')
    t.notOk(
      (await api.history(live.taskId)).some(({ type }) => /Failed$/.test(type)),
      'no failure counts',
    )
  },
)

t.test('S19 success 300 ms after the timeout: evidence, and no outcome', async t => {
  const task = await api.started({ timeouts: { executionMs: 500 }, retry: { maxAttempts: 1 } })
  await new Promise(resolve => setTimeout(resolve, 800))
  await until('it timed out', async () => (await api.task(task.taskId)).status === 'FAILED')
  isProblem(t, await api.command(task, 'succeed', { result: 'late' }), 'superseded')
  const report = { trigger: 'SUCCEED', taskId: task.taskId, attempt: 1, leaseToken: OTHER_TOKEN }
  const { body } = await api.post<{ results: unknown[] }>('/v1/workers/report', {
    worker: 'w',
    reports: [report],
  })
  t.match(body.results, [{ kind: 'refused' }])
  t.match(await api.task(task.taskId), { result: null, errorCode: 'timeout_execution' })
  await endsOnce(t, api, task.taskId, 'FAILED')
})

t.test(
  'S20 success 1 ms before the deadline: a timer that believes otherwise conflicts, looks and does nothing',
  async t => {
    const log = createMemoryEventLog()
    const clock = new ManualClock()
    let conflicts = 0
    const counting = wrapLog(log, {
      appendMany: async appends => {
        const results = await log.appendMany(appends)
        conflicts += results.filter(({ kind }) => kind === 'conflict').length
        return results
      },
    })
    const worker = await startEngine(log, { clock })
    const monitor = await startEngine(counting, { clock })
    const [taskId] = (await submitTasks(worker, 1)) as [string]
    // The timers' process has seen it start, and nothing after that: its own memory is the old view.
    const { task } = mustBe('accepted', await monitor.execute(ask(taskId, start())))
    const { executionDeadlineAt } = task as Extract<typeof task, { status: 'PROCESSING' }>
    clock.at = executionDeadlineAt - 1
    conflicts = 0
    mustBe('accepted', await worker.execute(ask(taskId, succeed())))
    clock.at = executionDeadlineAt + 5_000
    const answer = await monitor.execute(ask(taskId, timeout('execution')))
    t.notOk(['accepted', 'log_unavailable'].includes(said(answer)), said(answer))
    t.equal(conflicts, 1, 'it tried on its old view')
    t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    t.match(await monitor.read(taskId), { kind: 'task', task: { status: 'SUCCESS' } })
  },
)

t.test(
  'S21 a cancelled task reports FAIL with attempts left: no second attempt is ever handed out',
  async t => {
    const task = await api.started({ retry: { ...NOW, maxAttempts: 5 } })
    await api.post(`/v1/tasks/${task.taskId}/cancel`, { reason: 'no longer needed' })
    isProblem(t, await api.command(task, 'fail', { error: { message: 'x' }, retryAfterMs: 0 }), 'superseded')
    // The timers have looked several times when the wait is over.
    t.match(await api.claim({ types: [task.type], waitMs: 1_000 }), { status: 200, body: { tasks: [] } })
    await endsOnce(t, api, task.taskId, 'CANCELLED')
    t.equal((await api.task(task.taskId)).attempt, 1)
  },
)

t.test('S23 cancelled, and then everything else: every view says CANCELLED, in every process', async t => {
  const { api: other } = await startApi(t, { databaseUrl })
  const task = await api.started({ retry: { ...NOW, maxAttempts: 5 } })
  // The other process has it as running in its memory.
  t.equal((await other.task(task.taskId)).status, 'PROCESSING')
  t.equal((await api.post(`/v1/tasks/${task.taskId}/cancel`)).status, 200)
  for (const at of [other, api])
    for (const [command, fields] of [
      ['succeed', { result: 1 }],
      ['fail', { error: { message: 'x' } }],
      ['step', { step: 'DOWNLOADING' }],
      ['release', {}],
      ['start', { worker: 'w' }],
    ] as const)
      t.equal((await at.command(task, command, { ...fields })).status, 409, command)
  isProblem(t, await other.post(`/v1/tasks/${task.taskId}/retry`), 'illegal_transition')
  for (const at of [api, other]) {
    await endsOnce(t, at, task.taskId, 'CANCELLED')
    t.equal((await at.eventTypes(task.taskId)).at(-1), 'LateResultRecorded', 'the last word changes nothing')
  }
})

t.test(
  'S26 the first attempt times out, the second is started and silent: it times out too, by its own START',
  async t => {
    const executionMs = 600
    const first = await api.started({ timeouts: { executionMs }, retry: { ...NOW, maxAttempts: 2 } })
    const second = (await api.claim({ types: [first.type], leaseToken: OTHER_TOKEN, waitMs: 20_000 })).body
      .tasks[0] as ClaimedTask
    t.equal(second.attempt, 2)
    await until('it fails', async () => (await api.task(first.taskId)).status === 'FAILED')
    const events = await api.history(first.taskId)
    const at = (type: RegExp) =>
      events.filter(event => type.test(event.type)).map(event => Date.parse(event.at))
    const [starts, ends] = [at(/^TaskStarted$/), at(/TimedOut$/)]
    t.strictSame([starts.length, ends.length], [2, 2])
    for (const attempt of [0, 1]) {
      const lasted = ends[attempt]! - starts[attempt]!
      t.ok(
        lasted >= executionMs && lasted < executionMs + 5_000,
        `attempt ${attempt + 1} lasted ${lasted} ms`,
      )
    }
    await endsOnce(t, api, first.taskId, 'FAILED')
  },
)

t.test('S28 START after the end, however it ended and whoever sends it: nothing runs again', async t => {
  for (const [status, end] of [
    ['SUCCESS', (task: ClaimedTask) => api.command(task, 'succeed')],
    [
      'FAILED',
      (task: ClaimedTask) => api.command(task, 'fail', { error: { message: 'x' }, retryable: false }),
    ],
    ['CANCELLED', (task: ClaimedTask) => api.post(`/v1/tasks/${task.taskId}/cancel`)],
  ] as const) {
    const task = await api.started()
    t.equal((await end(task)).status, 200)
    for (const attempt of [1, 2])
      for (const leaseToken of [undefined, OTHER_TOKEN]) {
        const answer = await api.command({ ...task, attempt }, 'start', {
          worker: 'late',
          ...(leaseToken && { leaseToken }),
        })
        t.equal(answer.status, 409, `${status}, attempt ${attempt}: ${answer.text}`)
      }
    await endsOnce(t, api, task.taskId, status)
    t.equal((await api.task(task.taskId)).revision, 2)
  }
})

t.test(
  'S31 an attempt in a backoff of an hour reports success: refused, and cancel works at once',
  async t => {
    const task = await api.started()
    await api.command(task, 'fail', { error: { message: 'x' }, retryAfterMs: HOUR_MS })
    isProblem(t, await api.command(task, 'succeed', { result: 1 }), 'superseded')
    const waiting = await api.task(task.taskId)
    t.match(waiting, { status: 'RETRYING', result: null, nextDeadline: { timer: 'retry' } })
    t.match(await api.claim({ types: [task.type], waitMs: 0 }), { body: { tasks: [] } })
    t.match(await api.post(`/v1/tasks/${task.taskId}/cancel`), { status: 200, body: { status: 'CANCELLED' } })
    await endsOnce(t, api, task.taskId, 'CANCELLED')
  },
)

t.test(
  'S20 many submits of one second: a success in the same batch as its timer leaves one outcome',
  async t => {
    const log = createMemoryEventLog()
    const clock = new ManualClock()
    const engine = await startEngine(log, { clock })
    const ids = await submitTasks(engine, 50)
    await engine.executeMany(ids.map(id => ask(id, start())))
    const deadline = mustBe(
      'accepted',
      await engine.execute(ask('018f4e7a-0000-7000-8000-0000000000aa', submitting())),
    )
    clock.at = deadline.task.createdAt + HOUR_MS
    const answers = await engine.executeMany(
      ids.flatMap((id, index) => {
        const both = [ask(id, succeed()), ask(id, timeout('execution'))]
        return index % 2 ? both : both.reverse()
      }),
    )
    t.equal(answers.filter(({ kind }) => kind === 'accepted').length, 50)
    for (const id of ids)
      t.equal((await typesOf(log, id)).filter(type => FINAL.test(type) || /Attempt/.test(type)).length, 1)
  },
)
