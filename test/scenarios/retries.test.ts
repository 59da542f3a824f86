/** What happened to others: retries without an end, without a wait, or not at all. */
import t from 'tap'
import { streamOf } from '../../src/eventlog/codec.ts'
import { RollCall } from '../../src/projections/roll-call.ts'
import { walkOn } from '../../src/projections/verify.ts'
import { isProblem, startApi } from '../api/fixture.ts'
import { fail, retry, start } from '../domain/specification.ts'
import { differences } from '../support/compare.ts'
import {
  aClaim,
  ask,
  mustBe,
  NEVER,
  openParts,
  said,
  startParts,
  submitTasks,
  until,
} from '../support/service-parts.ts'

const MINUTE_MS = 60_000
const LONG = { queueMs: MINUTE_MS, executionMs: MINUTE_MS, leaseMs: MINUTE_MS, totalMs: 10 * MINUTE_MS }

t.test(
  'S32 attempt 1,100 of 2,000: the wait is the cap, and a date that the database and the timers bear',
  async t => {
    const parts = await startParts(t)
    const { engine } = parts
    parts.projector.start()
    const maxDelayMs = 366 * 24 * 60 * MINUTE_MS
    const asked = { maxAttempts: 2_000, initialDelayMs: 1_000, factor: 2, maxDelayMs, jitter: 1 }
    const [taskId] = (await submitTasks(engine, 1, () => ({
      timeouts: { ...LONG, totalMs: maxDelayMs },
      retry: asked,
    }))) as [string]
    for (let attempt = 1; attempt <= 1_100; attempt++) {
      for (const command of [start({ attempt }), fail({ attempt })])
        mustBe('accepted', await engine.execute(ask(taskId, command)))
      if (attempt < 1_100) mustBe('accepted', await engine.execute(ask(taskId, retry())))
    }
    const task = await parts.task(taskId)
    if (task.status !== 'RETRYING') throw new Error(`it is ${task.status}`)
    t.equal(task.attemptsCharged, 1_100)
    const waitMs = task.retryAt - task.updatedAt
    t.ok(Number.isInteger(waitMs) && waitMs > 0 && waitMs <= maxDelayMs, `${waitMs} ms`)
    await parts.projected()
    for (let look = 0; look < 3; look++) await parts.timers.tick()
    t.equal((await parts.task(taskId)).status, 'RETRYING', 'and it does not come back at once')
    t.strictSame(await differences(parts.pool, parts.log), [])
  },
)

t.test('S32 a cap of 0 is no wait, however fast the waits would grow', async t => {
  const { api } = await startApi(t)
  const task = await api.started({
    retry: { maxAttempts: 2_000, initialDelayMs: 1, factor: 100, maxDelayMs: 0, jitter: 0 },
  })
  let { attempt } = task
  for (let round = 0; round < 5; round++) {
    const failed = await api.command({ ...task, attempt }, 'fail', { error: { message: 'x' } })
    t.equal(failed.body.nextDeadline!.at, failed.body.updatedAt, 'a cap of 0 is at once')
    const again = await api.claim({ types: [task.type], waitMs: 20_000 })
    attempt = again.body.tasks[0]!.attempt
  }
  t.equal(attempt, 6)
})

for (const when of ['before it was projected', 'after it was projected'] as const)
  t.test(
    `S37 one stored event is spoilt ${when}: its task is set aside in sight, all else goes on`,
    async t => {
      const first = await startParts(t)
      const ids = await submitTasks(first.engine, 6, index => ({
        timeouts: { ...LONG, queueMs: index < 4 ? 300 : MINUTE_MS },
        retry: { maxAttempts: 1, initialDelayMs: 0, factor: 1, maxDelayMs: 0, jitter: 0 },
      }))
      const [poisoned, ...others] = ids as [string, ...string[]]
      const due = others.slice(0, 3)
      if (when === 'after it was projected') {
        first.projector.start()
        await first.projected()
        await first.projector.stop()
      }
      await first.rows(
        `UPDATE rollcall_log.events SET data = '{"no":"payload"}' WHERE stream = $1 AND revision = 0`,
        [streamOf(poisoned)],
      )
      await first.close()

      // As a process finds it that was started after the damage.
      const parts = await openParts(t, first.url)
      parts.projector.start()
      parts.timers.start()
      await until('the others time out', async () => {
        const tasks = [...(await parts.engine.readMany(due)).values()]
        return tasks.every(one => one.kind === 'task' && one.task.status === 'FAILED')
      })
      t.equal(said(await parts.engine.execute(ask(poisoned, start()))), 'set_aside')
      const [later] = await submitTasks(parts.engine, 1)
      await parts.projected()
      t.equal(parts.projector.mode, 'projecting')
      t.match(
        await parts.claims.claim(aClaim({ max: 100 }), NEVER),
        { length: 3 },
        'two from before and the new one',
      )
      t.ok(later)

      const found = []
      for (let place: string | null = null, first = true; first || place !== null; first = false) {
        const walked = await walkOn(parts, place, { rows: 2, events: 1 })
        found.push(...walked.findings)
        place = walked.next
      }
      const rollCall = async () => (await new RollCall(parts.pool, parts.log).read()).unaccounted.reasons
      const seen = await rollCall()
      t.match(
        seen.flatMap(({ tasks }) => tasks.map(({ taskId }) => taskId)),
        [poisoned],
        'the roll call names it, and it alone',
      )
      if (when === 'after it was projected')
        t.match(found, [{ taskId: poisoned, kind: 'not_folded' }], 'verify names it, and goes on to the end')
      else t.strictSame(found, [], 'what is set aside waits for a person already')
    },
  )

t.test('S37 over HTTP the spoilt task says so, on every way to it, and the others are served', async t => {
  const { api: before, service, databaseUrl } = await startApi(t)
  const spoilt = await before.submit()
  const sound = await before.submit({ type: spoilt.type })
  await service.pool.query(`UPDATE rollcall_log.events SET data = '{' WHERE stream = $1`, [
    streamOf(spoilt.taskId),
  ])
  await service.stop()
  const { api } = await startApi(t, { databaseUrl })
  const path = `/v1/tasks/${spoilt.taskId}`
  isProblem(t, await api.get(path), 'set_aside')
  isProblem(t, await api.get(`${path}/history`), 'set_aside')
  isProblem(t, await api.post(`${path}/cancel`), 'set_aside')
  isProblem(t, await api.command({ ...spoilt, attempt: 1 }, 'start', { worker: 'w' }), 'set_aside')
  const claimed = await api.claim({ types: [spoilt.type], max: 10 })
  t.match(claimed, { status: 200, body: { tasks: [{ taskId: sound.taskId }] } })
  t.equal(claimed.body.tasks.length, 1)
  t.equal((await api.get('/v1/tasks')).status, 200)
  t.equal((await api.get('/readyz')).status, 200)
})

t.test(
  'S38 a failure that cannot be stored as it is: stored made fit, by every way to report it, and once',
  async t => {
    const { api } = await startApi(t)
    const bad = 'bad \u0000 \ud800 \udfff'
    const good = 'bad \ufffd \ufffd \ufffd'
    const error = { code: bad, message: bad, detail: bad }
    const single = await api.started()
    const many = await api.started()
    const report = {
      trigger: 'FAIL',
      taskId: many.taskId,
      attempt: 1,
      leaseToken: 'lease-token-of-the-first-worker',
      error,
      retryable: false,
    }
    for (let again = 0; again < 3; again++) {
      t.match(await api.command(single, 'fail', { error, retryable: false }), {
        status: 200,
        body: { status: 'FAILED', errorMessage: good, revision: 2 },
      })
      t.match(await api.post('/v1/workers/report', { worker: 'worker-1', reports: [report] }), {
        status: 200,
        body: { results: [{ kind: again === 0 ? 'accepted' : 'repeated', status: 'FAILED', revision: 2 }] },
      })
    }
    for (const { taskId } of [single, many]) {
      t.strictSame(await api.eventTypes(taskId), ['TaskSubmitted', 'TaskStarted', 'TaskFailed'])
      t.match((await api.history(taskId)).at(-1), {
        data: { content: { error: { message: good, detail: good } } },
      })
    }
  },
)
