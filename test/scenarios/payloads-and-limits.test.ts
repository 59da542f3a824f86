/** What happened to others: content that stuck, crashed, or was accepted and then could not be kept. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { History, TaskList, TaskView } from '../../src/api/schemas/tasks.ts'
import type { ReportsAnswer } from '../../src/api/schemas/workers.ts'
import { LIMITS } from '../../src/domain/limits.ts'
import { streamOf } from '../../src/eventlog/codec.ts'
import { openEventStoreDBEventLog } from '../../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../../src/eventlog/eventstoredb/settings.ts'
import type { Service } from '../../src/runtime/service.ts'
import { aType, isProblem, registeredRoutes, startApi, TOKEN, until } from '../api/fixture.ts'
import { fail, retry, start } from '../domain/specification.ts'
import { differences } from '../support/compare.ts'
import { wholeStream } from '../support/events.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import { ask, mustBe, startParts, submitTasks } from '../support/service-parts.ts'

const { api, service } = await startApi(t)
const double = await startEventStoreDBDouble(t)
const elsewhere = await startApi(t, { log: double.address })
await until('it is ready', async () => (await elsewhere.api.get('/readyz')).status === 200)
/** The same service on each log. */
const SERVICES = { Postgres: { api, service }, EventStoreDB: elsewhere }
const LIMIT = LIMITS.contentBytes
const MiB = 1_024 * 1_024

const countEvents = async (): Promise<number> => {
  const { rows } = await service.pool.query('SELECT count(*)::int AS n FROM rollcall_log.events')
  return rows[0].n
}

/** Runs something that must store nothing and leave the process alive. */
async function storesNothing(t: Test, what: () => Promise<unknown>): Promise<void> {
  const before = await countEvents()
  await what()
  t.equal(await countEvents(), before, 'nothing was appended')
  t.equal((await api.get('/livez')).status, 200, 'the process lives')
}

/** The content of a task's last event, as stored. */
async function storedContent({ log }: Service, taskId: string): Promise<Record<string, unknown>> {
  const { data } = (await wholeStream(log, streamOf(taskId))).at(-1)!
  return (JSON.parse(data) as { content: Record<string, unknown> }).content
}

for (const [name, { api, service }] of Object.entries(SERVICES))
  t.test(
    `S40 NUL and the like in a result, a context, a payload, a label: the task ends, by every way to end it (${name})`,
    async t => {
      const values = ['a\u0000b', { 'key\u0000': ['\u0000', '\ud800'] }, '\u0000'.repeat(1_000)]
      for (const value of values) {
        const single = await api.started({ payload: value, labels: { a: 'b\u0000' } })
        const stepped = await api.command(single, 'step', { step: 'DOWNLOADING', context: value })
        t.equal(stepped.status, 200)
        const done = await api.command(single, 'succeed', { result: value })
        t.match(done, { status: 200, body: { status: 'SUCCESS' } })
        t.strictSame([done.body.payload, done.body.result], [value, value])

        const many = await api.started({ retry: { initialDelayMs: 0 } })
        const failed = await api.command(many, 'fail', { error: { message: 'x' }, context: value })
        t.equal(failed.status, 200)
        const again = (await api.claim({ types: [many.type], waitMs: 20_000 })).body.tasks[0]!
        t.strictSame(again.context, value)
        const report = {
          trigger: 'SUCCEED',
          taskId: many.taskId,
          attempt: 2,
          leaseToken: TOKEN,
          result: value,
        }
        const { body } = await api.post<ReportsAnswer>('/v1/workers/report', {
          worker: 'w',
          reports: [report],
        })
        t.match(body.results, [{ kind: 'accepted', status: 'SUCCESS' }])
        t.strictSame((await api.task(many.taskId)).result, value)
        for (const { taskId, type } of [single, many]) {
          t.strictSame((await storedContent(service, taskId)).result, value, 'and so it is stored')
          await until('the list knows that it ended', async () => {
            const list = await api.get<TaskList>(`/v1/tasks?type=${type}`)
            return list.body.tasks[0]?.status === 'SUCCESS'
          })
        }
      }
      t.strictSame(await differences(service.pool, service.log), [])
    },
  )

for (const [name, { api, service }] of Object.entries(SERVICES))
  t.test(`S41 harmless text that looks like an escape is kept byte for byte (${name})`, async t => {
    for (const json of [
      '"\\\\u0000"',
      '"\\\\ud800"',
      '"\\\\\\\\u0000"',
      '"%00 \\\\x00 &#0; \\\\0"',
      '{"\\\\u0000":"\\\\u0000"}',
    ]) {
      const type = aType()
      const { status, body } = await api.post<TaskView>('/v1/tasks', `{"type":"${type}","payload":${json}}`)
      t.equal(status, 201, json)
      const read = await api.get(`/v1/tasks/${body.taskId}`)
      t.ok(read.text.includes(`"payload":${json},`), json)
      const task = (await api.claim({ types: [type] })).body.tasks[0]!
      t.strictSame(task.payload, JSON.parse(json))
      const report = `{"attempt":1,"leaseToken":"${TOKEN}","result":${json}}`
      t.match(await api.post(`/v1/tasks/${task.taskId}/succeed`, report), { status: 200 })
      for (const path of ['', '/history?limit=10'])
        t.ok((await api.get(`/v1/tasks/${task.taskId}${path}`)).text.includes(`"result":${json}`), path)
      const stored = await wholeStream(service.log, streamOf(task.taskId))
      t.ok(stored[0]!.data.includes(`"payload":${json}`) && stored[2]!.data.includes(`"result":${json}`))
    }
  })

t.test('S43 JSON of 300,000 levels, on every route that takes a body: 400, and nothing happens', async t => {
  const id = randomUUID()
  const levels = 300_000
  const objects = '{"a":'.repeat(levels)
  const bodies = [
    '['.repeat(levels),
    '['.repeat(levels) + ']'.repeat(levels),
    `${objects}1${'}'.repeat(levels)}`,
    `{"type":"a","payload":${'[{"a":'.repeat(levels / 2)}1${'}]'.repeat(levels / 2)}}`,
    `{"tasks":[{"type":"a","payload":${'['.repeat(levels)}${']'.repeat(levels)}}]}`,
  ]
  const routes = (await registeredRoutes()).filter(route => route.startsWith('POST '))
  t.ok(routes.length >= 12, `${routes.length} routes`)
  await storesNothing(t, async () => {
    for (const route of routes)
      for (const body of bodies) {
        const answer = await api.post(route.slice('POST '.length).replace(':id', id), body)
        // Some routes take no body as large as the deepest.
        if (body.length > MiB && answer.status === 413) isProblem(t, answer, 'body_too_large')
        else isProblem(t, answer, 'json_too_deep')
      }
  })
})

t.test(
  'S45 the size is decided at the door: what was accepted can be kept, claimed, ended and read',
  async t => {
    const text = (bytes: number) => 'x'.repeat(bytes - 2)
    /** A body of exactly so many bytes. */
    const bodyOf = (bytes: number) => {
      const around = '{"type":"a","payload":""}'
      return `{"type":"a","payload":"${'x'.repeat(bytes - around.length)}"}`
    }
    await storesNothing(t, async () => {
      for (const bytes of [LIMIT + 1, MiB - 100])
        isProblem(t, await api.post('/v1/tasks', { type: 'a', payload: text(bytes) }), 'content_too_large')
      t.equal(Buffer.byteLength(bodyOf(MiB)), 1_048_576)
      isProblem(t, await api.post('/v1/tasks', bodyOf(MiB)), 'content_too_large')
      isProblem(t, await api.post('/v1/tasks', bodyOf(MiB + 1)), 'body_too_large')
      isProblem(t, await api.post('/v1/tasks', { type: 'a', payload: text(MiB) }), 'body_too_large')
    })
    // Everything that one event may hold, at its limit at once.
    const labels = Object.fromEntries(
      Array.from({ length: LIMITS.labels }, (_, n) => [
        `l${n}`.padEnd(64, 'x'),
        'x'.repeat(LIMITS.labelBytes),
      ]),
    )
    for (const bytes of [LIMIT - 1, LIMIT]) {
      const task = await api.started({
        payload: text(bytes),
        labels,
        correlationId: 'c'.repeat(128),
        retry: { initialDelayMs: 0 },
      })
      t.strictSame([task.payload, task.labels], [text(bytes), labels])
      const error = { code: 'x'.repeat(64), message: 'm'.repeat(LIMIT), detail: 'd'.repeat(LIMIT) }
      const context = text(LIMITS.contextBytes)
      t.equal((await api.command(task, 'fail', { error, context })).status, 200)
      const again = (await api.claim({ types: [task.type], waitMs: 20_000 })).body.tasks[0]!
      const resultUrl = `https://x/${'y'.repeat(LIMITS.urlLength - 10)}`
      const done = await api.command(again, 'succeed', { result: text(bytes), resultUrl })
      t.match(done, { status: 200, body: { status: 'SUCCESS', resultUrl } })
      t.equal((await api.task(task.taskId)).result, text(bytes))
      t.equal((await api.history(task.taskId)).length, 6)
    }
    await until(
      'the read model has it',
      async () => (await differences(service.pool, service.log)).length === 0,
    )
  },
)

t.test(
  'S48 names of the prototype of all objects, as keys, types and labels: no crash and no pollution',
  async t => {
    const names = [...Object.getOwnPropertyNames(Object.prototype), 'prototype', 'then', 'toJSON', 'length']
    const { api: strict } = await startApi(t, { file: { strictTypes: true, types: {} } })
    for (const name of names) {
      const isName = /^[a-z0-9][a-z0-9._-]{0,63}$/.test(name)
      // As text: an object literal would not have `__proto__` as a key.
      const send = (body: string, to = api) => to.post<TaskView>('/v1/tasks', body)
      const value = '{"polluted":true}'
      const payload = await send(
        `{"type":"${aType()}","payload":{"${name}":${value},"deep":[{"${name}":1}]}}`,
      )
      if (name === '__proto__') isProblem(t, payload, 'forbidden_key')
      else {
        t.equal(payload.status, 201, `payload ${name}`)
        const read = await api.get(`/v1/tasks/${payload.body.taskId}`)
        t.ok(read.text.includes(`{"${name}":${value},"deep":[{"${name}":1}]}`), `payload ${name}`)
      }

      const type = await send(`{"type":"${name}","payload":1}`)
      const label = await send(`{"type":"a","labels":{"${name}":"x"}}`)
      if (isName) {
        t.match(type, { status: 201, body: { type: name } })
        const claimed = await api.claim({ types: [name] })
        t.match(claimed.body.tasks, [{ type: name }])
        t.equal((await api.command(claimed.body.tasks[0]!, 'succeed')).status, 200)
        t.strictSame(label.body.labels, { [name]: 'x' })
        t.equal((await api.get(`/v1/tasks?type=${name}`)).status, 200)
        isProblem(t, await send(`{"type":"${name}"}`, strict), 'unknown_type')
      } else {
        isProblem(t, type, 'invalid_request', /^type/)
        isProblem(t, await api.get(`/v1/tasks?type=${name}`), 'invalid_request', /^type/)
        if (name === '__proto__') isProblem(t, label, 'forbidden_key')
        else isProblem(t, label, 'invalid_request', /^labels/)
      }
      for (const body of [
        `{"type":"a","${name}":1}`,
        `{"type":"a","timeouts":{"${name}":1}}`,
        `{"type":"a","retry":{"${name}":1}}`,
      ])
        t.equal((await send(body)).status, 400, body)
    }
    t.equal(({} as { polluted?: unknown }).polluted, undefined)
    t.equal((await api.get('/metrics')).status, 200)
    t.equal((await api.get('/v1/rollcall')).status, 200)
  },
)

t.test(
  'S49 ids that are none, on every route and in every body that takes one: 400, and nothing happens',
  async t => {
    const { taskId } = await api.submit()
    const ids = [
      '%00',
      '..%2f..',
      'x'.repeat(101),
      `%7B${taskId}%7D`,
      `{${taskId}}`,
      'null',
      'undefined',
      'NaN',
      '%F0%9F%98%80',
      `urn:uuid:${taskId}`,
      `${taskId}%00`,
      `%20${taskId}`,
      taskId.replace('-', '_'),
      '%E2%80%AE',
      "';DROP%20TABLE%20rollcall.tasks;--",
    ]
    // A key is named by an id of its own kind, or by its name.
    const routes = (await registeredRoutes()).filter(route => /:id/.test(route) && !/keys/.test(route))
    t.ok(routes.length >= 11, `${routes.length} routes`)
    const fence = { attempt: 1, leaseToken: TOKEN }
    const bodies: Record<string, object> = {
      notes: { note: 'x' },
      start: { worker: 'w', ...fence },
      step: { step: 'X', ...fence },
      succeed: fence,
      fail: { error: { message: 'x' }, ...fence },
      release: fence,
    }
    await storesNothing(t, async () => {
      for (const route of routes) {
        const [method, path] = route.split(' ') as [string, string]
        const body = method === 'GET' ? undefined : (bodies[path.split('/').at(-1)!] ?? {})
        for (const id of ids)
          isProblem(
            t,
            await api.ask(method, path.replace(':id', id), { body }),
            'invalid_request',
            /^id: must be a UUID/,
          )
        const unknown = path.startsWith('/v1/dead-letters') ? 'dead_letter_not_found' : 'not_found'
        isProblem(t, await api.ask(method, path.replace(':id', randomUUID()), { body }), unknown)
        t.equal((await api.ask(method, path.replace(':id', '%c0%80'), { body })).status, 400)
      }
      for (const id of [...ids.map(decodeURIComponent), null, 1, {}, ['x'], ''] as unknown[]) {
        const { body } = await api.post<ReportsAnswer>('/v1/workers/report', {
          worker: 'w',
          reports: [{ trigger: 'SUCCEED', taskId: id, ...fence }],
        })
        t.match(body.results, [{ kind: 'refused', code: 'invalid_request', message: /^taskId/ }])
        const beats = [{ taskId: id, ...fence }]
        isProblem(
          t,
          await api.post('/v1/workers/heartbeat', { worker: 'w', beats }),
          'invalid_request',
          /^beats\.0\.taskId/,
        )
        const tasks = [{ taskId: id, attempt: 1 }]
        isProblem(
          t,
          await api.post('/v1/workers/start', { worker: 'w', leaseToken: TOKEN, tasks }),
          'invalid_request',
          /^tasks\.0\.taskId/,
        )
      }
    })
    for (const path of ['', '/history', '/refusals'])
      t.equal(
        (await api.get(`/v1/tasks/${taskId.toUpperCase()}${path}`)).body.taskId,
        taskId,
        'upper case is folded',
      )
  },
)

/** The double keeps its log in memory; a few pages show what many do. */
const HISTORIES = [
  { name: 'Postgres', failures: 1_000, pages: 23, open: async () => ({ log: undefined }) },
  {
    name: 'EventStoreDB',
    failures: 150,
    pages: 4,
    open: async (t: Test) => ({ log: (await startEventStoreDBDouble(t)).address }),
  },
]
for (const { name, failures: FAILURES, pages: PAGES, open } of HISTORIES)
  t.test(
    `S53 a history of ${FAILURES} events of 200 KB: pages bounded by bytes as well, whoever reads it (${name})`,
    async t => {
      const { log } = await open(t)
      const parts = await startParts(
        t,
        log ? { openLog: () => openEventStoreDBEventLog({ settings: eventStoreDBSettings(log) }) } : {},
      )
      const error = { code: 'x', message: 'm'.repeat(64 * 1_024), detail: 'd'.repeat(128 * 1_024) }
      const timeouts = { queueMs: 3_600_000, executionMs: 3_600_000, leaseMs: 3_600_000, totalMs: 3_600_000 }
      const policy = {
        maxAttempts: FAILURES + 1,
        initialDelayMs: 3_600_000,
        factor: 1,
        maxDelayMs: 3_600_000,
        jitter: 0,
      }
      const [taskId] = (await submitTasks(parts.engine, 1, () => ({ timeouts, retry: policy }))) as [string]
      for (let attempt = 1; attempt <= FAILURES; attempt++)
        for (const command of [start({ attempt }), fail({ attempt, error }), retry()])
          mustBe('accepted', await parts.engine.execute(ask(taskId, command)))
      // A process that has nothing of it in memory.
      const { api } = await startApi(t, { databaseUrl: parts.url, ...(log ? { log } : {}) })
      let from: number | null = 0
      let [events, failures, pages] = [0, 0, 0]
      while (from !== null) {
        const { status, text, body }: Awaited<ReturnType<typeof api.get<History>>> = await api.get<History>(
          `/v1/tasks/${taskId}/history?limit=1000&from=${from}`,
        )
        t.equal(status, 200)
        t.ok(
          text.length < 9 * MiB && body.events.length > 0,
          `${body.events.length} events, ${text.length} bytes`,
        )
        t.equal(body.events[0]!.revision, events)
        events += body.events.length
        failures += body.events.filter(({ type }) => type === 'TaskAttemptFailed').length
        from = body.next
        pages++
      }
      t.strictSame([events, failures], [1 + 3 * FAILURES, FAILURES])
      t.ok(pages >= PAGES, `${pages} pages`)
      t.match(await api.get(`/v1/tasks/${taskId}`), {
        status: 200,
        body: { attempt: FAILURES + 1, revision: 3 * FAILURES },
      })
      await until(
        'the read model has it',
        async () => (await api.get<TaskList>('/v1/tasks')).body.tasks[0]?.revision === 3 * FAILURES,
        60_000,
      )
      t.comment(
        `${Math.round(process.memoryUsage().heapUsed / MiB)} MiB of heap, ${Math.round(process.memoryUsage().rss / MiB)} MiB in all`,
      )
      t.match(await api.post('/v1/verify', {}), {
        status: 200,
        body: { checked: { tasks: 1 }, findings: [] },
      })
      t.comment(
        `${Math.round(process.memoryUsage().heapUsed / MiB)} MiB of heap, ${Math.round(process.memoryUsage().rss / MiB)} MiB in all`,
      )
    },
  )
