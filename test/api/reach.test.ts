/** A tenant reaches for another's task by every route, and finds what it would find where there is none. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { type CallerOf, startGuarded } from './access-fixture.ts'
import { aType, isProblem, registeredRoutes, TOKEN, until } from './fixture.ts'

const guarded = await startGuarded(t)
const { api, service } = guarded
const acme = await guarded.caller({ name: 'of-acme', tenant: 'acme' })
const globex = await guarded.caller({ name: 'of-globex', tenant: 'globex' })
const everyone = await guarded.caller({ name: 'of-all' })

const fence = { attempt: 1, leaseToken: TOKEN }
/** What would do something to the task if it were one's own. */
const BY_PATH: Record<string, object | null> = {
  'GET /v1/tasks/:id': null,
  'GET /v1/tasks/:id/events': null,
  'GET /v1/tasks/:id/history': null,
  'GET /v1/tasks/:id/refusals': null,
  'POST /v1/tasks/:id/cancel': {},
  'POST /v1/tasks/:id/retry': {},
  'POST /v1/tasks/:id/notes': { note: 'x' },
  'POST /v1/tasks/:id/start': { worker: 'w', ...fence },
  'POST /v1/tasks/:id/step': { step: 'X', ...fence },
  'POST /v1/tasks/:id/succeed': { ...fence },
  'POST /v1/tasks/:id/fail': { error: { message: 'x' }, ...fence },
  'POST /v1/tasks/:id/release': { ...fence },
}
const BY_BODY: Record<string, (taskId: string) => object> = {
  'POST /v1/workers/start': taskId => ({
    worker: 'w',
    leaseToken: TOKEN,
    commandId: 'c-1',
    tasks: [{ taskId, attempt: 1 }],
  }),
  'POST /v1/workers/report': taskId => ({
    worker: 'w',
    reports: [
      { trigger: 'SUCCEED', taskId, ...fence },
      { trigger: 'FAIL', taskId, error: { message: 'x' }, ...fence },
      { trigger: 'RELEASE', taskId, ...fence },
      { trigger: 'STEP', step: 'X', taskId, ...fence },
    ],
  }),
  'POST /v1/workers/heartbeat': taskId => ({ worker: 'w', beats: [{ taskId, ...fence, progress: 0.9 }] }),
}

const ask = ({ get, post }: CallerOf, route: string, taskId: string, body: object | null) => {
  const [method, path = ''] = route.split(' ')
  const at = path.replace(':id', taskId)
  return method === 'GET' ? get(at) : post(at, body)
}

/** Everything that is stored about tasks. */
async function stored(): Promise<unknown> {
  const tables = [
    'tasks',
    'ready',
    'offers',
    'leases',
    'deadlines',
    'refusals',
    'refusal_counts',
    'cancel_notices',
  ]
  const { rows: there } = await service.pool.query<{ name: string }>(
    `SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'rollcall' AND table_name = ANY ($1)`,
    [tables],
  )
  const kept: Record<string, unknown> = {}
  for (const { name } of there)
    kept[name] = (await service.pool.query(`SELECT * FROM rollcall.${name} t ORDER BY t::text`)).rows
  return { ...kept, head: (await service.log.head())?.position }
}

/** Of acme: one that waits, one that runs, one that failed, one that was cancelled. */
async function tasksOfAcme(t: Test): Promise<Map<string, TaskView>> {
  const submit = async (type: string) =>
    (await acme.post<TaskView>('/v1/tasks', { type, retry: { maxAttempts: 1 } })).body
  const [waiting, cancelled, type] = [await submit(aType()), await submit(aType()), aType()]
  await acme.post(`/v1/tasks/${cancelled.taskId}/cancel`, {})
  const started = []
  for (const task of [await submit(type), await submit(type)]) {
    await acme.post(`/v1/tasks/${task.taskId}/start`, { worker: 'w', ...fence })
    started.push(task)
  }
  const [running, failed] = started
  await acme.post(`/v1/tasks/${failed!.taskId}/fail`, { error: { message: 'x' }, retryable: false, ...fence })
  await settled()
  t.strictSame(
    [waiting, running, failed, cancelled].map(task => task!.tenant),
    Array(4).fill('acme'),
  )
  return new Map(Object.entries({ waiting, running: running!, failed: failed!, cancelled }))
}

/** The projector and what writes refusals have come to the end. */
async function settled(): Promise<void> {
  const head = (await service.log.head())?.position
  await until('the read model is at the head', async () => {
    const { rows } = await service.pool.query(`SELECT position FROM rollcall.projectors WHERE name = 'tasks'`)
    return rows[0]?.position === head
  })
  await new Promise(resolve => setTimeout(resolve, 500))
}

t.test('the routes tested here are all that name a task', async t => {
  const routes = (await registeredRoutes()).filter(route => /:id/.test(route) && /\/tasks\//.test(route))
  t.strictSame(Object.keys(BY_PATH).sort(), routes)
})

t.test(
  "another tenant's task is as one that does not exist, by every route, and nothing is stored",
  async t => {
    const tasks = await tasksOfAcme(t)
    const before = await stored()
    for (const [state, { taskId }] of tasks) {
      const absent = randomUUID()
      const alike = async (route: string, body: (id: string) => object | null) => {
        const [foreign, none] = [
          await ask(globex, route, taskId, body(taskId)),
          await ask(globex, route, absent, body(absent)),
        ]
        t.equal(foreign.status, none.status, `${route}, ${state}`)
        t.equal(foreign.text.replaceAll(taskId, absent), none.text, `${route}, ${state}: the same words`)
        t.strictSame(Object.keys(foreign.headers), Object.keys(none.headers))
        return foreign
      }
      for (const [route, body] of Object.entries(BY_PATH))
        isProblem(t, await alike(route, () => body), 'not_found')
      for (const [route, body] of Object.entries(BY_BODY)) {
        const { body: answer } = await alike(route, body)
        for (const result of answer.results as object[])
          t.match(
            result,
            route.endsWith('heartbeat')
              ? { state: 'lost', reason: 'No task has this id.' }
              : { kind: 'refused', code: 'not_found' },
          )
      }
    }
    await settled()
    t.strictSame(await stored(), before, 'no row has moved')
    for (const { taskId } of tasks.values()) {
      t.match(await acme.get(`/v1/tasks/${taskId}/refusals`), { status: 200, body: { count: 0 } })
      t.equal((await everyone.get(`/v1/tasks/${taskId}`)).status, 200, 'a key without a tenant reaches it')
    }
    // What is one's own is reached, in the same request with what is not.
    const { taskId } = tasks.get('running')!
    const mine = (await globex.post<TaskView>('/v1/tasks', { type: aType() })).body
    const beats = [taskId, mine.taskId, taskId].map(id => ({ taskId: id, ...fence }))
    const { body } = await globex.post('/v1/workers/heartbeat', { worker: 'w', beats })
    t.match(body.results, [
      { taskId, reason: 'No task has this id.' },
      { taskId: mine.taskId, reason: /^The task is PENDING/ },
      { taskId, reason: 'No task has this id.' },
    ])
    t.match(await acme.post('/v1/workers/heartbeat', { worker: 'w', beats }), {
      body: {
        results: [{ state: 'held' }, { state: 'lost', reason: 'No task has this id.' }, { state: 'held' }],
      },
    })
  },
)

t.test('a task that this process has not seen yet is looked up before it is answered', async t => {
  const second = await startGuarded(t, { databaseUrl: guarded.databaseUrl, config: { roles: ['api'] } })
  const { taskId } = (await acme.post<TaskView>('/v1/tasks', { type: aType() })).body
  const path = `/v1/tasks/${taskId}`
  const there = (caller: CallerOf) => second.api.get(path, { authorization: `Bearer ${caller.secret}` })
  isProblem(t, await there(globex), 'not_found')
  t.equal((await there(acme)).status, 200)
})

t.test("claims of a tenant's key take its own tasks alone", async t => {
  const type = aType()
  const submit = async (by: CallerOf) => (await by.post<TaskView>('/v1/tasks', { type })).body.taskId
  const ofAcme = [await submit(acme), await submit(acme)]
  const ofGlobex = [await submit(globex)]
  const ofNobody = [await submit(everyone)]
  await settled()
  const claim = async (by: CallerOf, fields: object = {}) => {
    const asked = { worker: 'w', types: [type], max: 10, claimId: randomUUID(), leaseToken: TOKEN, ...fields }
    const { body } = await by.post<{ tasks: TaskView[] }>('/v1/workers/claim', asked)
    return body.tasks.map(({ taskId }) => taskId)
  }
  const claimId = randomUUID()
  t.strictSame(await claim(globex, { claimId }), ofGlobex)
  t.strictSame(await claim(globex), [])
  // The same id and token: what another tenant's claim holds is not answered to this one.
  t.strictSame(await claim(acme, { claimId, max: 1 }), ofAcme.slice(0, 1))
  t.strictSame(await claim(globex, { claimId }), ofGlobex)
  await settled()
  t.strictSame(await claim(globex, { claimId, max: 0 }), ofGlobex, 'the lease says so as well')
  t.strictSame(await claim(acme, { claimId, max: 0 }), ofAcme.slice(0, 1))
  t.strictSame(await claim(everyone), [ofAcme[1], ...ofNobody], 'a key without a tenant takes all there is')
})

t.test('a claim that waits is woken by its own work, not by that of others', async t => {
  const type = aType()
  const claimId = randomUUID()
  const waiting = acme.post<{ tasks: TaskView[] }>('/v1/workers/claim', {
    ...{ worker: 'w', types: [type], max: 1, claimId, leaseToken: TOKEN, waitMs: 20_000 },
  })
  await globex.post('/v1/tasks', { type })
  await settled()
  const { taskId } = (await acme.post<TaskView>('/v1/tasks', { type })).body
  t.match(await waiting, { body: { tasks: [{ taskId }] } })
})

t.test('an offer that comes back is still of its tenant', async t => {
  const type = aType()
  const { taskId } = (await acme.post<TaskView>('/v1/tasks', { type })).body
  await settled()
  const { PostgresWorkState } = await import('../../src/workers/postgres/postgres-work-state.ts')
  const state = new PostgresWorkState(service.pool)
  t.match(await state.take({ claimId: 'gone', types: [type], max: 1, tenant: 'acme' }), [{ taskId }])
  await service.pool.query(
    `UPDATE rollcall.offers SET held_until = now() - interval '1 s' WHERE task_id = $1`,
    [taskId],
  )
  await until('the offer is back', async () => {
    const { rows } = await service.pool.query('SELECT tenant FROM rollcall.ready WHERE task_id = $1', [
      taskId,
    ])
    return rows[0]?.tenant === 'acme'
  })
  t.strictSame(await state.take({ claimId: 'other', types: [type], max: 1, tenant: 'globex' }), [])
})

t.test('what a tenant hands in is its own, and it hands in nothing for others', async t => {
  const type = aType()
  t.match(await acme.post('/v1/tasks', { type, tenant: 'acme' }), { status: 201, body: { tenant: 'acme' } })
  isProblem(t, await acme.post('/v1/tasks', { type, tenant: 'globex' }), 'other_tenant')
  t.match(await everyone.post('/v1/tasks', { type, tenant: 'globex' }), {
    status: 201,
    body: { tenant: 'globex' },
  })
  t.match(await everyone.post('/v1/tasks', { type }), { status: 201, body: { tenant: null } })
  t.match(await acme.post('/v1/tasks/batch', { tasks: [{ type }, { type, tenant: 'globex' }] }), {
    status: 200,
    body: { results: [{ kind: 'accepted' }, { kind: 'refused', code: 'other_tenant' }] },
  })
})

t.test('one Idempotency-Key of two tenants is two keys', async t => {
  const headers = { 'idempotency-key': 'order-1' }
  const [ofAcme, ofGlobex, ofNobody] = await Promise.all(
    [acme, globex, everyone].map(({ post }) => post('/v1/tasks', { type: 'a' }, headers)),
  )
  t.strictSame(
    [ofAcme, ofGlobex, ofNobody].map(answer => answer!.status),
    [201, 201, 201],
  )
  t.equal(new Set([ofAcme, ofGlobex, ofNobody].map(answer => answer!.body.taskId)).size, 3)
  t.match(await acme.post('/v1/tasks', { type: 'a' }, headers), { status: 200, body: { tenant: 'acme' } })
})

t.test("lists and counts of a tenant's key are of its tasks", async t => {
  const type = aType()
  for (const { post } of [acme, globex, globex, everyone]) await post('/v1/tasks', { type })
  await settled()
  const tenantsSeen = async (by: CallerOf, query = '') => {
    const { body } = await by.get<{ tasks: TaskView[] }>(`/v1/tasks?type=${type}${query}`)
    return body.tasks.map(({ tenant }) => tenant).sort()
  }
  t.strictSame(await tenantsSeen(acme), ['acme'])
  t.strictSame(await tenantsSeen(globex, '&tenant=globex'), ['globex', 'globex'])
  t.strictSame(await tenantsSeen(everyone), ['acme', 'globex', 'globex', null])
  t.strictSame(await tenantsSeen(everyone, '&tenant=acme'), ['acme'])
  isProblem(t, await acme.get('/v1/tasks?tenant=globex'), 'other_tenant')
  isProblem(t, await acme.get('/v1/tasks/counts?tenant=globex'), 'other_tenant')
  isProblem(t, await acme.get('/v1/events?tenant=globex'), 'other_tenant')
  const pending = async (by: CallerOf) =>
    (await by.get<{ counts: { PENDING: { count: number } } }>(`/v1/tasks/counts?type=${type}`)).body.counts
      .PENDING
  t.match(await pending(globex), { count: 2 })
  t.match(await pending(everyone), { count: 4 })
})

t.test("a stream of a tenant's key tells of its tasks", async t => {
  const type = aType()
  const gone = new AbortController()
  const answer = await fetch(`${api.url}/v1/events?type=${type}`, {
    headers: { authorization: `Bearer ${acme.secret}` },
    signal: gone.signal,
  })
  t.equal(answer.status, 200)
  await globex.post('/v1/tasks', { type })
  const { taskId } = (await acme.post<TaskView>('/v1/tasks', { type })).body
  let text = ''
  for await (const part of answer.body!.pipeThrough(new TextDecoderStream())) {
    text += part
    if (text.includes(taskId)) break
  }
  gone.abort()
  t.strictSame(
    [...text.matchAll(/"tenant":"?(\w+)/g)].map(([, tenant]) => tenant),
    ['acme'],
  )
})
