import { randomUUID } from 'node:crypto'
import pg from 'pg'
import t from 'tap'
import type { CountsAnswer } from '../../src/api/schemas/lists.ts'
import type { BatchAnswer, History, TaskList, TaskView } from '../../src/api/schemas/tasks.ts'
import { type Api, aType, isProblem, startApi, until } from './fixture.ts'

const { api, databaseUrl } = await startApi(t)

/** Submits so many tasks in one batch, and waits until lists know them all. */
async function listed(type: string, count: number, fields: object = {}): Promise<string[]> {
  const tasks = Array.from({ length: count }, (_, index) => ({ type, payload: index, ...fields }))
  const { body } = await api.post<BatchAnswer>('/v1/tasks/batch', { tasks })
  const ids = body.results.flatMap(result => ('taskId' in result ? [result.taskId] : []))
  await inView(type, count)
  return ids
}

const inView = (query: string, count: number) =>
  until(`${count} of ${query} are listed`, async () => {
    const { body } = await api.get<TaskList>(`/v1/tasks?type=${query}&limit=500`)
    return body.tasks.length === count
  })

/** Every page from the first to the last; `onPage` may do something in between. */
async function pages(api: Api, query: string, onPage: (page: number) => Promise<unknown> = async () => {}) {
  const rows: TaskList['tasks'] = []
  let cursor = ''
  for (let page = 0; ; page++) {
    const { body } = await api.get<TaskList>(`/v1/tasks?${query}${cursor}`)
    rows.push(...body.tasks)
    if (body.nextCursor === null) return rows
    if (page > 1_000) throw new Error('the pages do not end')
    cursor = `&cursor=${body.nextCursor}`
    await onPage(page)
  }
}

t.test('a listed task is what the read model knows, and the list says how far that lags', async t => {
  const type = aType()
  const [id] = await listed(type, 1, { labels: { b: '1', a: '2' }, correlationId: 'order-1', tenant: 'acme' })
  const { status, body } = await api.get<TaskList>(`/v1/tasks?type=${type}`)
  const task = await api.task(id!)
  t.equal(status, 200)
  t.matchOnly(body, { tasks: [Object], nextCursor: null, lagSeconds: Number })
  const [row] = body.tasks
  const { timer, at } = task.nextDeadline!
  const same = Object.fromEntries(Object.keys(row!).map(name => [name, task[name as keyof typeof task]]))
  t.strictSame(row, { ...same, nextDeadline: { timer, at } }, 'its fields are those of the task itself')
  t.match(row, { labels: { a: '2', b: '1' }, correlationId: 'order-1', tenant: 'acme' })
})

t.test('S57 300 tasks of one batch: each row exactly once, on pages of 1 and 50, in both orders', async t => {
  const type = aType()
  const ids = await listed(type, 300)
  for (const order of ['newest', 'oldest'])
    for (const limit of [1, 50]) {
      const rows = await pages(api, `type=${type}&order=${order}&limit=${limit}`)
      t.equal(rows.length, 300, `${order}, ${limit}`)
      t.strictSame(new Set(rows.map(({ taskId }) => taskId)), new Set(ids))
      const keys = rows.map(({ createdAt, taskId }) => createdAt + taskId)
      const sorted = keys.toSorted()
      t.strictSame(keys, order === 'newest' ? sorted.reverse() : sorted)
    }
})

t.test('rows that move while their pages are turned are neither skipped nor repeated', async t => {
  const type = aType()
  const ids = await listed(type, 100)
  const rows = await pages(api, `type=${type}&limit=10`, async page => {
    // Some ahead of the page, some behind it.
    for (const id of ids.filter((_, index) => index % 10 === page))
      await api.post(`/v1/tasks/${id}/cancel`, {})
    await until('the read model has moved', async () => {
      const { body } = await api.get<TaskList>(`/v1/tasks?type=${type}&status=CANCELLED&limit=500`)
      return body.tasks.length === (page + 1) * 10
    })
  })
  t.equal(rows.length, 100)
  t.strictSame(new Set(rows.map(({ taskId }) => taskId)), new Set(ids))
})

t.test('filters by status and type, together, and several statuses', async t => {
  const type = aType()
  const [first, second] = await listed(type, 4)
  await api.post(`/v1/tasks/${first}/cancel`, {})
  await api.claim({ types: [type], max: 1 })
  const only = async (query: string) =>
    (await api.get<TaskList>(`/v1/tasks?type=${type}&${query}`)).body.tasks.map(task => task.status)
  await until('the read model has moved', async () => (await only('status=PROCESSING')).length === 1)
  t.strictSame(await only('status=CANCELLED'), ['CANCELLED'])
  t.strictSame(await only('status=PENDING'), ['PENDING', 'PENDING'])
  t.same((await only('status=PENDING&status=CANCELLED')).length, 3)
  t.strictSame(await only('status=SUCCESS'), [])
  t.match(await api.get(`/v1/tasks?type=nobody-has-it`), { body: { tasks: [], nextCursor: null } })
  t.ok(second)
})

t.test('a query that does not fit is refused, with its place', async t => {
  const cursor = (content: unknown) => Buffer.from(JSON.stringify(content)).toString('base64url')
  const id = randomUUID()
  const cases: [string, RegExp][] = [
    ['status=RUNNING', /^status/],
    ['status=', /^status/],
    ['type=', /^type/],
    ['type=%00', /^type/],
    ['order=random', /^order/],
    ['limit=0', /^limit/],
    ['limit=501', /^limit/],
    ['limit=-1', /^limit/],
    ['limit=1.5', /^limit/],
    ['limit=', /^limit/],
    ['limit=1e2', /^limit/],
    ['limit=10&limit=20', /^limit/],
    ['offset=1', /^offset: is not a known field/],
    ['__proto__=1', /^__proto__: is not a known field/],
    ['label=demo', /^label: is written as label\.<name>=<value>/],
    ['label[project]=demo', /^label\[project\]: is not a known field/],
    ['labels.project=demo', /^labels\.project: is not a known field/],
    ['label.=demo', /^label\./],
    ['label.Project=demo', /^label\.Project/],
    ['label.__proto__=demo', /^label\.__proto__/],
    ['label.a=1&label.a=2', /^label\.a/],
    [`label.a=${'x'.repeat(257)}`, /^label\.a: must not exceed 256 bytes/],
    [Array.from({ length: 11 }, (_, n) => `label.n${n}=x`).join('&'), /^label: must not have more than 10/],
    ['tenant=', /^tenant/],
    ['tenant=a%00', /^tenant/],
    ['tenant=a&tenant=b', /^tenant/],
    ['correlationId=', /^correlationId/],
    ['correlationId=two%20words', /^correlationId/],
    ['createdAfter=2026-01-01', /^createdAfter: must be ISO 8601/],
    ['createdAfter=2026-01-01T00:00:00', /^createdAfter/],
    ['createdAfter=2026-02-30T00:00:00Z', /^createdAfter/],
    ['createdBefore=2026-01-01T00:00:00+02:00', /^createdBefore.*%2B/],
    ['createdBefore=infinity', /^createdBefore/],
    ['error=', /^error: must not be empty/],
    [`error=${'x'.repeat(257)}`, /^error: must not exceed 256 bytes/],
    ['cursor=', /^cursor/],
    ['cursor=garbage', /^cursor/],
    ['cursor=%00', /^cursor/],
    [`cursor=${'x'.repeat(300)}`, /^cursor/],
    [`cursor=${cursor(null)}`, /^cursor/],
    [`cursor=${cursor([])}`, /^cursor/],
    [`cursor=${cursor(['2026-01-01T00:00:00.000Z', 'no-id'])}`, /^cursor/],
    [`cursor=${cursor(['9999-99-99 99:99:99+99', id])}`, /^cursor/],
    [`cursor=${cursor(['0000-01-01T00:00:00.000Z', id])}`, /^cursor/],
    [`cursor=${cursor(['2026-02-30T00:00:00.000Z', id])}`, /^cursor/],
    [`cursor=${cursor(['infinity', id])}`, /^cursor/],
    [`cursor=${cursor(["'; DROP TABLE rollcall.tasks; --", id])}`, /^cursor/],
    [`cursor=${cursor([{ toString: 1 }, id])}`, /^cursor/],
  ]
  const ofLists = /^(order|limit|cursor)/
  for (const [query, detail] of cases)
    t.test(query.slice(0, 60), async t => {
      isProblem(t, await api.get(`/v1/tasks?${query}`), 'invalid_request', detail)
      const counts = await api.get(`/v1/tasks/counts?${query}`)
      isProblem(t, counts, 'invalid_request', ofLists.test(query) ? /is not a known field/ : detail)
    })
  t.test('a cursor of another list is a place like any other', async t => {
    const place = cursor(['2020-01-01T00:00:00.000Z', id])
    t.match(await api.get(`/v1/tasks?cursor=${place}`), { status: 200, body: { tasks: [] } })
  })
})

t.test('searches by label, tenant, correlation, time and error, and counts of the same', async t => {
  const type = aType()
  const weird = 'a&b=c #1 é\u0000'
  const [first] = await listed(type, 3, { labels: { project: 'demo', weird }, tenant: 'acme' })
  const five = { type, labels: { project: 'demo' }, correlationId: 'order-7' }
  await api.post('/v1/tasks/batch', { tasks: Array.from({ length: 5 }, () => five) })
  await inView(type, 8)
  await api.post(`/v1/tasks/${first}/cancel`, { reason: 'Wrong Month: 100%' })
  const cases: [query: string, counts: Partial<Record<TaskView['status'], number>>][] = [
    ['label.project=demo', { PENDING: 7, CANCELLED: 1 }],
    [`label.project=demo&label.weird=${encodeURIComponent(weird)}`, { PENDING: 2, CANCELLED: 1 }],
    ['label.project=demo&status=CANCELLED', { CANCELLED: 1 }],
    ['tenant=acme&status=PENDING&status=FAILED', { PENDING: 2 }],
    ['tenant=bolt', {}],
    ['correlationId=order-7', { PENDING: 5 }],
    ['error=wrong%20MONTH', { CANCELLED: 1 }],
    ['error=100%25', { CANCELLED: 1 }],
    ['error=cancelled', { CANCELLED: 1 }],
    ['error=%25', { CANCELLED: 1 }],
    ['error=_%00', {}],
    ['createdAfter=0001-01-01T00:00:00Z', { PENDING: 7, CANCELLED: 1 }],
    ['createdBefore=9999-12-31T23:59:59Z', { PENDING: 7, CANCELLED: 1 }],
    ['createdAfter=2099-01-01T00:00:00%2B02:00', {}],
    ['createdBefore=2020-01-01T00:00:00-02:00', {}],
  ]
  for (const [query, counts] of cases)
    await until(`${query} finds ${JSON.stringify(counts)}`, async () => {
      const { body } = await api.get<TaskList>(`/v1/tasks?type=${type}&limit=500&${query}`)
      const found: Record<string, number> = {}
      for (const { status } of body.tasks) found[status] = (found[status] ?? 0) + 1
      const asked = await api.get<CountsAnswer>(`/v1/tasks/counts?type=${type}&${query}`)
      const counted = Object.entries(asked.body.counts).filter(([, { count }]) => count > 0)
      const is = Object.fromEntries(counted.map(([status, { count }]) => [status, count]))
      return same(found, counts) && same(is, counts)
    })
  const { body, status } = await api.get<CountsAnswer>(`/v1/tasks/counts?type=${type}`)
  t.equal(status, 200)
  const exact = (count: number) => ({ count, exact: true })
  t.matchOnly(body, {
    counts: {
      PENDING: exact(7),
      PROCESSING: exact(0),
      RETRYING: exact(0),
      SUCCESS: exact(0),
      FAILED: exact(0),
      CANCELLED: exact(1),
    },
    countedAt: /^\d{4}-\d\d-\d\dT.*Z$/,
    lagSeconds: Number,
  })
})

const same = (one: object, other: object): boolean =>
  JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort())

t.test('a search that takes too long is told so, and what to do; a plain list is not at fault', async t => {
  const database = new pg.Client(databaseUrl)
  await database.connect()
  t.teardown(() => database.end())
  await database.query('BEGIN; LOCK TABLE rollcall.tasks IN ACCESS EXCLUSIVE MODE')
  const [search, counts, list] = await Promise.all([
    api.get('/v1/tasks?error=x'),
    api.get('/v1/tasks/counts?label.a=b'),
    api.get('/v1/tasks'),
  ])
  await database.query('ROLLBACK')
  isProblem(t, search, 'search_too_slow', /ask for less/)
  isProblem(t, counts, 'search_too_slow')
  isProblem(t, list, 'read_model_unavailable')
  t.equal((await api.get('/v1/tasks?error=x')).status, 200)
})

t.test('a history comes in pages, oldest first, each event with who, when and the chain', async t => {
  const { taskId } = await api.submit({ labels: { a: 'b' } })
  for (let note = 1; note <= 25; note++)
    await api.post(`/v1/tasks/${taskId}/notes`, { note: `note ${note}` }, { 'rollcall-actor': 'ada' })
  const events: History['events'] = []
  const sizes: number[] = []
  for (let from: number | null = 0; from !== null; ) {
    const { body }: { body: History } = await api.get<History>(
      `/v1/tasks/${taskId}/history?from=${from}&limit=10`,
    )
    events.push(...body.events)
    sizes.push(body.events.length)
    from = body.next
  }
  t.strictSame(sizes, [10, 10, 6])
  t.strictSame(
    events.map(({ revision }) => revision),
    Array.from({ length: 26 }, (_, index) => index),
  )
  t.matchOnly(events[1], {
    revision: 1,
    id: String,
    type: 'TaskNoted',
    version: 1,
    at: /Z$/,
    actor: { kind: 'person', id: 'ada' },
    source: 'http',
    commandId: String,
    correlationId: null,
    causationId: null,
    prevHash: events[0]!.hash,
    hash: /^[0-9a-f]{64}$/,
    data: { content: { note: 'note 1' } },
  })
  for (const [index, event] of events.entries())
    t.equal(event.prevHash, index === 0 ? null : events[index - 1]!.hash)
  t.equal((await api.task(taskId)).hash, events.at(-1)!.hash)
  t.match(await api.get(`/v1/tasks/${taskId}/history?from=26`), {
    status: 200,
    body: { taskId, events: [], next: null },
  })
  for (const [query, detail] of [
    ['from=-1', /^from/],
    ['from=', /^from/],
    ['limit=0', /^limit/],
    ['limit=1001', /^limit/],
    ['page=1', /^page/],
  ] as const)
    isProblem(t, await api.get(`/v1/tasks/${taskId}/history?${query}`), 'invalid_request', detail)
  isProblem(t, await api.get(`/v1/tasks/${randomUUID()}/history`), 'not_found')
})

t.test('S53 a page of history is bounded in bytes too', async t => {
  const { taskId } = await api.submit({ retry: { maxAttempts: 100, initialDelayMs: 60_000 } })
  const error = { message: 'm'.repeat(64 * 1024), detail: 'd'.repeat(128 * 1024) }
  for (let attempt = 1; attempt <= 45; attempt++) {
    await api.command({ taskId, attempt }, 'start', { worker: 'worker-1' })
    await api.command({ taskId, attempt }, 'fail', { error })
    await api.post(`/v1/tasks/${taskId}/retry`)
  }
  const { text, body } = await api.get<History>(`/v1/tasks/${taskId}/history?limit=1000`)
  t.ok(text.length < 9 * 1024 * 1024, `${text.length} bytes`)
  t.ok(body.next !== null && body.next === body.events.length)
  const rest = await api.get<History>(`/v1/tasks/${taskId}/history?limit=1000&from=${body.next}`)
  t.equal(body.events.length + rest.body.events.length, 1 + 45 * 3)
  t.equal(rest.body.next, null)
})
