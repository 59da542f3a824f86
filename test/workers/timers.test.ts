import { randomUUID } from 'node:crypto'
import pg from 'pg'
import t from 'tap'
import type { Timeouts } from '../../src/domain/events.ts'
import { auditLog } from '../../src/engine/audit.ts'
import { Lifecycles, lifecycleRef } from '../../src/engine/lifecycles.ts'
import { streamOf } from '../../src/eventlog/codec.ts'
import { Claims } from '../../src/workers/claims.ts'
import { FIRES_PER_LOOK, Timers } from '../../src/workers/timers.ts'
import {
  fail,
  note,
  retry,
  STEPPED_LIFECYCLE,
  start,
  step,
  succeed,
  TOKEN_A,
  TOKEN_B,
} from '../domain/specification.ts'
import { differences } from '../support/compare.ts'
import {
  aClaim,
  ask,
  history,
  mustBe,
  NEVER,
  openParts,
  type Parts,
  recordingLogger,
  SILENT,
  said,
  signalled,
  startEngine,
  startParts,
  submitTasks,
  typesOf,
  until,
} from '../support/service-parts.ts'

const MINUTE_MS = 60_000
const LONG: Timeouts = {
  queueMs: MINUTE_MS,
  executionMs: MINUTE_MS,
  leaseMs: MINUTE_MS,
  totalMs: 10 * MINUTE_MS,
}
const AT_ONCE = { initialDelayMs: 0, factor: 1, maxDelayMs: 0, jitter: 0 }

interface Asked {
  timeouts?: Partial<Timeouts>
  maxAttempts?: number
  delayMs?: number
  retryMs?: number
}

const submitOne = async (
  { engine }: Parts,
  { timeouts, maxAttempts = 3, delayMs, retryMs = 0 }: Asked = {},
) =>
  (
    await submitTasks(engine, 1, () => ({
      timeouts: { ...LONG, ...timeouts },
      retry: { ...AT_ONCE, initialDelayMs: retryMs, maxDelayMs: retryMs, maxAttempts },
      delayMs: delayMs ?? null,
    }))
  )[0]!

/** Lets the timers look until something holds. */
const tickUntil = (parts: Parts, what: string, holds: () => boolean | Promise<boolean>) =>
  until(what, async () => {
    await parts.timers.tick()
    return holds()
  })

const isAt =
  (parts: Parts, taskId: string, ...statuses: string[]) =>
  async () =>
    statuses.includes((await parts.task(taskId)).status)

async function setUp(t: Parameters<typeof startParts>[0], options?: Parameters<typeof startParts>[1]) {
  const parts = await startParts(t, options)
  parts.projector.start()
  // The first look after a long time gives every lease anew.
  await parts.timers.tick()
  return parts
}

/** Workers that are heard once, and fall silent then. */
const beatOnce = async ({ leases }: Parts, ids: readonly string[], attempt = 1, leaseTokenHash = TOKEN_A) => {
  const results = await leases.heartbeat(
    ids.map(taskId => ({ taskId, attempt, leaseTokenHash, progress: null })),
  )
  if (results.some(({ state }) => state !== 'held')) throw new Error('the test expected leases to be held')
}

/** The database's clock has passed an instant. */
const passed = ({ rows }: Parts, at: number) =>
  until('the time has come', async () => {
    const [row] = await rows<{ passed: boolean }>('SELECT clock_timestamp() > $1::timestamptz AS passed', [
      new Date(at).toISOString(),
    ])
    return row!.passed
  })

t.test('S02 a task that nobody picks up times out although it never started', async t => {
  const parts = await setUp(t)
  const taskId = await submitOne(parts, { timeouts: { queueMs: 50 } })
  await parts.projected()
  await tickUntil(parts, 'it fails', isAt(parts, taskId, 'FAILED'))
  t.match(await parts.task(taskId), { timer: 'queue', startedAt: null, error: { code: 'timeout_queue' } })
  await parts.projected()
  t.strictSame(await parts.claims.claim(aClaim(), NEVER), [], 'and cannot be claimed any more')
})

t.test(
  'S01 S26 a silent worker loses its attempt, and so does the next one, counted from its own start',
  async t => {
    const parts = await setUp(t)
    const { engine, claims, log } = parts
    const taskId = await submitOne(parts, { timeouts: { leaseMs: 80 }, maxAttempts: 2 })
    await parts.projected()
    for (const token of [TOKEN_A, TOKEN_B]) {
      const claim = () => claims.claim(aClaim({ leaseTokenHash: token }), NEVER)
      let attempt = 0
      await tickUntil(parts, 'it can be claimed', async () => {
        attempt = (await claim())[0]?.attempt ?? 0
        return attempt > 0
      })
      await parts.projected()
      // Heard once: an attempt that never was is not charged.
      await beatOnce(parts, [taskId], attempt, token)
      await tickUntil(
        parts,
        'its worker fell silent',
        async () => (await parts.task(taskId)).status !== 'PROCESSING',
      )
    }
    t.match(await parts.task(taskId), { status: 'FAILED', cause: 'timed_out', timer: 'lease', attempt: 2 })
    t.strictSame(await typesOf(log, taskId), [
      'TaskSubmitted',
      'TaskStarted',
      'TaskAttemptTimedOut',
      'TaskRequeued',
      'TaskStarted',
      'TaskTimedOut',
    ])
    const at = (await history(log, taskId)).map(({ metadata }) => metadata.at)
    t.ok(at[2]! - at[1]! >= 80 && at[5]! - at[4]! >= 80, `${at[2]! - at[1]!} and ${at[5]! - at[4]!} ms`)
    t.equal(
      said(await engine.execute(ask(taskId, succeed()))),
      'superseded',
      'S19 its first worker comes late',
    )
    t.equal((await parts.task(taskId)).status, 'FAILED')
  },
)

t.test('an attempt that takes too long times out however lively its worker is', async t => {
  const parts = await setUp(t)
  const taskId = await submitOne(parts, { timeouts: { executionMs: 200, leaseMs: 100 }, maxAttempts: 1 })
  mustBe('accepted', await parts.engine.execute(ask(taskId, start())))
  await parts.projected()
  await tickUntil(parts, 'it fails', async () => {
    await parts.leases.heartbeat([{ taskId, attempt: 1, leaseTokenHash: TOKEN_A, progress: null }])
    return isAt(parts, taskId, 'FAILED')()
  })
  t.match(await parts.task(taskId), { timer: 'execution' })
})

t.test(
  'a task as a whole times out in every open status, also while it waits for its next attempt',
  async t => {
    const parts = await setUp(t)
    const asked = { timeouts: { totalMs: 400 }, retryMs: MINUTE_MS }
    const [waits, runs, retries] = [
      await submitOne(parts, asked),
      await submitOne(parts, asked),
      await submitOne(parts, asked),
    ]
    for (const id of [runs, retries]) mustBe('accepted', await parts.engine.execute(ask(id, start())))
    mustBe('accepted', await parts.engine.execute(ask(retries, fail())))
    await parts.projected()
    for (const id of [waits, runs, retries]) {
      await tickUntil(parts, 'it fails', isAt(parts, id, 'FAILED'))
      t.match(await parts.task(id), { timer: 'total', error: { code: 'timeout_total' } })
    }
  },
)

t.test('a step that takes too long ends its attempt', async t => {
  const parts = await setUp(t)
  const lifecycles = await Lifecycles.open(parts.log, [STEPPED_LIFECYCLE])
  const { clock } = parts
  const stepped = await startEngine(parts.log, { clock, lifecycles })
  const [taskId] = (await submitTasks(stepped, 1, () => ({
    lifecycle: lifecycleRef(STEPPED_LIFECYCLE),
    timeouts: LONG,
  }))) as [string]
  for (const command of [start(), step('DOWNLOADING'), step('UPLOADING')])
    mustBe('accepted', await stepped.execute(ask(taskId, command)))
  await parts.projected()
  // Its limit is half a second; the timers' engine reads the definition from the log.
  await tickUntil(parts, 'it goes back', async () => (await parts.task(taskId)).status !== 'PROCESSING')
  t.match((await history(parts.log, taskId)).at(-1)!.event, { data: { timer: 'step', limitMs: 500 } })
})

t.test('a retry comes when its backoff is over, and not before', async t => {
  const parts = await setUp(t)
  const [soon, later] = [
    await submitOne(parts, { retryMs: 60 }),
    await submitOne(parts, { retryMs: MINUTE_MS }),
  ]
  for (const id of [soon, later])
    for (const command of [start(), fail()]) mustBe('accepted', await parts.engine.execute(ask(id, command)))
  await parts.projected()
  await tickUntil(parts, 'it is requeued', isAt(parts, soon, 'PENDING'))
  const [, , failed, requeued] = await history(parts.log, soon)
  t.match(requeued, { event: { type: 'TaskRequeued', data: { cause: 'backoff_over' } } })
  t.ok(requeued!.metadata.at - failed!.metadata.at >= 60)
  t.equal((await parts.task(later)).status, 'RETRYING')
  await parts.projected()
  await parts.timers.tick()
  t.match(await parts.claims.claim(aClaim(), NEVER), [{ taskId: soon, attempt: 2 }])
})

t.test(
  'S05 a task that is to wait longer than leases and offers last runs once, when its time has come',
  async t => {
    const parts = await setUp(t)
    const taskId = await submitOne(parts, { delayMs: 300, timeouts: { leaseMs: 50 } })
    await parts.projected()
    t.strictSame(await parts.claims.claim(aClaim(), NEVER), [], 'it cannot be claimed yet')
    t.match(await parts.rows('SELECT timer FROM rollcall.deadlines'), [{ timer: 'not_before' }])
    let claimed = 0
    await tickUntil(parts, 'it is claimed', async () => {
      claimed += (await parts.claims.claim(aClaim(), NEVER)).length
      return claimed > 0
    })
    mustBe('accepted', await parts.engine.execute(ask(taskId, succeed())))
    const [submitted, started, ...rest] = await history(parts.log, taskId)
    t.ok(started!.metadata.at - submitted!.metadata.at >= 300)
    t.strictSame(
      rest.map(({ event }) => event.type),
      ['TaskSucceeded'],
    )
  },
)

t.test('a task that has waited its time has its queue limit next, counted from then', async t => {
  const parts = await setUp(t)
  const taskId = await submitOne(parts, { delayMs: 50, timeouts: { queueMs: 50 } })
  await parts.projected()
  await tickUntil(parts, 'its next limit is armed', async () => {
    const [row] = await parts.rows<{ timer: string }>('SELECT timer FROM rollcall.deadlines')
    return row?.timer === 'queue'
  })
  t.strictSame(await differences(parts.pool, parts.log), [])
  await tickUntil(parts, 'it fails', isAt(parts, taskId, 'FAILED'))
  const [submitted, failed] = await history(parts.log, taskId)
  t.ok(failed!.metadata.at - submitted!.metadata.at >= 100)
})

t.test('a waiting claim hears at once of a task whose time has come', async t => {
  const parts = await setUp(t)
  const taskId = await submitOne(parts, { delayMs: 100 })
  await parts.projected()
  const claimed = parts.claims.claim(aClaim({ waitMs: 20_000 }), NEVER)
  parts.timers.start()
  t.match(await claimed, [{ taskId }])
})

t.test('S09 deadlines that cannot be acted on do not hold up those that can', async t => {
  const parts = await setUp(t)
  await parts.projector.stop()
  // Rows of tasks that ended, as a read model that is behind would have them, and of tasks that nobody knows.
  const done = await submitTasks(parts.engine, 200)
  for (const command of [start(), succeed()]) await parts.engine.executeMany(done.map(id => ask(id, command)))
  const insert = (count: number) =>
    parts.rows(
      `INSERT INTO rollcall.deadlines (task_id, due_at, timer, attempt)
       SELECT gen_random_uuid(), date_trunc('milliseconds', now()) - interval '1 hour', 'queue', 1 FROM generate_series(1, $1)`,
      [count],
    )
  await parts.rows(
    `INSERT INTO rollcall.deadlines (task_id, due_at, timer, attempt)
     SELECT task_id, date_trunc('milliseconds', now()) - interval '2 hours', 'execution', 1 FROM unnest($1::uuid[]) task_id`,
    [done],
  )
  await insert(800)
  const expire = async () => {
    const taskId = await submitOne(parts, { timeouts: { queueMs: 1 } })
    await parts.rows(`INSERT INTO rollcall.deadlines VALUES ($1, now() - interval '1 second', 'queue', 1)`, [
      taskId,
    ])
    await passed(parts, (await parts.task(taskId)).createdAt + 1)
    return taskId
  }
  const looksUntilFailed = async (taskId: string) => {
    for (let looks = 1; looks < 50; looks++) {
      await parts.timers.tick()
      if ((await parts.task(taskId)).status === 'FAILED') return looks
    }
    return null
  }
  t.equal(await looksUntilFailed(await expire()), Math.ceil(1_001 / FIRES_PER_LOOK), 'behind 1,000 others')
  await insert(2_500)
  const looks = await looksUntilFailed(await expire())
  t.ok(looks! <= Math.ceil(2_501 / FIRES_PER_LOOK) + 2, `${looks} looks: what was refused is not asked again`)
  const audit = await auditLog(parts.log, done)
  t.strictSame([audit.missing, audit.doubled], [[], []])
})

t.test('S20 a success before the deadline stands, though the timers look at an old view', async t => {
  const parts = await setUp(t)
  const taskId = await submitOne(parts, { timeouts: { executionMs: 60 } })
  const { task } = mustBe('accepted', await parts.engine.execute(ask(taskId, start())))
  await parts.projected()
  await parts.projector.stop()
  // The timers' own engine knows the task as running.
  const timers = await openParts(t, parts.url)
  await timers.engine.execute(ask(taskId, note()))
  mustBe('accepted', await parts.engine.execute(ask(taskId, succeed())))
  await passed(parts, task.updatedAt + 60)
  t.match(await parts.rows('SELECT timer FROM rollcall.deadlines WHERE due_at < clock_timestamp()'), [
    { timer: 'execution' },
  ])
  await timers.timers.tick()
  await parts.timers.tick()
  t.strictSame(await typesOf(parts.log, taskId), [
    'TaskSubmitted',
    'TaskStarted',
    'TaskNoted',
    'TaskSucceeded',
  ])
})

t.test('a deadline that has moved is not fired on its old date', async t => {
  const parts = await setUp(t)
  const taskId = await submitOne(parts, { timeouts: { queueMs: MINUTE_MS } })
  await parts.projected()
  await parts.rows(`UPDATE rollcall.deadlines SET due_at = now() - interval '1 second'`)
  for (let look = 0; look < 3; look++) await parts.timers.tick()
  t.equal((await parts.task(taskId)).status, 'PENDING')
  t.equal((await history(parts.log, taskId)).length, 1)
})

t.test('S61 huge timeouts and delays never fire at once', async t => {
  const parts = await setUp(t)
  const DAY_MS = 24 * 60 * 60 * 1_000
  const huge = [2 ** 31 - 1, 2 ** 31, 365 * DAY_MS, 366 * DAY_MS]
  const ids: string[] = []
  for (const ms of huge) {
    const timeouts = { queueMs: ms, executionMs: ms, leaseMs: ms, totalMs: ms }
    ids.push(await submitOne(parts, { timeouts }), await submitOne(parts, { timeouts, delayMs: ms }))
    const running = await submitOne(parts, { timeouts })
    mustBe('accepted', await parts.engine.execute(ask(running, start())))
    ids.push(running)
  }
  const retrying = await submitOne(parts, {
    timeouts: { ...LONG, totalMs: 366 * DAY_MS },
    retryMs: 366 * DAY_MS,
  })
  for (const command of [start(), fail()])
    mustBe('accepted', await parts.engine.execute(ask(retrying, command)))
  await parts.projected()
  for (let look = 0; look < 3; look++) await parts.timers.tick()
  t.strictSame(await differences(parts.pool, parts.log), [])
  const open = await parts.rows(
    'SELECT status, count(*)::int AS n FROM rollcall.tasks GROUP BY status ORDER BY status',
  )
  t.strictSame(open, [
    { status: 'PENDING', n: 8 },
    { status: 'PROCESSING', n: 4 },
    { status: 'RETRYING', n: 1 },
  ])
  t.equal((await parts.rows('SELECT * FROM rollcall.leases WHERE held_until > now()')).length, 4)
  t.equal((await parts.claims.claim(aClaim({ max: 100 }), NEVER)).length, 4, 'what may be claimed can be')
})

t.test('S63 a delay of nothing and a date in the past are at once', async t => {
  const parts = await setUp(t)
  const [first] = await submitTasks(parts.engine, 1, () => ({ delayMs: 0 }))
  const [second] = await submitTasks(parts.engine, 1, () => ({ runAt: 1 }))
  await parts.projected()
  t.match(await parts.claims.claim(aClaim(), NEVER), [{ taskId: first }, { taskId: second }])
})

t.test('S65 clocks of workers and hosts decide nothing: time is the database’s', async t => {
  const dateNow = Date.now
  t.teardown(() => {
    Date.now = dateNow
  })
  for (const skewMs of [5 * MINUTE_MS, -5 * MINUTE_MS])
    await t.test(`${skewMs} ms away`, async t => {
      Date.now = () => dateNow() + skewMs
      const parts = await setUp(t)
      const taskId = await submitOne(parts, { timeouts: { executionMs: 2 * MINUTE_MS } })
      const { task } = mustBe('accepted', await parts.engine.execute(ask(taskId, start())))
      await parts.projected()
      await parts.timers.tick()
      t.equal((await parts.task(taskId)).status, 'PROCESSING')
      const [row] = await parts.rows<{ off: number }>(
        'SELECT abs(extract(epoch FROM clock_timestamp()) * 1000 - $1::float8) AS off',
        [task.updatedAt],
      )
      t.ok(row!.off < 60_000, `its time is ${row!.off} ms from the database’s`)
      Date.now = dateNow
    })
})

t.test('an engine whose clock is a little behind the database’s takes a lost lease all the same', async t => {
  const { clock } = await startParts(t)
  const behind = { now: () => clock.now() - 400 }
  const parts = await setUp(t, { clock: behind })
  const taskId = await submitOne(parts, { timeouts: { leaseMs: 60 }, maxAttempts: 1 })
  mustBe('accepted', await parts.engine.execute(ask(taskId, start())))
  await parts.projected()
  await beatOnce(parts, [taskId])
  await tickUntil(parts, 'it fails', isAt(parts, taskId, 'FAILED'))
  const [, started, failed] = await history(parts.log, taskId)
  t.ok(failed!.metadata.at - started!.metadata.at < 10_000)
})

t.test(
  'after a gap in the ticks every worker gets a lease first; what was lost before stays lost',
  async t => {
    const parts = await setUp(t)
    const timeouts = { ...LONG, leaseMs: 1 }
    const ids = await submitTasks(parts.engine, 4, () => ({ timeouts }))
    await parts.engine.executeMany(ids.map(id => ask(id, start())))
    await parts.projected()
    const [unheard, lost, ...rest] = ids as [string, string, string, string]
    await parts.rows('UPDATE rollcall.leases SET lease_ms = 60000')
    await parts.rows(`UPDATE rollcall.leases SET lost = true WHERE task_id = $1`, [lost])
    await parts.rows(`UPDATE rollcall.timer_ticks SET ticked_at = now() - interval '1 minute'`)
    await parts.timers.tick()
    await parts.timers.tick()
    t.not((await parts.task(lost)).status, 'PROCESSING')
    for (const id of [unheard, ...rest]) t.equal((await parts.task(id)).status, 'PROCESSING')
    const beat = { taskId: unheard, attempt: 1, leaseTokenHash: TOKEN_A, progress: null }
    t.match(await parts.leases.heartbeat([beat]), [{ state: 'held' }])
  },
)

t.test('after a gap no other process takes a lease before all were given anew', async t => {
  const parts = await setUp(t)
  const ids = await submitTasks(parts.engine, 2, () => ({ timeouts: { ...LONG, leaseMs: 1 } }))
  await parts.engine.executeMany(ids.map(id => ask(id, start())))
  await parts.projected()
  await parts.rows('UPDATE rollcall.leases SET lease_ms = 60000')
  await parts.rows(`UPDATE rollcall.timer_ticks SET ticked_at = now() - interval '1 minute'`)
  // Somebody holds one of the rows, so that giving the leases anew takes a while.
  const holder = new pg.Client(parts.url)
  await holder.connect()
  t.teardown(() => holder.end())
  await holder.query('BEGIN')
  await holder.query('SELECT 1 FROM rollcall.leases WHERE task_id = $1 FOR UPDATE', [ids[0]])
  const other = await openParts(t, parts.url)
  const blocked = async () => {
    const [row] = await parts.rows<{ n: number }>(
      `SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    )
    return row!.n
  }
  const first = parts.timers.tick()
  await until('the first gives leases', async () => (await blocked()) === 1)
  let secondDone = false
  const second = other.timers.tick().then(() => {
    secondDone = true
  })
  await until('the second waits, or was let pass', async () => secondDone || (await blocked()) === 2)
  await holder.query('COMMIT')
  await Promise.all([first, second])
  for (const id of ids) t.equal((await parts.task(id)).status, 'PROCESSING')
})

t.test('work state that got lost is put back: every task still ends', async t => {
  const parts = await setUp(t)
  const timeouts = { ...LONG, leaseMs: 300 }
  const pending = await submitTasks(parts.engine, 30, () => ({ timeouts }))
  await parts.projected()
  const running = await parts.claims.claim(aClaim({ max: 10 }), NEVER)
  // Taken and never started.
  const stopped = await startEngine(parts.log)
  await stopped.stop()
  const broken = new Claims(parts.workState, stopped, parts.signal).claim(aClaim({ max: 5 }), NEVER)
  await t.rejects(broken, { code: 'shutting_down' })
  const delayed = await submitTasks(parts.engine, 5, () => ({ timeouts, delayMs: 200 }))
  await parts.projected()
  await parts.rows('TRUNCATE rollcall.ready, rollcall.offers, rollcall.leases')
  // Half of those that run go on and report, the others have fallen silent.
  for (const { taskId } of running.slice(0, 5))
    mustBe('accepted', await parts.engine.execute(ask(taskId, succeed())))
  parts.timers.start()
  const ids = [...pending, ...delayed]
  const finished = async () =>
    [...(await parts.engine.readMany(ids)).values()].every(
      one => one.kind === 'task' && one.task.status === 'SUCCESS',
    )
  await until('every task ends', async () => {
    const tasks = await parts.claims.claim(aClaim({ max: 50, waitMs: 100, leaseTokenHash: TOKEN_B }), NEVER)
    await parts.engine.executeMany(
      tasks.map(({ taskId, attempt }) => ask(taskId, succeed({ attempt, leaseTokenHash: TOKEN_B }))),
    )
    return finished()
  })
  const audit = await auditLog(parts.log, ids)
  t.strictSame([audit.missing, audit.doubled, audit.broken], [[], [], []])
  await parts.projected()
  t.strictSame(await differences(parts.pool, parts.log), [])
})

t.test('timers of two processes look at once: each deadline fires once', async t => {
  const parts = await setUp(t)
  const other = await openParts(t, parts.url)
  const ids = await submitTasks(parts.engine, 150, index => ({
    timeouts: { ...LONG, queueMs: 50, leaseMs: 50 },
    retry: { ...AT_ONCE, maxAttempts: 1 + (index % 2) },
  }))
  const started = ids.slice(0, 100)
  await parts.engine.executeMany(started.map(id => ask(id, start())))
  await parts.projected()
  await beatOnce(parts, started)
  const failed = async () =>
    [...(await parts.engine.readMany(ids)).values()].every(
      one => one.kind === 'task' && one.task.status === 'FAILED',
    )
  await until('all have failed', async () => {
    await Promise.all([parts.timers.tick(), other.timers.tick()])
    return failed()
  })
  const audit = await auditLog(parts.log, ids)
  t.strictSame([audit.missing, audit.doubled, audit.broken], [[], [], []])
  const counts = await parts.rows(
    'SELECT type, count(*)::int AS n FROM rollcall_log.events WHERE stream = ANY ($1) GROUP BY type ORDER BY type',
    [ids.map(streamOf)],
  )
  t.strictSame(counts, [
    { type: 'TaskAttemptTimedOut', n: 50 },
    { type: 'TaskRequeued', n: 50 },
    { type: 'TaskStarted', n: 100 },
    { type: 'TaskSubmitted', n: 150 },
    { type: 'TaskTimedOut', n: 150 },
  ])
})

t.test('what is set aside is not asked again at every look', async t => {
  const { logger, lines } = recordingLogger()
  const parts = await setUp(t)
  const taskId = await submitOne(parts, { timeouts: { queueMs: 1 } })
  await parts.projected()
  await parts.rows('INSERT INTO rollcall.set_aside (task_id, revision, reason) VALUES ($1, 0, $2)', [
    taskId,
    'a test',
  ])
  await parts.rows(`UPDATE rollcall.deadlines SET due_at = now() - interval '1 second'`)
  const other = await openParts(t, parts.url, { logger })
  await other.timers.tick()
  t.strictSame(
    lines.filter(({ level }) => level >= 40),
    [],
  )
  t.equal((await parts.task(taskId)).status, 'PENDING')
  await parts.rows('TRUNCATE rollcall.set_aside')
  await tickUntil(parts, 'it fails', isAt(parts, taskId, 'FAILED'))
})

t.test('timers may be started and stopped twice; they look until they are stopped', async t => {
  const parts = await startParts(t)
  const { timers } = parts
  let looks = 0
  let looked = signalled()
  timers.tick = async () => {
    looks++
    looked.resolve()
    looked = signalled()
  }
  await timers.stop()
  for (let time = 0; time < 2; time++) {
    timers.start()
    timers.start()
    await looked.promise
    await looked.promise
    await Promise.all([timers.stop(), timers.stop()])
  }
  const before = looks
  await new Promise(resolve => setTimeout(resolve, 100))
  t.equal(looks, before)
})

t.test(
  'a stop waits for the look that is under way, and a start meanwhile makes no second rhythm',
  async t => {
    const parts = await startParts(t)
    const timers = new Timers({ ...parts, logger: SILENT, intervalMs: 5 })
    t.teardown(() => timers.stop())
    let atOnce = 0
    let most = 0
    let looks = 0
    const entered = signalled()
    const goOn = signalled()
    timers.tick = async () => {
      most = Math.max(most, ++atOnce)
      looks++
      entered.resolve()
      await goOn.promise
      await new Promise(resolve => setTimeout(resolve, 10))
      atOnce--
    }
    timers.start()
    await entered.promise
    let stopped = false
    const stopping = timers.stop().then(() => {
      stopped = true
    })
    timers.start()
    await new Promise(setImmediate)
    t.notOk(stopped)
    goOn.resolve()
    await stopping
    await until('it looks again', () => looks > 10)
    t.equal(most, 1)
    await timers.stop()
  },
)

t.test('a look that fails is tried again, more slowly, and says so', async t => {
  const { logger, lines } = recordingLogger()
  const parts = await startParts(t, { logger })
  const tick = parts.timers.tick.bind(parts.timers)
  let failures = 2
  parts.timers.tick = () => (failures-- > 0 ? Promise.reject(new Error('the database is away')) : tick())
  const taskId = await submitOne(parts, { timeouts: { queueMs: 1 } })
  parts.projector.start()
  parts.timers.start()
  await until('it fails', isAt(parts, taskId, 'FAILED'))
  t.equal(lines.filter(({ level, msg }) => level === 50 && msg === 'the timers could not look').length, 2)
})

t.test('a task retried by hand while its backoff ends is requeued once', async t => {
  const parts = await setUp(t)
  const taskId = await submitOne(parts)
  for (const command of [start(), fail()])
    mustBe('accepted', await parts.engine.execute(ask(taskId, command)))
  await parts.projected()
  const other = await openParts(t, parts.url)
  await Promise.all([
    parts.timers.tick(),
    other.timers.tick(),
    parts.engine.execute(ask(taskId, retry())),
    other.engine.execute(ask(taskId, retry(), { commandId: randomUUID() })),
  ])
  t.strictSame(await typesOf(parts.log, taskId), [
    'TaskSubmitted',
    'TaskStarted',
    'TaskAttemptFailed',
    'TaskRequeued',
  ])
})

t.test(
  'a deadline that was refused for good is asked again when its row changes, and not before',
  async t => {
    const { logger, lines } = recordingLogger()
    const parts = await setUp(t)
    const taskId = await submitOne(parts, { timeouts: { queueMs: MINUTE_MS } })
    await parts.projected()
    const other = await openParts(t, parts.url, { logger })
    const refusals = () => lines.filter(({ msg }) => msg === 'refused').length
    const damage = (dueAt: string) =>
      parts.rows(`UPDATE rollcall.deadlines SET due_at = date_trunc('milliseconds', now()) - $1::interval`, [
        dueAt,
      ])
    await damage('1 second')
    for (let look = 0; look < 3; look++) await other.timers.tick()
    t.equal(refusals(), 1)
    await damage('2 seconds')
    for (let look = 0; look < 3; look++) await other.timers.tick()
    t.equal(refusals(), 2)
    t.equal((await parts.task(taskId)).status, 'PENDING')
  },
)

t.test(
  'a deadline that got lost is armed again in every open status, and no task is without one',
  async t => {
    const parts = await setUp(t)
    const ids = [
      await submitOne(parts),
      await submitOne(parts, { delayMs: MINUTE_MS }),
      await submitOne(parts),
      await submitOne(parts, { retryMs: MINUTE_MS }),
    ] as const
    for (const id of ids.slice(2)) mustBe('accepted', await parts.engine.execute(ask(id, start())))
    mustBe('accepted', await parts.engine.execute(ask(ids[3], fail())))
    await parts.projected()
    const deadlines = () => parts.rows('SELECT * FROM rollcall.deadlines ORDER BY task_id')
    const before = await deadlines()
    t.equal(before.length, 4)
    await parts.rows('TRUNCATE rollcall.deadlines')
    await tickUntil(parts, 'they are armed', async () => (await deadlines()).length === 4)
    t.strictSame(await deadlines(), before)
    t.strictSame(await parts.rows('SELECT task_id FROM rollcall.ready'), [{ task_id: ids[0] }])
    await t.test('by nobody whose view of the task is another than the read model’s', async t => {
      const old = await parts.task(ids[0])
      if (old.status !== 'PENDING') throw new Error('it waits')
      mustBe('accepted', await parts.engine.execute(ask(ids[0], start())))
      mustBe('accepted', await parts.engine.execute(ask(ids[0], succeed())))
      await parts.projected()
      await parts.workState.armDeadlines([old])
      await parts.workState.makeReady([old])
      t.strictSame(await parts.rows('SELECT * FROM rollcall.deadlines WHERE task_id = $1', [ids[0]]), [])
      t.strictSame(await parts.rows('SELECT * FROM rollcall.ready'), [])
    })
  },
)
