/** What happened to others: one wish carried out twice, one row shown twice or never. */
import t from 'tap'
import type { BatchAnswer, TaskList, TaskView } from '../../src/api/schemas/tasks.ts'
import { type Api, aType, isProblem, startApi, until } from '../api/fixture.ts'
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
