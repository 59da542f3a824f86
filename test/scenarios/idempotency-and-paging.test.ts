/** What happened to others: one wish carried out twice, one row shown twice or never. */
import t from 'tap'
import type { CountsAnswer } from '../../src/api/schemas/lists.ts'
import type { BatchAnswer, TaskList, TaskView } from '../../src/api/schemas/tasks.ts'
import { type Api, aType, isProblem, startApi, TOKEN, until } from '../api/fixture.ts'
import { ManualClock, openParts, submitTasks } from '../support/service-parts.ts'

const { api, databaseUrl } = await startApi(t)

const send = (body: unknown, key: string | string[], to: Api = api) =>
  to.post<TaskView>('/v1/tasks', body, { 'idempotency-key': key })

t.test(
  'S54 1,000 submits at once with one key, over three services: one task, and one answer for all',
  async t => {
    const SUBMITS = 1_000
    const others = [await startApi(t, { databaseUrl }), await startApi(t, { databaseUrl })]
    const services = [api, ...others.map(other => other.api)]
    const answers = await Promise.all(
      Array.from({ length: SUBMITS }, (_, index) =>
        send(
          { type: 'one.for.all', payload: { same: true } },
          'one-for-all',
          services[index % services.length],
        ),
      ),
    )
    const statuses = new Map<number, number>()
    for (const { status } of answers) statuses.set(status, (statuses.get(status) ?? 0) + 1)
    t.strictSame(Object.fromEntries(statuses), { 200: SUBMITS - 1, 201: 1 })
    t.equal(new Set(answers.map(({ body }) => body.taskId)).size, 1)
    t.strictSame(await api.eventTypes(answers[0]!.body.taskId), ['TaskSubmitted'])
    await until('it is listed, once', async () => {
      const { body } = await api.get<TaskList>('/v1/tasks?type=one.for.all')
      return body.tasks.length === 1 && body.tasks[0]!.taskId === answers[0]!.body.taskId
    })
  },
)

t.test(
  'S54 one key, two bodies, at once: one of them is the task, whoever asks for the other is told',
  async t => {
    const answers = await Promise.all(
      Array.from({ length: 200 }, (_, index) => send({ type: 'a', payload: index % 2 }, 'two-bodies')),
    )
    const made = answers.find(({ status }) => status === 201)!
    for (const [index, answer] of answers.entries())
      if (index % 2 === made.body.payload) t.equal(answer.body.taskId, made.body.taskId)
      else isProblem(t, answer, 'idempotency_key_reused')
    t.strictSame(await api.eventTypes(made.body.taskId), ['TaskSubmitted'])
  },
)

t.test(
  'S56 the key of a submit means a submit: on other routes it is nobody’s, and it stays what it was',
  async t => {
    const first = await send({ type: 'a', payload: 1 }, 'a-key')
    const other = await api.submit()
    const headers = { 'idempotency-key': 'a-key' }
    const asked: [string, object][] = [
      ['notes', { note: 'x' }],
      ['cancel', {}],
    ]
    for (const [command, body] of asked) {
      const answer = await api.post<TaskView>(`/v1/tasks/${other.taskId}/${command}`, body, headers)
      t.match(answer, { status: 200, body: { taskId: other.taskId } }, command)
    }
    t.equal((await api.task(first.body.taskId)).revision, 0)
    t.match(await send({ type: 'a', payload: 1 }, 'a-key'), {
      status: 200,
      body: { taskId: first.body.taskId },
    })
    isProblem(t, await send({ type: 'a', payload: 2 }, 'a-key'), 'idempotency_key_reused')
    for (const body of [
      { type: 'a' },
      { type: 'a', payload: 1, delayMs: 0 },
      { type: 'a', payload: 1, labels: {} },
      { type: 'a', payload: 1, timeouts: { queueMs: 1_000 } },
      { type: 'a', payload: 1, retry: { maxAttempts: 3 } },
    ]) {
      const answer = await send(body, 'a-key')
      t.ok(answer.status === 422 || answer.body.taskId === first.body.taskId, JSON.stringify(body))
      if (JSON.stringify(body).includes('timeouts')) isProblem(t, answer, 'idempotency_key_reused')
    }
  },
)

t.test('S56 the same key of another tenant is another wish, and nobody reaches the other’s', async t => {
  const type = aType()
  const keyOf = async (tenant: string | null) => {
    const fields = { name: `of-${tenant ?? 'all'}`, scopes: ['submit', 'read', 'operate'], tenant }
    const { body } = await api.post<{ secret: string }>('/v1/keys', fields)
    return { authorization: `Bearer ${body.secret}` }
  }
  const [acme, bolt, all] = [await keyOf('acme'), await keyOf('bolt'), await keyOf(null)]
  const ask = (as: object, body: object, path = '/v1/tasks') =>
    api.post<TaskView>(path, body, { ...as, 'idempotency-key': 'their-key' })
  const made = await Promise.all([acme, bolt, all].map(as => ask(as, { type })))
  t.strictSame(
    made.map(({ status, body }) => [status, body.tenant]),
    [
      [201, 'acme'],
      [201, 'bolt'],
      [201, null],
    ],
  )
  t.equal(new Set(made.map(({ body }) => body.taskId)).size, 3)
  const [ofAcme, ofBolt] = made.map(({ body }) => body.taskId)
  for (const body of [{ type }, { type, tenant: 'acme' }])
    t.match(
      await ask(acme, body),
      { status: 200, body: { taskId: ofAcme } },
      'its own tenant goes without saying',
    )
  t.match(await ask(all, { type, tenant: 'acme' }), { status: 200, body: { taskId: ofAcme } })
  isProblem(t, await ask(acme, { type, tenant: 'bolt' }), 'other_tenant', /acme.*bolt/)
  isProblem(t, await ask(acme, { type, payload: 1 }), 'idempotency_key_reused')

  const batch = { tasks: [{ type }, { type, tenant: 'bolt' }] }
  const batches = await Promise.all(
    [acme, bolt].map(as =>
      api.post<BatchAnswer>('/v1/tasks/batch', batch, { ...as, 'idempotency-key': 'their-key' }),
    ),
  )
  t.match(batches[0]!.body.results, [{ kind: 'accepted' }, { kind: 'refused', code: 'other_tenant' }])
  t.match(batches[1]!.body.results, [{ kind: 'accepted' }, { kind: 'accepted' }])

  for (const command of ['cancel', 'retry'])
    isProblem(t, await ask(acme, { reason: 'x' }, `/v1/tasks/${ofBolt}/${command}`), 'not_found')
  t.equal((await api.task(ofBolt!)).revision, 0)
  t.match(await ask(bolt, {}, `/v1/tasks/${ofBolt}/cancel`), { status: 200, body: { status: 'CANCELLED' } })
  const countOf = async (as: Record<string, string>, query = '') => {
    const { body } = await api.get<CountsAnswer>(`/v1/tasks/counts?type=${type}${query}`, as)
    return Object.values(body.counts).reduce((sum, { count }) => sum + count, 0)
  }
  await until('all of them are counted', async () => (await countOf(all)) === 6)
  t.strictSame([await countOf(acme), await countOf(bolt), await countOf(all, '&tenant=bolt')], [2, 3, 3])
  for (const path of ['/v1/tasks', '/v1/tasks/counts'])
    isProblem(t, await api.get(`${path}?tenant=bolt`, acme), 'other_tenant')
  const { body } = await api.get<TaskList>(`/v1/tasks?type=${type}`, acme)
  t.strictSame(new Set(body.tasks.map(({ tenant }) => tenant)), new Set(['acme']))
})

t.test('S56 keys that are none, that are huge, or that two headers made: 400, and no task', async t => {
  const type = aType()
  const bad = ['', ' ', 'a, b', 'a,b', ',', 'x'.repeat(256), 'x'.repeat(10_240), 'two words', 'caf\u00e9']
  for (const key of bad) isProblem(t, await send({ type }, key), 'invalid_request', /^Idempotency-Key/)
  // Node joins them with a comma.
  for (const keys of [
    ['one', 'two'],
    ['same', 'same'],
    ['', ''],
  ])
    isProblem(t, await send({ type }, keys), 'invalid_request', /^Idempotency-Key/)
  const { body } = await api.post<BatchAnswer>('/v1/tasks/batch', {
    tasks: [...bad, null, 1, ['x']].map(idempotencyKey => ({ type, idempotencyKey })),
  })
  for (const result of body.results) t.match(result, { kind: 'refused', code: 'invalid_request' })
  const good = await send({ type }, 'x'.repeat(255))
  t.equal(good.status, 201)
  await until('it is listed, and alone', async () => {
    const list = await api.get<TaskList>(`/v1/tasks?type=${type}`)
    return list.body.tasks.length === 1
  })
})

t.test(
  'S57 300 tasks of one millisecond: each row once, on pages of 1 and 50, in both orders, over HTTP',
  async t => {
    const type = aType()
    // The clock stands still.
    const parts = await openParts(t, databaseUrl, { clock: new ManualClock() })
    const ids = (await submitTasks(parts.engine, 300, () => ({ type }))).sort()
    await until('they are listed', async () => {
      const { body } = await api.get<TaskList>(`/v1/tasks?type=${type}&limit=500`)
      return body.tasks.length === 300 && new Set(body.tasks.map(({ createdAt }) => createdAt)).size === 1
    })
    for (const order of ['oldest', 'newest'])
      for (const limit of [1, 50]) {
        const seen: string[] = []
        const cursors = new Set<string>()
        for (let cursor: string | null = ''; cursor !== null; ) {
          const from: string = cursor === '' ? '' : `&cursor=${cursor}`
          const { body } = await api.get<TaskList>(
            `/v1/tasks?type=${type}&order=${order}&limit=${limit}${from}`,
          )
          seen.push(...body.tasks.map(({ taskId }) => taskId))
          cursor = body.nextCursor
          if (cursor !== null && cursors.has(cursor)) throw new Error('the cursor stands still')
          if (cursor !== null) cursors.add(cursor)
        }
        t.strictSame(seen, order === 'oldest' ? ids : ids.toReversed(), `${order}, pages of ${limit}`)
      }
  },
)

t.test(
  'S57 every row moves while the pages are turned: each once, on pages of 1 and 50, under every filter',
  async t => {
    const type = aType()
    const tasks = Array.from({ length: 60 }, (_, index) => ({
      type,
      tenant: 'acme',
      labels: { project: 'demo', half: String(index % 2) },
      correlationId: `round-${index % 2}`,
    }))
    const { body } = await api.post<BatchAnswer>('/v1/tasks/batch', { tasks })
    const ids = body.results.flatMap(result => ('taskId' in result ? [result.taskId] : []))
    await until('they are listed', async () => (await revisions(type)).size === ids.length)
    const half = ids.filter((_, index) => index % 2 === 0)
    const stop = new AbortController()
    const working = work(type, stop.signal)
    const all = ['newest', 'oldest'].map(order => ({ order, limit: 50 }))
    const one = { order: 'newest', limit: 1 }
    const filters: [query: string, found: string[], pages: (typeof one)[]][] = [
      [`type=${type}`, ids, [...all, one]],
      [`type=${type}&status=PENDING&status=PROCESSING`, ids, all],
      [`label.project=demo&type=${type}&tenant=acme`, ids, [...all, one]],
      [`label.half=0&type=${type}`, half, all],
      [`correlationId=round-0&type=${type}&createdAfter=2020-01-01T00:00:00Z`, half, all],
    ]
    try {
      for (const [query, found, pages] of filters)
        for (const { order, limit } of pages) {
          const before = await revisions(type)
          const seen: string[] = []
          let turned = 0
          for (let cursor: string | null = ''; cursor !== null; turned++) {
            const asked: string = `${query}&order=${order}&limit=${limit}${cursor}`
            const page: TaskList = (await api.get<TaskList>(`/v1/tasks?${asked}`)).body
            seen.push(...page.tasks.map(({ taskId }) => taskId))
            // All rows between two long pages; between two short ones one that is far ahead, and one far behind.
            if (page.nextCursor !== null || limit > 1)
              await move(type, limit > 1 ? ids : [ids[turned]!, ids.at(turned - 30)!])
            cursor = page.nextCursor && `&cursor=${page.nextCursor}`
          }
          t.strictSame(seen.toSorted(), found.toSorted(), `${query}, ${order}, pages of ${limit}`)
          const moved = [...(await revisions(type))].filter(([id, now]) => now > before.get(id)!)
          t.equal(moved.length, ids.length, 'and every row had moved')
        }
    } finally {
      stop.abort()
      await working
    }
  },
)

async function revisions(type: string): Promise<Map<string, number>> {
  const { body } = await api.get<TaskList>(`/v1/tasks?type=${type}&limit=500`)
  return new Map(body.tasks.map(({ taskId, revision }) => [taskId, revision]))
}

/** Moves these rows, and waits until lists know. */
async function move(type: string, ids: readonly string[]): Promise<void> {
  const noted = await Promise.all(
    ids.map(id => api.post<TaskView>(`/v1/tasks/${id}/notes`, { note: 'it moves' })),
  )
  await until('the rows have moved', async () => {
    const now = await revisions(type)
    return noted.every(({ body }) => now.get(body.taskId)! >= body.revision)
  })
}

/** A worker that takes tasks and hands them back, as often as they may be. */
async function work(type: string, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const { body } = await api.claim({ types: [type], max: 20, waitMs: 100 })
    const reports = body.tasks.map(({ taskId, attempt }) => ({
      trigger: 'RELEASE',
      taskId,
      attempt,
      leaseToken: TOKEN,
    }))
    if (reports.length > 0) await api.post('/v1/workers/report', { worker: 'worker-1', reports })
  }
}
