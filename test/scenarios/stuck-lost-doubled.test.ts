/** What happened to others: tasks that hung, got lost or ran twice. */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import t, { type Test } from 'tap'
import type { TaskList, TaskView } from '../../src/api/schemas/tasks.ts'
import { Claims } from '../../src/workers/claims.ts'
import { type Answer, type Api, aType, isProblem, startApi, until } from '../api/fixture.ts'
import { start, succeed } from '../domain/specification.ts'
import { differences } from '../support/compare.ts'
import { anEvent } from '../support/events.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import {
  aClaim,
  ask,
  mustBe,
  NEVER,
  startParts,
  submitTasks,
  typesOf,
  until as untilHolds,
} from '../support/service-parts.ts'
import { startProjectorProcess, startWorkerProcess } from './processes.ts'

const LEASE_MS = 1_000
/** One look of the timers comes every 240 ms at most; the rest is for a busy machine. */
const SCAN_MS = 3_000
const DAY_MS = 24 * 60 * 60 * 1_000
const work = (workMs: number) => ({ type: 'scenario.work', payload: { workMs } })

/** A task of which a worker holds an attempt; both of its attempts are ended by kills. */
async function killTwice(
  t: Test,
  leaseMs: number,
  whenBegun: (api: Api, taskId: string) => Promise<unknown>,
) {
  const { api } = await startApi(t)
  const { taskId } = await api.submit({
    ...work(600_000),
    timeouts: { leaseMs },
    retry: { maxAttempts: 2, initialDelayMs: 0, jitter: 0 },
  })
  for (const attempt of [1, 2]) {
    const worker = startWorkerProcess(t, api.url)
    await worker.began(taskId)
    await whenBegun(api, taskId)
    const killedAt = performance.now()
    worker.child.kill('SIGKILL')
    await until('its attempt is over', async () => {
      const task = await api.task(taskId)
      return task.status === 'FAILED' || task.attempt > attempt
    })
    const tookMs = performance.now() - killedAt
    t.ok(tookMs < leaseMs + SCAN_MS, `attempt ${attempt} was over ${Math.round(tookMs)} ms after the kill`)
  }
  const ends = (await api.history(taskId)).filter(({ type }) => /TimedOut$/.test(type))
  t.equal(ends.length, 2)
  return { task: await api.task(taskId), ends: ends.map(({ data }) => data) }
}

t.test('S01 a worker that is killed loses its task in time, and so does the next one', async t => {
  const isHeard = (api: Api, taskId: string) =>
    // The ETag moves with every heartbeat.
    until('it is heard', async () => (await api.get(`/v1/tasks/${taskId}`)).headers.etag!.includes('.'))
  const { task, ends } = await killTwice(t, LEASE_MS, isHeard)
  t.match(ends, [
    { timer: 'lease', charged: true, lastHeartbeatAt: Number },
    { timer: 'lease', charged: true, lastHeartbeatAt: Number },
  ])
  t.match(task, { status: 'FAILED', errorCode: 'timeout_lease' })
})

t.test('S01 a worker that is killed before its first heartbeat: its task goes back uncharged', async t => {
  // The first heartbeat comes after a third of it.
  const { task, ends } = await killTwice(t, 3 * LEASE_MS, async () => {})
  t.match(ends, [
    { timer: 'lease', charged: false, lastHeartbeatAt: null },
    { timer: 'lease', charged: false, lastHeartbeatAt: null },
  ])
  t.match(task, { status: /PENDING|RETRYING/, attempt: 3, nextDeadline: { at: String, effect: String } })
})

t.test(
  'S02 nobody picks the task up: it times out by its queue limit, and says that it never started',
  async t => {
    const { api } = await startApi(t)
    const queueMs = 2_000
    const { taskId, createdAt } = await api.submit({ timeouts: { queueMs } })
    const task = await until('it times out', async () => {
      const read = await api.task(taskId)
      return read.status !== 'PENDING' && read
    })
    t.match(task, {
      status: 'FAILED',
      errorCode: 'timeout_queue',
      startedAt: null,
      why: /no worker started it/,
    })
    const lastedMs = Date.parse(task.finishedAt!) - Date.parse(createdAt)
    t.ok(lastedMs >= queueMs && lastedMs < queueMs + SCAN_MS, `${lastedMs} ms`)
    t.strictSame(await api.eventTypes(taskId), ['TaskSubmitted', 'TaskTimedOut'])
    t.match(
      await api.claim({ types: [task.type], waitMs: 0 }),
      { body: { tasks: [] } },
      'nobody gets it any more',
    )
  },
)

t.test('S05 a delay of three leases: it runs once, and not before', async t => {
  const { api } = await startApi(t)
  const delayMs = 3 * LEASE_MS
  const worker = startWorkerProcess(t, api.url, { concurrency: 4 })
  const { taskId, runAt, createdAt } = await api.submit({
    ...work(0),
    delayMs,
    timeouts: { leaseMs: LEASE_MS },
  })
  t.equal(Date.parse(runAt) - Date.parse(createdAt), delayMs)
  await worker.began(taskId)
  await until('it succeeds', async () => (await api.task(taskId)).status === 'SUCCESS')
  // Whatever would hand it out again has had its time.
  await new Promise(resolve => setTimeout(resolve, 2 * LEASE_MS))
  t.equal(worker.told.filter(({ began }) => began === taskId).length, 1)
  const events = await api.history(taskId)
  t.strictSame(
    events.map(({ type }) => type),
    ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'],
  )
  t.ok(Date.parse(events[1]!.at) >= Date.parse(runAt))
})

t.test('S09 1,000 open tasks without a near deadline and one that expired: it fires in one look', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  const far = {
    queueMs: 366 * DAY_MS,
    executionMs: 366 * DAY_MS,
    leaseMs: 366 * DAY_MS,
    totalMs: 366 * DAY_MS,
  }
  const open = await submitTasks(parts.engine, 1_000, index => ({
    timeouts: far,
    // Waiting, delayed, and those that run below.
    delayMs: index % 4 === 1 ? 300 * DAY_MS : null,
  }))
  await parts.projected()
  t.equal((await parts.claims.claim(aClaim({ max: 300 }), NEVER)).length, 300)
  const [expired] = await submitTasks(parts.engine, 1, () => ({ timeouts: { ...far, queueMs: 1 } }))
  await parts.projected()
  await untilHolds('it is due', async () => {
    const due = await parts.rows('SELECT 1 FROM rollcall.deadlines WHERE due_at < clock_timestamp()')
    return due.length > 0
  })
  await parts.timers.tick()
  t.match(await parts.task(expired!), { status: 'FAILED', timer: 'queue' })
  const tasks = [...(await parts.engine.readMany(open)).values()]
  t.equal(tasks.filter(one => one.kind === 'task' && one.task.status === 'FAILED').length, 0, 'and it alone')
})

t.test(
  'S14 the answer to a claim and to a report is lost as well: asked again, one START and one outcome',
  async t => {
    const parts = await startParts(t)
    parts.projector.start()
    const [taskId] = (await submitTasks(parts.engine, 1)) as [string]
    await parts.projected()
    const claim = aClaim()
    const report = ask(taskId, succeed())
    for (let asked = 0; asked < 3; asked++) {
      // Each time as another process has it, with nothing in memory.
      const claims = new Claims(parts.workState, parts.engine, parts.signal)
      t.match(await claims.claim(claim, NEVER), [{ taskId, attempt: 1 }])
    }
    mustBe('accepted', await parts.engine.execute(report))
    mustBe('repeated', await parts.engine.execute(report))
    mustBe('repeated', await parts.engine.execute({ ...report, commandId: randomUUID() }))
    t.strictSame(await typesOf(parts.log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  },
)

t.test(
  'S14 on EventStoreDB, over HTTP: whatever was stored unanswered is answered when asked again, and stands once',
  async t => {
    const double = await startEventStoreDBDouble(t)
    const { api, service } = await startApi(t, { log: double.address })
    await until('it is ready', async () => (await api.get('/readyz')).status === 200)
    let refusals = 0
    /** Asks until the answer is not that the log is away. */
    const insist = async (ask: () => Promise<Answer<unknown>>): Promise<void> => {
      for (;;) {
        const answer = await ask()
        if (answer.status < 300) return
        isProblem(t, answer, 'log_unavailable')
        refusals++
      }
    }
    const losses: (() => void)[] = [
      () => double.failAppends('timeout', { store: true }),
      // Until both the log and the engine have waited long enough, so that the asker is told.
      () => double.loseAcks(1),
    ]
    for (const [index, lose] of losses.entries()) {
      const type = aType()
      const key = { 'idempotency-key': `lost-${index}` }
      const claim = { types: [type], claimId: randomUUID() }
      lose()
      await insist(() => api.post('/v1/tasks', { type }, key))
      const { body } = await api.post<TaskView>('/v1/tasks', { type }, key)
      t.match(body, { type, status: 'PENDING' }, 'the task of the first time')
      const task = { taskId: body.taskId, attempt: 1 }
      await until('it is listed', async () => {
        const { body } = await api.get<TaskList>(`/v1/tasks?type=${type}`)
        return body.tasks.length === 1
      })
      lose()
      await insist(() => api.claim(claim))
      t.match((await api.claim(claim)).body.tasks, [task])
      lose()
      for (let asked = 0; asked < 2; asked++)
        await insist(() => api.command(task, 'succeed', { result: index }))
      t.match(await api.task(task.taskId), { status: 'SUCCESS', result: index, revision: 2 })
      t.strictSame(await api.eventTypes(task.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    }
    t.equal(refusals, 3, 'so often the asker was told that the outcome is not known')
    await until('rows are the fold', async () => (await differences(service.pool, service.log)).length === 0)
  },
)

t.test('S16 a transaction that began first and appends last: both are projected', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  const early = new pg.Client(parts.url)
  await early.connect()
  t.teardown(() => early.end())
  await early.query('BEGIN')
  const { rows } = await early.query<{ xid: string }>('SELECT pg_current_xact_id()::text AS xid')
  const [first] = await submitTasks(parts.engine, 1)
  // The long transaction holds nobody up.
  await parts.projected()
  t.equal((await parts.rows('SELECT 1 FROM rollcall.tasks WHERE task_id = $1', [first])).length, 1)

  const event = anEvent()
  await early.query(
    `SELECT rollcall_log.append_many(ARRAY['slow'], ARRAY[-1], ARRAY[1], ARRAY[1], ARRAY['slow'], ARRAY[$1::uuid],
       ARRAY['Slow'], ARRAY[1::smallint], '{}', '{}')`,
    [event.id],
  )
  await early.query('COMMIT')
  const [second] = await submitTasks(parts.engine, 1)
  await parts.projected()
  const stored = await parts.rows<{ id: string; position: string; xmin: string }>(
    'SELECT id, position::text, xmin::text FROM rollcall_log.events ORDER BY position',
  )
  const late = stored.findIndex(({ id }) => id === event.id)
  t.equal(late, stored.length - 2, 'its place is behind the one that was committed before')
  t.ok(
    BigInt(stored[late]!.xmin) < BigInt(stored[late - 1]!.xmin),
    `transaction ${rows[0]!.xid} has the lower id`,
  )
  const projected = await parts.rows<{ task_id: string }>('SELECT task_id FROM rollcall.tasks')
  t.strictSame(projected.map(row => row.task_id).sort(), [first, second].sort())
  t.strictSame(await differences(parts.pool, parts.log), [])
})

t.test(
  'S17 the projector is killed 20 times at random under a backlog of 5,000 events: no row is missing',
  async t => {
    const parts = await startParts(t)
    const ids = await submitTasks(parts.engine, 2_500)
    for (const answer of await parts.engine.executeMany(ids.map(id => ask(id, start()))))
      mustBe('accepted', answer)
    // So slow that the backlog outlasts the kills, and that most of them fall into a transaction.
    await parts.rows(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
                    AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN NULL; END $$`)
    await parts.rows(
      'CREATE TRIGGER slow AFTER INSERT OR UPDATE ON rollcall.projectors EXECUTE FUNCTION slow()',
    )
    const position = async () => {
      const [row] = await parts.rows<{ position: string | null }>('SELECT position FROM rollcall.projectors')
      return Number(row?.position ?? 0)
    }
    const endLease = async () => {
      // What a killed process asked for is still carried out, and renews its lease.
      await until('nothing is carried out for a process that is gone', async () => {
        const left = await parts.rows(`SELECT FROM pg_stat_activity WHERE datname = current_database()
          AND state = 'active' AND query LIKE '%advance_projector%' AND pid <> pg_backend_pid()`)
        return left.length === 0
      })
      await parts.rows('UPDATE rollcall.projectors SET held_until = now()')
    }
    const reached: number[] = []
    for (let kill = 0; kill < 20; kill++) {
      const projector = startProjectorProcess(t, parts.url, 60_000)
      await endLease()
      await projector.moved(Math.floor(Math.random() * 5))
      await new Promise(resolve => setTimeout(resolve, Math.random() * 25))
      await projector.kill()
      reached.push(await position())
    }
    t.comment(`killed at ${reached}`)
    t.strictSame(
      reached,
      reached.toSorted((one, next) => one - next),
      'it never goes back',
    )
    t.ok(reached.at(-1)! > 0 && reached.at(-1)! < 5_000, 'in the middle')
    await parts.rows('DROP TRIGGER slow ON rollcall.projectors')
    await endLease()
    parts.projector.start()
    await parts.projected()
    t.strictSame(await parts.rows('SELECT count(*)::int AS tasks FROM rollcall.tasks'), [
      { tasks: ids.length },
    ])
    t.strictSame(await differences(parts.pool, parts.log), [])
  },
)
