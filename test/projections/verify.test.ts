import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { streamOf } from '../../src/eventlog/codec.ts'
import type { Finding } from '../../src/projections/findings.ts'
import { Verifier } from '../../src/projections/verifier.ts'
import { repair, repairSetAside, type Walked, walkOn } from '../../src/projections/verify.ts'
import { cancel, fail, note, start } from '../domain/specification.ts'
import {
  ask,
  mustBe,
  type Parts,
  recordingLogger,
  startParts,
  submitTasks,
  until,
} from '../support/service-parts.ts'

/** A whole walk in small steps; findings as `kind detail`, with their tasks. */
async function walk(parts: Parts, bounds = { rows: 3, events: 1 }): Promise<Finding[]> {
  const findings: Finding[] = []
  let place: string | null = null
  do {
    const walked: Walked = await walkOn(parts, place, bounds)
    findings.push(...walked.findings)
    place = walked.next
  } while (place !== null)
  return findings
}

/** A row that is gone may be missed by its deadline and by the log. */
const kindsOf = (findings: readonly Finding[]): string[] =>
  [...new Set(findings.map(({ taskId, kind }) => `${taskId} ${kind}`))].sort()

const kept = async ({ rows }: Parts): Promise<string[]> =>
  (
    await rows<{ task_id: string; kind: string }>(
      'SELECT task_id, kind FROM rollcall.drift ORDER BY task_id, kind',
    )
  ).map(({ task_id, kind }) => `${task_id} ${kind}`)

/** Tasks that wait, run, back off and are over, all projected. */
async function projectedTasks(t: Test): Promise<{ parts: Parts; ids: string[] }> {
  const parts = await startParts(t)
  const { engine, projector } = parts
  const ids = await submitTasks(engine, 12, index => (index < 3 ? { delayMs: 60_000 } : {}))
  const run = async (some: readonly string[], command: Parameters<typeof ask>[1]) => {
    for (const answer of await engine.executeMany(some.map(id => ask(id, command))))
      mustBe('accepted', answer)
  }
  await run(ids.slice(5), start())
  await run(ids.slice(8, 10), fail())
  await run(ids.slice(10), cancel())
  projector.start()
  await parts.projected()
  return { parts, ids }
}

t.test('rows that are the fold: a walk finds nothing and says when it was', async t => {
  const { parts } = await projectedTasks(t)
  t.strictSame(await walk(parts), [])
  const [seen] = await parts.rows('SELECT verified_at >= verified_from AS ended FROM rollcall.verification')
  t.strictSame(seen, { ended: true })
})

const AT_TASK = 'WHERE task_id = $1'
const AT_STREAM = 'WHERE stream = $2'
/** Each is done to the task of that number in `projectedTasks`: 0 delayed, 4 waiting, 6 running, 11 cancelled. */
const DAMAGES: [title: string, task: number, kinds: string[], sql: string, detail: RegExp][] = [
  ['a row that is gone', 4, ['row_missing'], `DELETE FROM rollcall.tasks ${AT_TASK}`, /ends at 0/],
  [
    'a row that is gone with its deadline',
    4,
    ['row_missing'],
    `WITH gone AS (DELETE FROM rollcall.tasks ${AT_TASK}) DELETE FROM rollcall.deadlines ${AT_TASK}`,
    /in no row/,
  ],
  [
    'another status',
    4,
    ['row_differs'],
    `UPDATE rollcall.tasks SET status = 'SUCCESS' ${AT_TASK}`,
    /^status is "SUCCESS", should be "PENDING"$/,
  ],
  [
    'another time',
    6,
    ['row_differs'],
    `UPDATE rollcall.tasks SET started_at = started_at - interval '1 ms' ${AT_TASK}`,
    /^started_at is 2/,
  ],
  [
    'a row ahead of its stream',
    6,
    ['row_differs'],
    `UPDATE rollcall.tasks SET revision = 99 ${AT_TASK}`,
    /revision 99, its stream ends at 1/,
  ],
  [
    'an open task without a deadline',
    6,
    ['deadline_missing'],
    `DELETE FROM rollcall.deadlines ${AT_TASK}`,
    /^it is PROCESSING; execution at 2/,
  ],
  [
    'a later deadline',
    4,
    ['deadline_differs'],
    `UPDATE rollcall.deadlines SET due_at = due_at + interval '1 day' ${AT_TASK}`,
    /^due_at is 2/,
  ],
  [
    'the deadline of another attempt',
    0,
    ['deadline_differs'],
    `UPDATE rollcall.deadlines SET attempt = 7 ${AT_TASK}`,
    /attempt is 7, should be 1, or /,
  ],
  [
    'a deadline of a task that is over',
    11,
    ['deadline_differs'],
    `INSERT INTO rollcall.deadlines (task_id, due_at, timer, attempt) VALUES ($1, now(), 'queue', 1)`,
    /^it is CANCELLED, and queue at 2/,
  ],
  [
    'a row without a stream',
    4,
    ['no_stream'],
    `DELETE FROM rollcall_log.events ${AT_STREAM}`,
    /tasks and deadlines/,
  ],
  [
    'an event that was changed',
    6,
    ['chain_broken'],
    `UPDATE rollcall_log.events SET data = replace(data, '{', '{ ') ${AT_STREAM} AND revision = 0`,
    /^event 1 names another hash/,
  ],
  [
    'an event that is gone',
    11,
    ['chain_broken'],
    `DELETE FROM rollcall_log.events ${AT_STREAM} AND revision = 1`,
    /^event 1 is missing/,
  ],
  [
    'an event that nobody knows',
    6,
    ['not_folded'],
    `UPDATE rollcall_log.events SET type = 'TaskForgotten' ${AT_STREAM} AND revision = 1`,
    /TaskForgotten is not known/,
  ],
]

for (const [title, task, kinds, sql, detail] of DAMAGES)
  t.test(`found, mended, right again: ${title}`, async t => {
    const { parts, ids } = await projectedTasks(t)
    const taskId = ids[task]!
    const only = kinds.map(kind => `${taskId} ${kind}`)
    await parts.rows(`WITH named AS (SELECT $1::uuid, $2::text) ${sql.replace(/^WITH gone/, ', gone')}`, [
      taskId,
      streamOf(taskId),
    ])
    const found = await walk(parts)
    t.strictSame(kindsOf(found), only)
    t.match(found[0]?.detail, detail)
    t.strictSame(await kept(parts), only, 'it is kept')
    t.strictSame(kindsOf(await walk(parts)), only, 'and found again')
    t.strictSame(await kept(parts), only)
    t.strictSame(await repair(parts, [taskId]), [], 'mended')
    t.strictSame(await walk(parts), [], 'clean')
    t.strictSame(await kept(parts), [], 'and forgotten')
    // A stream that cannot be folded is nothing that rows could be mended from.
    const unfit = kinds.some(kind => kind === 'chain_broken' || kind === 'not_folded')
    t.match(await parts.rows('SELECT task_id FROM rollcall.set_aside'), unfit ? [{ task_id: taskId }] : [])
  })

t.test('what is set aside is no finding, and what was found of a task that is gone is forgotten', async t => {
  const { parts, ids } = await projectedTasks(t)
  await parts.rows(`UPDATE rollcall_log.events SET type = 'X' WHERE stream = $1 AND revision = 1`, [
    streamOf(ids[6]!),
  ])
  await parts.rows(`INSERT INTO rollcall.set_aside (task_id, revision, reason) VALUES ($1, 1, 'x')`, [ids[6]])
  await parts.rows(
    `INSERT INTO rollcall.drift (task_id, kind, detail, seen_at) VALUES ($1, 'no_stream', 'x', now() - interval '1 h')`,
    [randomUUID()],
  )
  t.strictSame(await walk(parts), [])
  t.strictSame(await kept(parts), [])
})

t.test('what the database refuses is set aside, the others of the step are mended', async t => {
  const { parts, ids } = await projectedTasks(t)
  const [unfit] = await submitTasks(parts.engine, 1, () => ({ priority: 2 ** 40 }))
  await parts.projected()
  await parts.rows('DELETE FROM rollcall.set_aside')
  await parts.rows(`UPDATE rollcall.tasks SET hash = 'x' WHERE task_id = $1`, [ids[4]])
  const found = (await walk(parts)).map(({ taskId }) => taskId)
  t.strictSame(found.sort(), [ids[4], unfit].sort())
  t.strictSame(await repair(parts, found), [])
  t.match(await parts.rows('SELECT task_id, reason FROM rollcall.set_aside'), [
    { task_id: unfit, reason: /out of range/ },
  ])
})

t.test('what was set aside is taken back once it can be folded', async t => {
  const { parts, ids } = await projectedTasks(t)
  await parts.rows(
    `INSERT INTO rollcall.set_aside (task_id, revision, reason) SELECT unnest($1::uuid[]), 1, 'x'`,
    [ids.slice(4, 6)],
  )
  await parts.rows(`UPDATE rollcall_log.events SET type = 'X' WHERE stream = $1`, [streamOf(ids[4]!)])
  await repairSetAside(parts)
  t.match(await parts.rows('SELECT task_id, reason FROM rollcall.set_aside'), [
    { task_id: ids[4], reason: 'x' },
  ])
})

t.test('a delayed task may stand with either of its two deadlines', async t => {
  const { parts, ids } = await projectedTasks(t)
  await parts.rows(
    `UPDATE rollcall.deadlines SET timer = 'queue',
            due_at = (SELECT to_timestamp((data::jsonb ->> 'queueDeadlineAt')::bigint / 1000.0)
                        FROM rollcall_log.events WHERE stream = $2 AND revision = 0)
      WHERE task_id = $1`,
    [ids[0], streamOf(ids[0]!)],
  )
  t.strictSame(await walk(parts), [])
})

t.test('a walk finds nothing while events flow', async t => {
  const parts = await startParts(t)
  const { engine, projector } = parts
  projector.start()
  const done = new AbortController()
  const flow = async () => {
    while (!done.signal.aborted) {
      const ids = await submitTasks(engine, 20, index => (index < 5 ? { delayMs: 1 } : {}))
      await engine.executeMany(ids.map(id => ask(id, start())))
      await engine.executeMany(ids.map(id => ask(id, note())))
      await engine.executeMany(ids.slice(5).map(id => ask(id, cancel())))
    }
  }
  const flowing = flow()
  let walks = 0
  const end = performance.now() + 3_000
  while (performance.now() < end) {
    t.strictSame(await walk(parts, { rows: 50, events: 1 }), [])
    walks++
  }
  done.abort()
  await flowing
  t.ok(walks > 1, `${walks} walks`)
})

t.test('tasks are mended while the projector moves them on', async t => {
  const { parts, ids } = await projectedTasks(t)
  const { engine, rows } = parts
  const waiting = ids.slice(3, 5)
  const running = ids.slice(5, 8)
  await rows(`UPDATE rollcall.tasks SET priority = 5, hash = 'x' WHERE task_id = ANY ($1::uuid[])`, [ids])
  await rows('DELETE FROM rollcall.tasks WHERE task_id = $1', [waiting[0]])
  await Promise.all([
    repair(parts, ids),
    engine.executeMany(waiting.map(id => ask(id, start()))),
    engine.executeMany(running.map(id => ask(id, note()))),
    repair(parts, ids),
  ])
  await parts.projected()
  t.strictSame(await walk(parts), [])
})

t.test('a read model that is rebuilt is not told to have lost its rows', async t => {
  const { parts } = await projectedTasks(t)
  let place: string | null = null
  do place = (await walkOn(parts, place, { rows: 100, events: 1 })).next
  while (place && !Buffer.from(place, 'base64url').toString().includes('"over":"log"'))
  await parts.projector.stop()
  await parts.rows('TRUNCATE rollcall.tasks, rollcall.deadlines, rollcall.projectors')
  await t.rejects(walkOn(parts, place, { rows: 100, events: 1 }), { code: 'not_projected' })
  t.strictSame(await kept(parts), [])
  parts.projector.start()
  await parts.projected()
  t.strictSame((await walkOn(parts, place, { rows: 100, events: 1 })).findings, [])
})

t.test('a place that no walk gave is refused', async t => {
  const { parts } = await projectedTasks(t)
  for (const place of ['', 'x', Buffer.from('{"over":"rows"}').toString('base64url')])
    await t.rejects(walkOn(parts, place, { rows: 1, events: 1 }), { code: 'unknown_place' })
})

t.test('the verifier walks by itself, goes on where it was, and tells of what is new once', async t => {
  const { parts, ids } = await projectedTasks(t)
  const { logger, lines } = recordingLogger()
  let active = false
  const options = { ...parts, logger, active: () => active, rowsPerSecond: 400, intervalMs: 10, restMs: 10 }
  const verifier = new Verifier(options)
  verifier.start()
  verifier.start()
  const walks = async () =>
    (await parts.rows<{ at: string }>('SELECT verified_at::text AS at FROM rollcall.verification'))[0]!.at
  await sleep(100)
  t.equal(await walks(), null, 'another process projects')
  active = true
  await until('it has walked', async () => (await walks()) !== null)
  await parts.rows(`UPDATE rollcall.tasks SET priority = 9 WHERE task_id = $1`, [ids[4]])
  await until('it is found', async () => (await kept(parts)).length > 0)
  const again = await walks()
  await until('it has walked twice more', async () => (await walks()) > again)
  await verifier.stop()
  await verifier.stop()
  const told = lines.filter(({ level }) => level >= 50)
  t.strictSame(told.length, 1, JSON.stringify(told))
  t.match(told[0], { taskId: ids[4], kind: 'row_differs', msg: /differs/ })
  const ended = await walks()
  await parts.rows(`UPDATE rollcall.tasks SET priority = 0 WHERE task_id = $1`, [ids[4]])
  await sleep(100)
  t.equal(await walks(), ended, 'stopped')

  const second = new Verifier({ ...options, rowsPerSecond: 1, intervalMs: 20 })
  second.start()
  await until('what was found is looked at first', async () => (await kept(parts)).length === 0)
  await second.stop()
})
