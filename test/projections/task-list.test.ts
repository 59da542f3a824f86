import t from 'tap'
import type { Status } from '../../src/domain/lifecycle.ts'
import { type ListFilter, listTasks } from '../../src/projections/task-list.ts'
import { cancel, start } from '../domain/specification.ts'
import { ask, ManualClock, type Parts, startParts, submitTasks } from '../support/service-parts.ts'

async function wholeList({ pool }: Parts, over: Partial<ListFilter>): Promise<string[]> {
  const ids: string[] = []
  let after: ListFilter['after'] = null
  do {
    const page = await listTasks(pool, {
      order: 'newest',
      limit: 50,
      ...over,
      after,
    })
    ids.push(...page.rows.map(row => row.task_id))
    if (page.rows.length === 0 && page.next) throw new Error('a page without rows leads on')
    after = page.next
  } while (after)
  return ids
}

t.test(
  'S57 rows made in the same millisecond: each is listed once, whatever the page and the order',
  async t => {
    // The clock stands still.
    const parts = await startParts(t, { clock: new ManualClock() })
    const ids = (await submitTasks(parts.engine, 120)).sort()
    parts.projector.start()
    await parts.projected()
    for (const limit of [1, 7, 50, 120, 1_000]) {
      t.strictSame(await wholeList(parts, { limit, order: 'oldest' }), ids, `oldest first, pages of ${limit}`)
      t.strictSame(await wholeList(parts, { limit }), [...ids].reverse(), `newest first, pages of ${limit}`)
    }
  },
)

t.test('lists are filtered by statuses and type; rows that move do not disturb the pages', async t => {
  const clock = new ManualClock()
  const parts = await startParts(t, { clock })
  const ids: string[] = []
  for (let index = 0; index < 30; index++) {
    clock.pass(index % 3)
    ids.push(
      ...(await submitTasks(parts.engine, 1, () => ({ type: index % 2 ? 'report' : 'image.generate' }))),
    )
  }
  await parts.engine.executeMany(ids.slice(0, 10).map(id => ask(id, start())))
  await parts.engine.executeMany(ids.slice(10, 20).map(id => ask(id, cancel())))
  parts.projector.start()
  await parts.projected()
  const listed = async (over: Partial<ListFilter>) => (await wholeList(parts, { limit: 4, ...over })).sort()
  const open: Status[] = ['PENDING', 'PROCESSING']
  t.strictSame(await listed({ statuses: ['CANCELLED'] }), ids.slice(10, 20).sort())
  t.strictSame(await listed({ statuses: open }), [...ids.slice(0, 10), ...ids.slice(20)].sort())
  t.strictSame(await listed({ statuses: [] }), [])
  t.strictSame(await listed({ type: 'report' }), ids.filter((_, index) => index % 2).sort())
  t.strictSame(
    await listed({ type: 'report', statuses: ['PENDING'] }),
    ids.filter((_, index) => index % 2 && index >= 20).sort(),
  )
  const filter = { order: 'oldest', limit: 15 } as const
  const first = await listTasks(parts.pool, { ...filter, after: null })
  await parts.engine.executeMany(ids.map(id => ask(id, cancel())))
  await parts.projected()
  const second = await listTasks(parts.pool, { ...filter, after: first.next })
  t.strictSame([...first.rows, ...second.rows].map(row => row.task_id).sort(), [...ids].sort())
  t.equal(second.next, null)
})
