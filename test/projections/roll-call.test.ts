import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { LogWentBackwardsError } from '../../src/eventlog/event-log.ts'
import { RollCall, type RollCallReport, rollCallFigures } from '../../src/projections/roll-call.ts'
import { OTHER_TYPES, TYPES_MAX } from '../../src/projections/roll-call-report.ts'
import { cancel, start } from '../domain/specification.ts'
import { ask, mustBe, type Parts, startParts, submitTasks, wrapLog } from '../support/service-parts.ts'

const GRACE_MS = 60_000

/** Two that wait, two that run, one cancelled; and a roll call that is never answered from before. */
async function called(
  t: Test,
): Promise<{ parts: Parts; ids: string[]; call: (options?: object) => Promise<RollCallReport> }> {
  const parts = await startParts(t)
  const { engine, projector, pool, log } = parts
  const ids = await submitTasks(engine, 5)
  for (const answer of await engine.executeMany([
    ...ids.slice(2, 4).map(id => ask(id, start())),
    ask(ids[4]!, cancel()),
  ]))
    mustBe('accepted', answer)
  projector.start()
  await parts.projected()
  return { parts, ids, call: options => new RollCall(pool, log, { graceMs: GRACE_MS, ...options }).read() }
}

/** The reasons that hold for somebody, with who. */
const reasonsOf = ({ unaccounted }: RollCallReport) =>
  Object.fromEntries(
    unaccounted.reasons
      .filter(({ count }) => count > 0)
      .map(({ reason, count, tasks }) => [reason, [count, ...tasks.map(({ taskId }) => taskId)]]),
  )

t.test('everybody answers: counts by type and status, and nobody is unaccounted for', async t => {
  const { call, ids, parts } = await called(t)
  const report = await call()
  t.match(report, {
    tasks: 5,
    open: 4,
    unaccounted: { total: 0, unknownBecause: null },
    withoutLiveWorker: { count: 0, tasks: [] },
    lag: { events: 0, moreEvents: false, seconds: 0, boundSeconds: 10 },
    verified: null,
    graceMs: GRACE_MS,
  })
  t.strictSame(
    report.groups.map(({ type, status, count, overdue }) => [type, status, count, overdue]),
    [
      ['image.generate', 'PENDING', 2, 0],
      ['image.generate', 'PROCESSING', 2, 0],
      ['image.generate', 'CANCELLED', 1, 0],
    ],
  )
  const [oldest] = await parts.rows<{ at: Date }>(
    'SELECT min(created_at) AS at FROM rollcall.tasks WHERE task_id = ANY ($1::uuid[])',
    [ids.slice(0, 2)],
  )
  t.equal(report.groups[0]?.oldestCreatedAt, oldest!.at.toISOString())
})

/** To the first task that waits, $1; those with more rows than they need take it twice. */
const FAULTS: [title: string, reason: string, detail: RegExp, sql: string][] = [
  [
    'open without a timer',
    'no_timer',
    /^it is PENDING and no timer/,
    'DELETE FROM rollcall.deadlines WHERE task_id = $1',
  ],
  [
    'overdue beyond the grace',
    'overdue',
    /^queue was due at 20\d\d-.*Z$/,
    `UPDATE rollcall.deadlines SET due_at = now() - interval '61 s' WHERE task_id = $1`,
  ],
  [
    'set aside',
    'set_aside',
    /^no schema/,
    `INSERT INTO rollcall.set_aside (task_id, revision, reason) VALUES ($1, 3, 'no schema takes it')`,
  ],
  [
    'in the log and in no row',
    'not_in_read_model',
    /^row_missing: gone$/,
    `INSERT INTO rollcall.drift (task_id, kind, detail) VALUES ($1, 'row_missing', 'gone')`,
  ],
  [
    'rows that differ in two ways',
    'drift',
    /^deadline_differs: later; row_differs: other$/,
    `INSERT INTO rollcall.drift (task_id, kind, detail)
     VALUES ($1, 'row_differs', 'other'), ($1, 'deadline_differs', 'later')`,
  ],
]

for (const [title, reason, detail, sql] of FAULTS)
  t.test(`unaccounted for: ${title}`, async t => {
    const { call, ids, parts } = await called(t)
    await parts.rows(sql, [ids[0]])
    const report = await call()
    t.strictSame(reasonsOf(report), { [reason]: [1, ids[0]] })
    t.equal(report.unaccounted.total, 1)
    t.match(report.unaccounted.reasons.find(one => one.reason === reason)?.tasks[0]?.detail, detail)
    t.equal(report.groups[0]?.overdue, reason === 'overdue' ? 1 : 0)
    const { unaccounted, overdue, setAside, drift } = rollCallFigures(report)
    t.strictSame(
      { unaccounted, overdue, setAside, drift },
      {
        unaccounted: 1,
        overdue: reason === 'overdue' ? 1 : 0,
        setAside: reason === 'set_aside' ? 1 : 0,
        drift: ['drift', 'not_in_read_model'].includes(reason) ? 1 : null,
      },
    )
  })

t.test('a task with many faults counts once; the timers have their grace', async t => {
  const { call, ids, parts } = await called(t)
  for (const [, , , sql] of FAULTS) await parts.rows(sql, [ids[0]])
  await parts.rows(`UPDATE rollcall.deadlines SET due_at = now() - interval '58 s' WHERE task_id <> $1`, [
    ids[0],
  ])
  const report = await call()
  t.equal(report.unaccounted.total, 1)
  t.strictSame(Object.keys(reasonsOf(report)), ['no_timer', 'set_aside', 'not_in_read_model', 'drift'])
})

t.test('at most 20 tasks are named for a reason, the oldest fault first, and all are counted', async t => {
  const { call, parts } = await called(t)
  const ids = Array.from({ length: 30 }, () => randomUUID())
  await parts.rows(
    `INSERT INTO rollcall.set_aside (task_id, revision, reason, set_aside_at)
     SELECT id, 0, repeat('x', 5000), now() - place * interval '1 s'
       FROM unnest($1::uuid[]) WITH ORDINALITY asked (id, place)`,
    [ids],
  )
  const { unaccounted } = await call()
  const aside = unaccounted.reasons.find(({ reason }) => reason === 'set_aside')!
  t.equal(unaccounted.total, 30)
  t.equal(aside.count, 30)
  t.strictSame(
    aside.tasks.map(({ taskId }) => taskId),
    ids.toReversed().slice(0, 20),
  )
  t.equal(aside.tasks[0]?.detail.length, 300)
})

t.test('running without a live worker: the lease ended, was taken, or is missing', async t => {
  const { call, ids, parts } = await called(t)
  await parts.rows(`UPDATE rollcall.leases SET held_until = now() - interval '1 s' WHERE task_id = $1`, [
    ids[2],
  ])
  await parts.rows('DELETE FROM rollcall.leases WHERE task_id = $1', [ids[3]])
  const report = await call()
  t.match(report.withoutLiveWorker, {
    count: 2,
    tasks: [
      { taskId: ids[3], detail: 'no lease is known of attempt 1' },
      { taskId: ids[2], detail: /^the lease of \S+ ended at 20\d\d-.*Z$/ },
    ],
  })
  t.equal(report.unaccounted.total, 0, 'their lease timer is what leaves that state')
})

t.test('it does not say 0 while the read model is too far behind, or is of another log', async t => {
  const { call, parts, ids } = await called(t)
  const { log, pool } = parts
  await parts.projector.stop()
  await parts.engine.execute(ask(ids[0]!, cancel()))
  const late = await call({ lagBoundSeconds: 0.000_001 })
  t.match(late, {
    unaccounted: { total: null, unknownBecause: /^the read model is 0 s behind the log; more than/ },
    lag: { events: 1 },
  })
  t.equal(rollCallFigures(late).unaccounted, null)
  t.match(await call(), { unaccounted: { total: 0 }, lag: { events: 1 } }, 'within the bound it does')

  const restored = wrapLog(log, {
    countAfter: () => Promise.reject(new LogWentBackwardsError('restored')),
  })
  const report = await new RollCall(pool, restored).read()
  t.match(report, {
    unaccounted: { total: null, unknownBecause: /^the log went backwards/ },
    lag: { events: null },
  })
  t.match(rollCallFigures(report), { unaccounted: null, lagEvents: null, lagSeconds: null })
})

t.test('many types: the largest by name, the rest in one sum', async t => {
  const { call, parts } = await called(t)
  await parts.rows(
    `INSERT INTO rollcall.tasks
     SELECT r.* FROM generate_series(1, ${TYPES_MAX + 9}) n, rollcall.tasks t,
            jsonb_populate_record(t, jsonb_build_object('task_id', gen_random_uuid(), 'type', 'type-' || n)) r
      WHERE t.status = 'CANCELLED'`,
  )
  const { groups, tasks } = await call()
  t.equal(tasks, TYPES_MAX + 14)
  t.equal(new Set(groups.map(({ type }) => type)).size, TYPES_MAX + 1)
  t.match(groups.at(-1), { type: OTHER_TYPES, status: 'CANCELLED', count: 10 })
})

t.test('asked many times within a second, the database is asked once', async t => {
  const { parts, ids } = await called(t)
  const rollCall = new RollCall(parts.pool, parts.log)
  const [first, second] = await Promise.all([rollCall.read(), rollCall.read()])
  t.equal(first, second)
  await parts.rows(`INSERT INTO rollcall.set_aside (task_id, revision, reason) VALUES ($1, 0, 'x')`, [ids[0]])
  t.equal(await rollCall.read(), first)
})
