import t from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { LIMITS } from '../../src/domain/limits.ts'
import { aType, isProblem, startApi, TOKEN } from './fixture.ts'

const { api } = await startApi(t)
const LIMIT = LIMITS.contentBytes

/** Whether a JSON text has a field with exactly these characters as its value. */
const holds = (text: string, field: string, value: string): boolean =>
  [',', '}'].some(end => text.includes(`"${field}":${value}${end}`))

t.test(
  'S40 S41 S48 what a payload holds comes back byte for byte, from the task, its claim and its history',
  async t => {
    const payloads: [string, string][] = [
      ['NUL', '"a\\u0000b"'],
      ['the six characters of an escape', '"\\\\u0000"'],
      ['lone surrogates', '"\\ud800 and \\udfff"'],
      ['control characters', '"\\u0001\\u001f\\b\\t\\n"'],
      ['line separators', '"\u2028\u2029"'],
      ['emoji and combined letters', '"👩‍👩‍👧 e\u0301 \u202e"'],
      ['a noncharacter', '"\uffff\ufffe"'],
      ['constructor and the like', '{"constructor":1,"toString":2,"hasOwnProperty":null,"prototype":[]}'],
      ['then, which a promise would call', '{"then":1,"toJSON":2}'],
      ['an empty key', '{"":{"":0}}'],
      ['2^53-1', '9007199254740991'],
      ['-2^53+1', '-9007199254740991'],
      ['1e308', '1e+308'],
      ['the smallest number', '5e-324'],
      ['false', 'false'],
      ['an empty text', '""'],
      ['64 levels', '['.repeat(64) + ']'.repeat(64)],
    ]
    for (const [name, payload] of payloads)
      await t.test(name, async t => {
        const type = aType()
        const submitted = await api.post<TaskView>('/v1/tasks', `{"type":"${type}","payload":${payload}}`)
        t.match(submitted, { status: 201 })
        const { taskId } = submitted.body
        const [read, claimed, history] = [
          await api.get(`/v1/tasks/${taskId}`),
          await api.claim({ types: [type] }),
          await api.get(`/v1/tasks/${taskId}/history`),
        ]
        t.ok(holds(read.text, 'payload', payload))
        t.ok(holds(claimed.text, 'payload', payload))
        t.ok(holds(history.text, 'payload', payload))
        // Results are kept in the same way.
        const fence = `"attempt":1,"leaseToken":"${TOKEN}"`
        const done = await api.post(`/v1/tasks/${taskId}/succeed`, `{${fence},"result":${payload}}`)
        t.match(done, { status: 200, body: { status: 'SUCCESS' } })
        t.ok(holds((await api.get(`/v1/tasks/${taskId}`)).text, 'result', payload))
      })
  },
)

t.test('a number is kept by its value: another spelling of it comes back, and -0 is 0', async t => {
  const { body } = await api.post<TaskView>(
    '/v1/tasks',
    '{"type":"a","payload":[-0,1.0,1e2,-0.0,0.1e-6,123456789012345.1]}',
  )
  t.equal(JSON.stringify(body.payload), '[0,1,100,0,1e-7,123456789012345.1]')
})

t.test('S48 no key of a payload or a label reaches a prototype', async t => {
  for (const key of ['constructor', 'tostring', 'hasownproperty', 'prototype']) {
    const { taskId } = await api.submit({ labels: { [key]: 'x' }, payload: { [key]: { polluted: true } } })
    t.strictSame((await api.task(taskId)).labels, { [key]: 'x' })
  }
  isProblem(t, await api.post('/v1/tasks', '{"type":"a","labels":{"__proto__":"x"}}'), 'forbidden_key')
  isProblem(
    t,
    await api.post('/v1/tasks', '{"type":"a","labels":{"toString":"x"}}'),
    'invalid_request',
    /labels/,
  )
  t.equal(({} as { polluted?: unknown }).polluted, undefined)
})

t.test('S48 a type that is the name of a property is a type like any other, or no name', async t => {
  t.equal((await api.submit({ type: 'constructor' })).type, 'constructor')
  for (const type of ['__proto__', 'toString', 'hasOwnProperty'])
    isProblem(t, await api.post('/v1/tasks', { type }), 'invalid_request', /^type: must match/)
})

t.test('S38 text for people is made storable: NUL and lone surrogates are replaced', async t => {
  const bad = 'bad \u0000 \ud800'
  const good = 'bad \ufffd \ufffd'
  t.test('the error of a failed task', async t => {
    const task = await api.started()
    const failed = await api.command(task, 'fail', {
      error: { message: bad, detail: bad },
      retryable: false,
    })
    t.match(failed, { status: 200, body: { status: 'FAILED', errorCode: 'error', errorMessage: good } })
    t.match((await api.history(task.taskId)).at(-1), {
      type: 'TaskFailed',
      data: { content: { error: { message: good, detail: good } } },
    })
  })
  t.test('reason and note', async t => {
    const { taskId } = await api.submit()
    t.equal((await api.post(`/v1/tasks/${taskId}/notes`, { note: bad })).status, 200)
    const cancelled = await api.post(`/v1/tasks/${taskId}/cancel`, { reason: bad })
    t.match(cancelled.body, { status: 'CANCELLED', errorMessage: good })
    t.match(await api.history(taskId), [
      {},
      { type: 'TaskNoted', data: { content: { note: good } } },
      { type: 'TaskCancelled', data: { content: { reason: good } } },
    ])
  })
  t.test('the reason of a release, and a label', async t => {
    const task = await api.started({ labels: { a: bad } })
    t.strictSame(task.labels, { a: good })
    t.equal((await api.command(task, 'release', { reason: bad })).status, 200)
    t.match((await api.history(task.taskId)).at(-1), { data: { content: { reason: good } } })
  })
  t.test('a name that cannot be shown is refused instead', async t => {
    for (const worker of [bad, 'tab\there', 'line\nfeed', '\u202eright to left', '', 'x'.repeat(129)])
      isProblem(t, await api.claim({ types: ['a'], worker }), 'invalid_request', /^worker/)
  })
})

t.test(
  'S45 content is accepted up to its limit and refused beyond it, decided here and not by the log',
  async t => {
    // Two bytes are the quotes.
    const text = (bytes: number) => 'x'.repeat(bytes - 2)
    for (const bytes of [LIMIT - 1, LIMIT]) t.ok((await api.submit({ payload: text(bytes) })).taskId)
    for (const bytes of [LIMIT + 1, 512 * 1024, 1_048_000])
      isProblem(
        t,
        await api.post('/v1/tasks', { type: 'a', payload: text(bytes) }),
        'content_too_large',
        /^payload/,
      )
    isProblem(t, await api.post('/v1/tasks', { type: 'a', payload: text(1_048_576) }), 'body_too_large')

    t.test('bytes are counted, not characters, as JSON.stringify writes them', async t => {
      const payload = '€'.repeat((LIMIT - 2) / 3)
      t.equal((await api.submit({ payload })).payload, payload)
      isProblem(t, await api.post('/v1/tasks', { type: 'a', payload: `${payload}€` }), 'content_too_large')
      const nul = '\\u0000'.repeat(Math.floor(LIMIT / 6) + 1)
      isProblem(t, await api.post('/v1/tasks', `{"type":"a","payload":"${nul}"}`), 'content_too_large')
    })
    t.test('results', async t => {
      const task = await api.started()
      isProblem(
        t,
        await api.command(task, 'succeed', { result: text(LIMIT + 1) }),
        'content_too_large',
        /^result/,
      )
      t.match(await api.command(task, 'succeed', { result: text(LIMIT) }), { status: 200 })
    })
    t.test('the context for the next attempt', async t => {
      const task = await api.started()
      const fields = { error: { message: 'x' }, context: text(LIMITS.contextBytes + 1) }
      isProblem(t, await api.command(task, 'fail', fields), 'content_too_large', /^context/)
      t.match(await api.command(task, 'step', { step: 'DOWNLOADING', context: text(LIMITS.contextBytes) }), {
        status: 200,
        body: { step: 'DOWNLOADING' },
      })
    })
    t.test('reasons and notes', async t => {
      const { taskId } = await api.submit()
      const long = (bytes: number) => 'x'.repeat(bytes)
      isProblem(
        t,
        await api.post(`/v1/tasks/${taskId}/cancel`, { reason: long(LIMITS.reasonBytes + 1) }),
        'content_too_large',
        /^reason/,
      )
      isProblem(
        t,
        await api.post(`/v1/tasks/${taskId}/notes`, { note: long(LIMITS.noteBytes + 1) }),
        'content_too_large',
        /^note/,
      )
      t.equal((await api.post(`/v1/tasks/${taskId}/notes`, { note: long(LIMITS.noteBytes) })).status, 200)
    })
    t.test('an error is cut instead: a failure report must not bounce', async t => {
      const task = await api.started()
      const error = { message: 'é'.repeat(100_000), detail: 'x'.repeat(400_000) }
      const { status, body } = await api.command(task, 'fail', { error, retryable: false })
      t.equal(status, 200)
      t.equal(body.status, 'FAILED')
      t.match(body.errorMessage, /^é+…$/)
      t.ok(Buffer.byteLength(body.errorMessage!) <= LIMIT / 4)
    })
    t.test("and an error's code is made one", async t => {
      const codes: [string, string][] = [
        ['E 42: \u0000\ud800', 'E_42_'],
        ['__proto__', 'proto__'],
        ['', 'error'],
        ['…', 'error'],
        ['x'.repeat(100), 'x'.repeat(64)],
      ]
      for (const [code, kept] of codes) {
        const task = await api.started()
        const failed = await api.command(task, 'fail', { error: { code, message: 'x' }, retryable: false })
        t.match(failed, { status: 200, body: { errorCode: kept } })
      }
    })
  },
)

t.test('a payload nested deeper than 64 levels is refused with its place', async t => {
  const deep = '['.repeat(65) + ']'.repeat(65)
  isProblem(t, await api.post('/v1/tasks', `{"type":"a","payload":${deep}}`), 'json_too_deep', /^payload/)
})
