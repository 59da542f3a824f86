/** Rows of before lists knew labels: no damage, mended while the service runs, found by their labels afterwards. */
import t, { type Test } from 'tap'
import { examineTasks } from '../../src/projections/examine.ts'
import { labelRows } from '../../src/projections/unlabelled.ts'
import { Verifier } from '../../src/projections/verifier.ts'
import { walkOn } from '../../src/projections/verify.ts'
import { cancel, note, start } from '../domain/specification.ts'
import {
  ask,
  mustBe,
  type Parts,
  recordingLogger,
  startParts,
  submitting,
  until,
} from '../support/service-parts.ts'

/** Seven tasks with labels, some of them running or over, whose rows a version before has written. */
async function oldRows(t: Test): Promise<{ parts: Parts; ids: string[] }> {
  const parts = await startParts(t)
  const ids: string[] = []
  for (let index = 0; index < 7; index++) {
    const id = `00000000-0000-4000-8000-00000000000${index}`
    const asked = submitting({ labels: { n: String(index), b: '2', a: '1' } })
    mustBe('accepted', await parts.engine.execute(ask(id, asked, { correlationId: `order-${index}` })))
    ids.push(id)
  }
  mustBe('accepted', await parts.engine.execute(ask(ids[5]!, start())))
  mustBe('accepted', await parts.engine.execute(ask(ids[6]!, cancel())))
  parts.projector.start()
  await parts.projected()
  await parts.rows('UPDATE rollcall.tasks SET labels = NULL, correlation_id = NULL')
  return { parts, ids }
}

const labelled = async ({ rows }: Parts): Promise<string[]> =>
  (
    await rows<{ n: string }>(
      `SELECT labels ->> 'n' AS n FROM rollcall.tasks
        WHERE correlation_id = 'order-' || (labels ->> 'n') ORDER BY task_id`,
    )
  ).map(({ n }) => n)

const ALL = ['0', '1', '2', '3', '4', '5', '6']

t.test('a row without labels is no damage; one with wrong labels is', async t => {
  const { parts, ids } = await oldRows(t)
  t.strictSame((await walkOn(parts, null, { rows: 100, events: 100 })).findings, [])
  await parts.rows(`UPDATE rollcall.tasks SET status = 'SUCCESS' WHERE task_id = $1`, [ids[0]])
  await parts.rows(`UPDATE rollcall.tasks SET labels = '{"n":"9"}' WHERE task_id = $1`, [ids[1]])
  await parts.rows(
    `UPDATE rollcall.tasks SET labels = '{"b":"2","n":"2","a":"1"}', correlation_id = 'order-2' WHERE task_id = $1`,
    [ids[2]],
  )
  await parts.rows(`UPDATE rollcall.tasks SET labels = '{}' WHERE task_id = $1`, [ids[3]])
  const { findings } = await examineTasks(parts, ids)
  t.strictSame(
    findings.map(({ taskId }) => ids.indexOf(taskId)),
    [0, 1, 3],
    'the order of labels says nothing',
  )
  t.match(findings[0]!.detail, /^status is "SUCCESS", should be "PENDING"$/)
  t.match(
    findings[1]!.detail,
    /^labels is {"n":"9"}, should be {"a":"1","b":"2","n":"1"}; correlation_id is null/,
  )
})

t.test(
  'rows get their labels a few at a time, to the last; a stream that is broken leaves its own',
  async t => {
    const { parts, ids } = await oldRows(t)
    await parts.rows(`UPDATE rollcall_log.events SET data = '{}' WHERE stream = $1`, [`task-${ids[1]}`])
    let place: string | null = null
    let steps = 0
    do {
      place = await labelRows(parts, place, 2)
      steps++
    } while (place !== null)
    t.equal(steps, 4)
    t.strictSame(await labelled(parts), ['0', '2', '3', '4', '5', '6'])
    t.equal(await labelRows(parts, null, 2), null, 'what is left is fewer than a step')
    t.strictSame(
      await parts.rows('SELECT task_id FROM rollcall.leases UNION ALL SELECT task_id FROM rollcall.ready'),
      [5, 0, 1, 2, 3, 4].map(index => ({ task_id: ids[index] })),
      'and what hangs on the rows stays',
    )
  },
)

t.test('a row that moves takes its labels along', async t => {
  const { parts, ids } = await oldRows(t)
  for (const id of [ids[0]!, ids[5]!]) mustBe('accepted', await parts.engine.execute(ask(id, note())))
  await parts.projected()
  t.strictSame(await labelled(parts), ['0', '5'])
})

t.test('the process that projects mends them all and tells nobody of damage', async t => {
  const { parts } = await oldRows(t)
  const { logger, lines } = recordingLogger()
  const { pool, log } = parts
  const verifier = new Verifier({ pool, log, logger, active: () => true, intervalMs: 10, restMs: 10 })
  verifier.start()
  t.teardown(() => verifier.stop())
  await until('all rows have their labels', async () => (await labelled(parts)).length === ALL.length)
  await verifier.stop()
  t.strictSame(await labelled(parts), ALL)
  t.strictSame(lines, [])
})
