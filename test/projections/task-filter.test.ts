/** What lists and counts are asked: each filter finds what it says, by an index where there is one, and never for long. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { STATUSES } from '../../src/domain/lifecycle.ts'
import { Searches, SearchesBusyError, SearchTooSlowError } from '../../src/projections/searches.ts'
import { countTasks } from '../../src/projections/task-counts.ts'
import type { TaskFilter } from '../../src/projections/task-filter.ts'
import { type ListFilter, listTasks } from '../../src/projections/task-list.ts'
import { cancel, fail, start } from '../domain/specification.ts'
import { ask, ManualClock, mustBe, type Parts, startParts, submitting } from '../support/service-parts.ts'

const T0 = Date.UTC(2026, 0, 1)
const WEIRD = String.raw`50%_off \ "now" 'or' later`

/** Ten tasks, a second apart; what makes them differ stands in each test. */
async function tenTasks(t: Test): Promise<{ parts: Parts; ids: string[] }> {
  const clock = new ManualClock()
  const parts = await startParts(t, { clock })
  const ids: string[] = []
  for (let index = 0; index < 10; index++) {
    clock.at = T0 + index * 1_000
    const id = `00000000-0000-4000-8000-00000000000${index}`
    const labels: Record<string, string> = { project: index % 2 ? 'odd' : 'even', n: String(index) }
    if (index === 7) labels.weird = WEIRD
    if (index === 8) labels.project = ''
    const asked = submitting({
      type: index < 5 ? 'image.generate' : 'report.export',
      tenant: index < 3 ? 'acme' : index < 6 ? 'bolt' : null,
      labels: index === 9 ? {} : labels,
      retry: { maxAttempts: 1, initialDelayMs: 1_000, factor: 2, maxDelayMs: 1_000, jitter: 0 },
    })
    mustBe('accepted', await parts.engine.execute(ask(id, asked, { correlationId: `order-${index % 4}` })))
    ids.push(id)
  }
  const errors: [number, { code: string; message: string }][] = [
    [0, { code: 'out_of_memory', message: 'The picture is too LARGE.' }],
    [1, { code: 'sold_out', message: WEIRD }],
    [6, { code: 'broken', message: 'sold_out' }],
  ]
  for (const [index, error] of errors) {
    mustBe('accepted', await parts.engine.execute(ask(ids[index]!, start())))
    mustBe('accepted', await parts.engine.execute(ask(ids[index]!, fail({ error }))))
  }
  mustBe('accepted', await parts.engine.execute(ask(ids[2]!, cancel('wrong Picture'))))
  parts.projector.start()
  await parts.projected()
  return { parts, ids }
}

t.test('each filter finds what it says, alone and with others; counts agree with lists', async t => {
  const { parts, ids } = await tenTasks(t)
  const at = (seconds: number) => new Date(T0 + seconds * 1_000).toISOString()
  const cases: [title: string, filter: TaskFilter, found: number[]][] = [
    ['nothing asked', {}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]],
    ['a label', { labels: { project: 'even' } }, [0, 2, 4, 6]],
    ['a label that is empty', { labels: { project: '' } }, [8]],
    ['a label that nobody has', { labels: { project: 'evén' } }, []],
    ['a name without its value', { labels: { even: 'project' } }, []],
    ['a part of a value', { labels: { project: 'eve' } }, []],
    ['two labels', { labels: { project: 'even', n: '4' } }, [4]],
    ['two labels that no task has both', { labels: { project: 'even', n: '3' } }, []],
    ['a number is a text', { labels: { n: '3' } }, [3]],
    ['a label with everything in it', { labels: { weird: WEIRD } }, [7]],
    ['no labels', { labels: {} }, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]],
    ['a tenant', { tenant: 'acme' }, [0, 1, 2]],
    ['a tenant that nobody is', { tenant: 'acm' }, []],
    ['a correlation', { correlationId: 'order-1' }, [1, 5, 9]],
    ['a part of a correlation', { correlationId: 'order' }, []],
    ['from a time on', { createdAfter: at(7) }, [7, 8, 9]],
    ['before a time', { createdBefore: at(2) }, [0, 1]],
    ['between two times', { createdAfter: at(2), createdBefore: at(4) }, [2, 3]],
    ['between a time and itself', { createdAfter: at(2), createdBefore: at(2) }, []],
    ['a millisecond later', { createdAfter: at(6.001), createdBefore: at(7.001) }, [7]],
    ['part of an error, in another case', { error: 'PICTURE' }, [0, 2]],
    ['a code, and a message that is one', { error: 'sold_out' }, [1, 6]],
    ['a part of a code', { error: 'out_of' }, []],
    ['a reason', { error: 'wrong' }, [2]],
    ['a percent sign is one', { error: '50%_off' }, [1]],
    ['and stands for nothing else', { error: '%' }, [1]],
    ['an underscore too', { error: 'l_r' }, []],
    ['a backslash is one', { error: '\\ "now"' }, [1]],
    ['quotes end nothing', { error: "' OR true --" }, []],
    [
      'all of them',
      {
        statuses: ['FAILED', 'CANCELLED'],
        type: 'image.generate',
        tenant: 'acme',
        labels: { project: 'even' },
        correlationId: 'order-2',
        createdAfter: at(1),
        createdBefore: at(5),
        error: 'picture',
      },
      [2],
    ],
  ]
  for (const [title, filter, found] of cases) {
    for (const limit of [1, 3, 500])
      t.strictSame(
        (await pagesOf(parts, filter, limit)).map(id => ids.indexOf(id)),
        found,
        `${title}, ${limit}`,
      )
    const { counts } = await countTasks(parts.pool, filter)
    const all = Object.values(counts).reduce((sum, { count }) => sum + count, 0)
    t.equal(all, found.length, `${title}, counted`)
  }
})

async function pagesOf({ pool }: Parts, filter: TaskFilter, limit: number): Promise<string[]> {
  const ids: string[] = []
  let after: ListFilter['after'] = null
  do {
    const page = await listTasks(pool, { ...filter, order: 'oldest', limit, after })
    ids.push(...page.rows.map(row => row.task_id))
    after = page.next
  } while (after)
  return ids
}

t.test('counts: by status, as of one time, and no further than a bound', async t => {
  const { parts } = await tenTasks(t)
  const exact = (count: number) => ({ count, exact: true })
  const none = Object.fromEntries(STATUSES.map(status => [status, exact(0)]))
  const { counts, countedAt } = await countTasks(parts.pool, {})
  t.strictSame(counts, { ...none, PENDING: exact(6), FAILED: exact(3), CANCELLED: exact(1) })
  t.ok(Math.abs(countedAt.getTime() - Date.now()) < 60_000, 'by the clock of the database')
  const bounded = await countTasks(parts.pool, {}, 3)
  t.strictSame(
    bounded.counts,
    { ...none, PENDING: { count: 3, exact: false }, FAILED: exact(3), CANCELLED: exact(1) },
    'what is at the bound is exact, what is beyond is not',
  )
  const some = await countTasks(parts.pool, { statuses: ['FAILED', 'FAILED', 'SUCCESS'] })
  t.strictSame(some.counts, { ...none, FAILED: exact(3) }, 'a status that is left out counts 0')
  t.strictSame((await countTasks(parts.pool, { statuses: [] })).counts, none)
})

t.test(
  'labels, correlations, tenants and errors of few among many rows are found by their indexes',
  async t => {
    const { parts } = await tenTasks(t)
    const { pool } = parts
    await pool.query(
      `INSERT INTO rollcall.tasks
     SELECT (jsonb_populate_record(NULL::rollcall.tasks, to_jsonb(t) || jsonb_build_object(
              'task_id', gen_random_uuid(), 'labels', jsonb_build_object('bulk', (n % 1000)::text),
              'correlation_id', null, 'tenant', null, 'created_at', t.created_at + n * interval '1 ms'))).*
       FROM (SELECT * FROM rollcall.tasks WHERE error_code IS NULL LIMIT 1) t, generate_series(1, 5000) n`,
    )
    await pool.query('VACUUM ANALYZE rollcall.tasks')
    const cases: [TaskFilter, string][] = [
      [{ labels: { n: '4' } }, 'tasks_by_label'],
      [{ correlationId: 'order-1' }, 'tasks_by_correlation'],
      [{ tenant: 'acme' }, 'tasks_by_tenant'],
      [{ error: 'picture' }, 'tasks_with_error'],
    ]
    for (const [filter, index] of cases) {
      const plans: string[] = []
      const explaining = {
        query: async (text: string, values: unknown[]) => {
          const { rows } = await pool.query(`EXPLAIN ${text}`, values)
          plans.push(rows.map(row => row['QUERY PLAN']).join('\n'))
          return { rows: [] }
        },
      } as unknown as Parts['pool']
      await listTasks(explaining, { ...filter, order: 'newest', limit: 50, after: null })
      await countTasks(explaining, filter).catch(() => {})
      t.equal(plans.length, 2)
      for (const plan of plans) t.match(plan, new RegExp(`Scan.* (using|on) ${index}`), index)
    }
  },
)

t.test('a look has its time and then is given up; the connection is as good as new', async t => {
  const { parts } = await tenTasks(t)
  const searches = new Searches(parts.pool, { ms: 100, atOnce: 1, waitMs: 60_000, waiting: 2 })
  const look = () => searches.search(db => countTasks(db, {}))
  const blocker = await parts.pool.connect()
  await blocker.query('BEGIN; LOCK TABLE rollcall.tasks IN ACCESS EXCLUSIVE MODE')
  const settled = await Promise.allSettled([look(), look(), look(), look()])
  await blocker.query('ROLLBACK')
  blocker.release()
  t.strictSame(
    settled.map(one => one.status === 'rejected' && one.reason.constructor),
    [SearchTooSlowError, SearchTooSlowError, SearchTooSlowError, SearchesBusyError],
    'one at a time, two that wait, and no more',
  )
  t.equal((await look()).counts.FAILED.count, 3)
  for (const { statement_timeout } of await parts.rows<{ statement_timeout: string }>(
    'SHOW statement_timeout',
  ))
    t.equal(statement_timeout, '0', 'nothing of it stays behind')
})

t.test('who waits too long for a turn is sent away, and nobody is passed over', async t => {
  const { parts } = await tenTasks(t)
  const searches = new Searches(parts.pool, { ms: 10_000, atOnce: 1, waitMs: 50, waiting: 10 })
  const order: string[] = []
  const hold = (name: string, ms: number) =>
    searches.search(async () => {
      order.push(name)
      await sleep(ms)
    })
  const first = hold('first', 300)
  await t.rejects(hold('late', 0), { code: 'searches_busy' })
  await first
  await Promise.all([hold('a', 5), hold('b', 5), hold('c', 5)])
  t.strictSame(order, ['first', 'a', 'b', 'c'])
  await t.rejects(
    searches.search(db => db.query('DELETE FROM rollcall.tasks')),
    { code: '25006' },
    'it reads alone',
  )
  await searches.search(db => countTasks(db, {}))
})
