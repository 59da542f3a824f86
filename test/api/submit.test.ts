import t from 'tap'
import { BATCH_MAX, type BatchAnswer, type TaskView } from '../../src/api/schemas/tasks.ts'
import { LIMITS } from '../../src/domain/limits.ts'
import { aType, isProblem, startApi, until } from './fixture.ts'

const DAY_MS = 24 * 60 * 60 * 1000
const { api } = await startApi(t)
const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/** Milliseconds between two times of a view. */
const between = (from: string, to: string): number => Date.parse(to) - Date.parse(from)

/** Without its place in the queue, which it has a moment later. */
const asStored = ({ position, why, ...stored }: TaskView) => stored

t.test('a submitted task is answered whole, with its address and its ETag', async t => {
  const answer = await api.post<TaskView>(
    '/v1/tasks',
    {
      type: 'image.generate',
      payload: { prompt: 'a lighthouse' },
      priority: 5,
      timeouts: { queueMs: 60_000 },
      retry: { maxAttempts: 7 },
      labels: { project: 'demo' },
      correlationId: 'order-7',
    },
    { 'rollcall-actor': 'ada' },
  )
  t.match(answer, {
    status: 201,
    headers: { location: `/v1/tasks/${answer.body.taskId}`, etag: '"0"' },
  })
  t.matchOnly(answer.body, {
    taskId: UUID,
    type: 'image.generate',
    status: 'PENDING',
    step: null,
    progress: null,
    attempt: 1,
    maxAttempts: 7,
    run: 1,
    priority: 5,
    tenant: null,
    position: null,
    estimatedRemainingSeconds: null,
    worker: null,
    payload: { prompt: 'a lighthouse' },
    labels: { project: 'demo' },
    timeouts: { queueMs: 60_000, executionMs: 1_800_000, leaseMs: 60_000, totalMs: 7 * DAY_MS },
    retry: { maxAttempts: 7, initialDelayMs: 1_000, factor: 2, maxDelayMs: 300_000, jitter: 0.2 },
    result: null,
    resultUrl: null,
    errorCode: null,
    errorMessage: null,
    why: 'waiting for a worker of type image.generate',
    nextDeadline: { timer: 'queue', at: ISO, to: 'FAILED', effect: /the task fails$/ },
    correlationId: 'order-7',
    createdAt: ISO,
    runAt: answer.body.createdAt,
    startedAt: null,
    finishedAt: null,
    updatedAt: answer.body.createdAt,
    revision: 0,
    hash: /^[0-9a-f]{64}$/,
  })
  t.equal(between(answer.body.createdAt, answer.body.nextDeadline!.at), 60_000)
  const read = await api.get<TaskView>(`/v1/tasks/${answer.body.taskId}`)
  t.match(read, { status: 200, headers: { etag: /^"0(\.\d+)?"$/ } })
  t.strictSame(asStored(read.body), asStored(answer.body))
  t.match(await api.history(answer.body.taskId), [
    { revision: 0, type: 'TaskSubmitted', actor: { kind: 'person', id: 'ada' }, source: 'http' },
  ])
})

t.test('a type alone is enough', async t => {
  const { body } = await api.post<TaskView>('/v1/tasks', { type: 'a' })
  t.match(body, { payload: null, labels: {}, priority: 0, maxAttempts: 3, correlationId: null })
  t.equal(between(body.createdAt, body.nextDeadline!.at), DAY_MS)
})

t.test('what does not fit is refused, with each place', async t => {
  const cases: [string, object, RegExp][] = [
    ['no type', {}, /^type/],
    ['a type that is no name', { type: 'Not A Name' }, /^type: must match/],
    ['a type of 65 characters', { type: 'x'.repeat(65) }, /^type/],
    ['an unknown field', { type: 'a', payloads: 1 }, /^payloads: is not a known field/],
    ['an unknown timeout', { type: 'a', timeouts: { runMs: 1 } }, /^timeouts\.runMs: is not a known field/],
    ['a priority out of range', { type: 'a', priority: 1_001 }, /^priority/],
    ['a priority of 1.5', { type: 'a', priority: 1.5 }, /^priority/],
    ['a label that is no text', { type: 'a', labels: { x: 1 } }, /^labels\.x/],
    ['a label that is no name', { type: 'a', labels: { 'X Y': '1' } }, /^labels/],
    [
      '33 labels',
      { type: 'a', labels: Object.fromEntries(Array.from({ length: 33 }, (_, n) => [`l${n}`, ''])) },
      /^labels: must not have more than 32/,
    ],
    ['two times', { type: 'a', delayMs: 1, runAt: new Date().toISOString() }, /^delayMs: give runAt or/],
    ['no attempts', { type: 'a', retry: { maxAttempts: 0 } }, /^retry\.maxAttempts/],
    ['2,001 attempts', { type: 'a', retry: { maxAttempts: 2_001 } }, /^retry\.maxAttempts/],
    ['a factor of 1e308', { type: 'a', retry: { factor: 1e308 } }, /^retry\.factor/],
    ['a correlation id of two lines', { type: 'a', correlationId: 'a\nb' }, /^correlationId/],
  ]
  for (const [name, task, detail] of cases)
    t.test(name, async t => isProblem(t, await api.post('/v1/tasks', task), 'invalid_request', detail))
  t.test('several at once', async t => {
    const { body } = await api.post('/v1/tasks', { type: 'A', priority: 'high', x: 1 })
    const paths = (body.errors as { path: string }[]).map(({ path }) => path)
    t.strictSame(paths.sort(), ['priority', 'type', 'x'])
  })
})

t.test('S61 S63 every timeout is within 1 ms and 366 days or refused', async t => {
  const fields = ['queueMs', 'executionMs', 'leaseMs', 'totalMs'] as const
  // As JSON text: 1e400 and the like are no JavaScript numbers.
  const refused = ['0', '-1', '1e308', '"10"', 'null', '1.5', `${366 * DAY_MS + 1}`, '"P1D"', 'true', '[]']
  for (const field of fields)
    for (const value of refused) {
      const answer = await api.post('/v1/tasks', `{"type":"a","timeouts":{"${field}":${value}}}`)
      isProblem(t, answer, 'invalid_request', new RegExp(`^timeouts\\.${field}`))
    }
  isProblem(
    t,
    await api.post('/v1/tasks', '{"type":"a","timeouts":{"totalMs":9007199254740993}}'),
    'number_not_exact',
  )
  for (const ms of [2 ** 31 - 1, 2 ** 31, 366 * DAY_MS]) {
    const timeouts = { queueMs: ms, executionMs: ms, leaseMs: ms, totalMs: ms }
    const { taskId, createdAt, nextDeadline, type } = await api.submit({ timeouts })
    t.equal(between(createdAt, nextDeadline!.at), ms, `the deadline of ${ms} is where it was asked`)
    await api.claim({ types: [type] })
    t.match(await api.task(taskId), { status: 'PROCESSING' }, 'and does not fire at once')
  }
  const { taskId } = await api.submit({ timeouts: { queueMs: 1 } })
  await until('1 ms is over', async () => (await api.task(taskId)).status === 'FAILED')
  t.match(await api.task(taskId), { errorCode: 'timeout_queue', why: /no worker started it/ })
})

t.test(
  'S61 S63 a delay of 0 is none, one beyond 366 days is refused, and runAt has the same bounds',
  async t => {
    for (const delay of ['-1', '"10"', 'null', '1.5', '1e308', `${366 * DAY_MS + 1}`])
      isProblem(
        t,
        await api.post('/v1/tasks', `{"type":"a","delayMs":${delay}}`),
        'invalid_request',
        /^delayMs/,
      )
    const now = await api.submit({ delayMs: 0 })
    t.equal(now.runAt, now.createdAt)
    const late = await api.submit({ delayMs: 366 * DAY_MS })
    t.equal(between(late.createdAt, late.runAt), 366 * DAY_MS)
    t.match(late, { nextDeadline: { timer: 'not_before', at: late.runAt }, why: /^waits for its time/ })
    for (const runAt of ['tomorrow', '2030-01-01', '2030-01-01T00:00:00', 1_893_456_000_000, '', null])
      isProblem(t, await api.post('/v1/tasks', { type: 'a', runAt }), 'invalid_request', /^runAt/)
    for (const runAt of ['9999-12-31T23:59:59Z', new Date(Date.now() + 367 * DAY_MS).toISOString()])
      isProblem(
        t,
        await api.post('/v1/tasks', { type: 'a', runAt }),
        'invalid_request',
        /^runAt: must be at most/,
      )
    const past = await api.submit({ runAt: '0001-01-01T00:00:00Z' })
    t.equal(past.runAt, past.createdAt, 'a time in the past is now')
    const at = new Date(Date.now() + DAY_MS).toISOString()
    t.equal((await api.submit({ runAt: at.replace('Z', '+00:00') })).runAt, at)
  },
)

t.test('Idempotency-Key', async t => {
  const send = (key: string | string[], body: unknown) =>
    api.post<TaskView>('/v1/tasks', body, { 'idempotency-key': key })

  t.test('the same request again is answered with the same task, whatever the order of its keys', async t => {
    const first = await send('again', '{"type":"a","payload":{"x":1,"y":[1,2]},"priority":1}')
    t.equal(first.status, 201)
    const again = await send('again', '{"priority":1,"payload":{"y":[1,2],"x":1},"type":"a"}')
    t.equal(again.status, 200)
    t.strictSame(asStored(again.body), asStored(first.body))
    t.strictSame(await api.eventTypes(first.body.taskId), ['TaskSubmitted'])
  })
  t.test('S56 another request under the same key is refused and changes nothing', async t => {
    const { body } = await send('other-body', { type: 'a', payload: 1 })
    for (const other of [
      { type: 'a', payload: 2 },
      { type: 'b', payload: 1 },
      { type: 'a', payload: 1, priority: 1 },
    ])
      isProblem(t, await send('other-body', other), 'idempotency_key_reused')
    t.equal((await api.task(body.taskId)).revision, 0)
  })
  t.test('the same key still answers when the task has moved on', async t => {
    const { body } = await send('moved', { type: 'a' })
    await api.post(`/v1/tasks/${body.taskId}/cancel`)
    t.match(await send('moved', { type: 'a' }), {
      status: 200,
      body: { taskId: body.taskId, status: 'CANCELLED' },
    })
  })
  t.test('S56 a key that may be two, or is none, is refused', async t => {
    const bad = ['', 'a,b', 'a b', 'x'.repeat(256), 'x'.repeat(10_240), 'caf\u00e9']
    for (const key of bad) isProblem(t, await send(key, { type: 'a' }), 'invalid_request', /^Idempotency-Key/)
    isProblem(t, await send(['one', 'two'], { type: 'a' }), 'invalid_request', /^Idempotency-Key/)
    t.equal((await send('x'.repeat(255), { type: 'a' })).status, 201)
  })
  t.test('a key counts in a batch as it does alone', async t => {
    const { body } = await send('batch-or-not', { type: 'a', payload: 1 })
    const task = { type: 'a', payload: 1, idempotencyKey: 'batch-or-not' }
    const batch = await api.post<BatchAnswer>('/v1/tasks/batch', {
      tasks: [task, { ...task, payload: 2 }, task],
    })
    t.match(batch.body.results, [
      { kind: 'repeated', taskId: body.taskId },
      { kind: 'refused', code: 'idempotency_key_reused' },
      { kind: 'repeated', taskId: body.taskId },
    ])
  })
  t.test('a request that was refused does not use its key up', async t => {
    isProblem(t, await send('spared', { type: 'NOT A NAME' }), 'invalid_request')
    t.equal((await send('spared', { type: 'a' })).status, 201)
  })
})

t.test('S54 500 submits with one key over two services make one task', async t => {
  const { api: one, databaseUrl } = await startApi(t)
  const { api: other } = await startApi(t, { databaseUrl })
  const answers = await Promise.all(
    Array.from({ length: 500 }, (_, index) =>
      (index % 2 ? one : other).post<TaskView>(
        '/v1/tasks',
        { type: 'a', payload: { same: true } },
        { 'idempotency-key': 'one-for-all' },
      ),
    ),
  )
  t.strictSame(new Set(answers.map(({ body }) => body.taskId)).size, 1)
  t.equal(answers.filter(({ status }) => status === 201).length, 1)
  t.equal(answers.filter(({ status }) => status === 200).length, 499)
  t.strictSame(await one.eventTypes(answers[0]!.body.taskId), ['TaskSubmitted'])
})

t.test('a batch', async t => {
  const send = (tasks: unknown) => api.post<BatchAnswer>('/v1/tasks/batch', { tasks })

  t.test('of 1,000 has an answer for each, in order, and a bad member is refused alone', async t => {
    const type = aType()
    const bad: Record<number, [unknown, object]> = {
      7: [{ type: 'NOT A NAME' }, { code: 'invalid_request', errors: [{ path: 'type' }] }],
      99: [null, { code: 'invalid_request' }],
      100: ['text', { code: 'invalid_request' }],
      500: [
        { type, idempotencyKey: 'a,b' },
        { code: 'invalid_request', message: /^idempotencyKey/ },
      ],
      640: [
        { type, unknown: 1 },
        { code: 'invalid_request', message: /^unknown: is not a known field/ },
      ],
      999: [{ type, payload: 'x'.repeat(LIMITS.contentBytes) }, { code: 'content_too_large' }],
    }
    const { status, body } = await send(
      Array.from(
        { length: BATCH_MAX },
        (_, index) => bad[index]?.[0] ?? (index in bad ? null : { type, payload: index }),
      ),
    )
    t.equal(status, 200)
    t.equal(body.results.length, BATCH_MAX)
    for (const [index, [, expected]] of Object.entries(bad))
      t.match(
        body.results[Number(index)],
        { kind: 'refused', message: String, ...expected },
        `member ${index}`,
      )
    const accepted = body.results.filter(result => result.kind === 'accepted')
    t.equal(accepted.length, BATCH_MAX - Object.keys(bad).length)
    t.matchOnly(body.results[500 + 1], { kind: 'accepted', taskId: UUID, status: 'PENDING', revision: 0 })
    const taskId = 'taskId' in body.results[501]! ? body.results[501].taskId : ''
    t.equal((await api.task(taskId)).payload, 501)
  })
  t.test('of none, of 1,001, or of something else is refused whole', async t => {
    for (const tasks of [[], Array.from({ length: BATCH_MAX + 1 }, () => ({ type: 'a' })), {}, 'a', null])
      isProblem(t, await send(tasks), 'invalid_request', /^tasks/)
    isProblem(
      t,
      await api.post('/v1/tasks/batch', { tasks: [{ type: 'a' }], more: 1 }),
      'invalid_request',
      /^more/,
    )
  })
})

t.test('configured types', async t => {
  const { api: strict } = await startApi(t, {
    file: {
      strictTypes: true,
      types: {
        'image.generate': {
          priority: 3,
          timeouts: { queueMs: 5_000 },
          retry: { maxAttempts: 9 },
          payloadSchema: {
            type: 'object',
            required: ['prompt'],
            properties: { prompt: { type: 'string' }, size: { type: 'integer', maximum: 4096 } },
          },
        },
      },
    },
  })
  t.test('give what a request leaves out', async t => {
    const task = await strict.submit({ type: 'image.generate', payload: { prompt: 'x' } })
    t.match(task, { priority: 3, maxAttempts: 9 })
    t.equal(between(task.createdAt, task.nextDeadline!.at), 5_000)
    const own = {
      type: 'image.generate',
      payload: { prompt: 'x' },
      priority: 1,
      timeouts: { queueMs: 7_000 },
    }
    const other = await strict.submit(own)
    t.match(other, { priority: 1, maxAttempts: 9 })
    t.equal(between(other.createdAt, other.nextDeadline!.at), 7_000)
  })
  t.test('check the payload', async t => {
    const answer = await strict.post('/v1/tasks', { type: 'image.generate', payload: { size: 10_000 } })
    isProblem(t, answer, 'payload_mismatch', /^payload/)
    t.match(answer.body.errors, [{ path: 'payload' }, { path: 'payload.size', message: /<= 4096/ }])
  })
  t.test('are the only ones where the configuration says so', async t => {
    for (const type of ['image.other', 'constructor'])
      isProblem(t, await strict.post('/v1/tasks', { type }), 'unknown_type', new RegExp(type))
  })
})
