import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { isProblem, startApi, TOKEN } from './fixture.ts'

const { api } = await startApi(t)
const finalError = { error: { code: 'broken', message: 'it broke' }, retryable: false }

t.test('cancel: who and why, once, with a body or without one', async t => {
  const { taskId } = await api.submit()
  const cancel = () =>
    api.post<TaskView>(`/v1/tasks/${taskId}/cancel`, { reason: 'wrong prompt' }, { 'rollcall-actor': 'ada' })
  const first = await cancel()
  t.match(first, {
    status: 200,
    body: {
      status: 'CANCELLED',
      errorCode: 'cancelled',
      errorMessage: 'wrong prompt',
      why: 'cancelled by person ada: wrong prompt',
      nextDeadline: null,
      finishedAt: /Z$/,
    },
  })
  t.strictSame((await cancel()).body, first.body, 'again is the same answer')
  t.strictSame(await api.eventTypes(taskId), ['TaskSubmitted', 'TaskCancelled'])
  for (const body of [undefined, '', '{}', 'null']) {
    const other = await api.submit()
    t.match(await api.post(`/v1/tasks/${other.taskId}/cancel`, body), { body: { status: 'CANCELLED' } })
  }
})

t.test('cancel works at once in backoff, and a finished task refuses it', async t => {
  const task = await api.started({ retry: { initialDelayMs: 60_000 } })
  t.match(await api.command(task, 'fail', { error: { message: 'x' } }), { body: { status: 'RETRYING' } })
  t.match(await api.post(`/v1/tasks/${task.taskId}/cancel`), { body: { status: 'CANCELLED' } })
  const done = await api.started()
  await api.command(done, 'succeed')
  isProblem(t, await api.post(`/v1/tasks/${done.taskId}/cancel`), 'task_finished', /SUCCESS/)
})

t.test('retry: a failed task begins a new run, one in backoff goes on at once', async t => {
  const failed = await api.started()
  t.match(await api.command(failed, 'fail', finalError), {
    body: { status: 'FAILED', errorCode: 'broken', errorMessage: 'it broke', run: 1 },
  })
  t.match(await api.post(`/v1/tasks/${failed.taskId}/retry`, { reason: 'fixed' }), {
    status: 200,
    body: { status: 'PENDING', run: 2, attempt: 2, finishedAt: null, errorMessage: 'it broke' },
  })
  t.match(await api.post(`/v1/tasks/${failed.taskId}/retry`), { status: 200, body: { run: 2 } })

  const waiting = await api.started({ retry: { initialDelayMs: 60_000 } })
  await api.command(waiting, 'fail', { error: { message: 'x' } })
  t.match(await api.post(`/v1/tasks/${waiting.taskId}/retry`), {
    body: { status: 'PENDING', run: 1, attempt: 2 },
  })

  const running = await api.started()
  isProblem(t, await api.post(`/v1/tasks/${running.taskId}/retry`), 'illegal_transition', /PROCESSING/)
})

t.test('notes: kept in the history, the status stays', async t => {
  const { taskId } = await api.submit()
  t.match(await api.post(`/v1/tasks/${taskId}/notes`, { note: 'looks odd' }), {
    status: 200,
    body: { status: 'PENDING', revision: 1 },
  })
  for (const body of [{}, { note: '' }, { note: 1 }, undefined, { note: 'x', more: 1 }])
    isProblem(t, await api.post(`/v1/tasks/${taskId}/notes`, body), 'invalid_request')
})

t.test('the same command id again is the same command', async t => {
  const { taskId } = await api.submit()
  const note = { note: 'once', commandId: 'note-1' }
  await api.post(`/v1/tasks/${taskId}/notes`, note)
  t.match(await api.post(`/v1/tasks/${taskId}/notes`, note), { status: 200, body: { revision: 1 } })
  for (const commandId of ['', 'two words', 'x'.repeat(129), 1])
    isProblem(t, await api.post(`/v1/tasks/${taskId}/notes`, { note: 'x', commandId }), 'invalid_request')
})

const keyed = (taskId: string, command: string, body: object | undefined, key: string, more = {}) =>
  api.post<TaskView>(`/v1/tasks/${taskId}/${command}`, body, { 'idempotency-key': key, ...more })

t.test('an Idempotency-Key names a command: it happens once, whatever became of the task since', async t => {
  const { taskId } = await api.submit()
  const noted = await keyed(taskId, 'notes', { note: 'once' }, 'key-1')
  t.match(noted, { status: 200, body: { revision: 1 } })
  t.strictSame((await keyed(taskId, 'notes', { note: 'once' }, 'key-1')).body, noted.body)
  const cancelled = await keyed(taskId, 'cancel', { reason: 'wrong' }, 'key-1', { 'if-match': '"1"' })
  t.match(
    cancelled,
    { status: 200, body: { status: 'CANCELLED', revision: 2 } },
    'on another route another command',
  )
  const again = await keyed(taskId, 'cancel', { reason: 'wrong' }, 'key-1', { 'if-match': '"1"' })
  t.match(again, { status: 200 }, 'If-Match is about what is asked first')
  t.strictSame(again.body, cancelled.body)
  t.match(await keyed(taskId, 'notes', { note: 'once' }, 'key-1'), { status: 200, body: { revision: 2 } })
  t.strictSame(await api.eventTypes(taskId), ['TaskSubmitted', 'TaskNoted', 'TaskCancelled'])

  const failed = await api.started()
  await api.command(failed, 'fail', finalError)
  t.match(await keyed(failed.taskId, 'retry', { reason: 'x' }, 'key-2'), {
    body: { status: 'PENDING', run: 2 },
  })
  await api.command({ ...failed, attempt: 2 }, 'start', { worker: 'w' })
  await api.command({ ...failed, attempt: 2 }, 'fail', finalError)
  t.match(
    await keyed(failed.taskId, 'retry', { reason: 'x' }, 'key-2'),
    { status: 200, body: { status: 'FAILED', run: 2 } },
    'no third run',
  )
})

t.test('S56 a key with another body is refused, and changes nothing', async t => {
  const { taskId } = await api.submit()
  await keyed(taskId, 'notes', { note: 'one' }, 'key-1')
  isProblem(t, await keyed(taskId, 'notes', { note: 'two' }, 'key-1'), 'idempotency_key_reused')
  await keyed(taskId, 'cancel', undefined, 'key-2')
  for (const reason of ['', 'other'])
    isProblem(t, await keyed(taskId, 'cancel', { reason }, 'key-2'), 'idempotency_key_reused')
  t.match(await keyed(taskId, 'cancel', {}, 'key-2'), { status: 200 }, 'no body is a body without fields')
  t.match(await keyed(taskId, 'cancel', { reason: 'other' }, 'key-3'), { status: 200 }, 'asked by another')
  const failed = await api.started()
  await api.command(failed, 'fail', finalError)
  await keyed(failed.taskId, 'retry', { reason: 'mended' }, 'key-4')
  isProblem(t, await keyed(failed.taskId, 'retry', {}, 'key-4'), 'idempotency_key_reused')
  t.equal((await api.task(taskId)).revision, 2)
})

t.test('a command that was refused has used no key; a cancel that came too late stays late', async t => {
  const done = await api.started()
  await api.command(done, 'succeed')
  for (let times = 0; times < 2; times++)
    isProblem(t, await keyed(done.taskId, 'cancel', {}, 'key-1'), 'task_finished')
  const open = await api.submit()
  isProblem(t, await keyed(open.taskId, 'retry', { reason: 'a' }, 'key-1'), 'illegal_transition')
  isProblem(t, await keyed(open.taskId, 'retry', { reason: 'b' }, 'key-1'), 'illegal_transition')
})

t.test('keys of commands: the same rule as anywhere, and no other id beside one', async t => {
  const { taskId } = await api.submit()
  const note = { note: 'x' }
  for (const key of ['', ' ', 'a,b', 'two words', 'x'.repeat(256)])
    isProblem(t, await keyed(taskId, 'notes', note, key), 'invalid_request', /^Idempotency-Key/)
  const both = { note: 'x', commandId: 'id-1' }
  isProblem(
    t,
    await keyed(taskId, 'notes', both, 'id-2'),
    'invalid_request',
    /^Idempotency-Key is not the commandId/,
  )
  t.match(await keyed(taskId, 'notes', both, 'id-1'), { status: 200, body: { revision: 1 } })
  t.match(await api.post(`/v1/tasks/${taskId}/notes`, both), { body: { revision: 1 } }, 'they are one id')
  for (const key of ['x'.repeat(128), 'x'.repeat(129), 'x'.repeat(255)]) {
    const first = await keyed(taskId, 'notes', note, key)
    t.strictSame((await keyed(taskId, 'notes', note, key)).body, first.body, `${key.length}`)
  }
  t.equal((await api.task(taskId)).revision, 4, 'each of them is a key of its own')
})

t.test('If-Match: only at the revision it names', async t => {
  const { taskId } = await api.submit()
  const note = (ifMatch: string | string[]) =>
    api.post<TaskView>(`/v1/tasks/${taskId}/notes`, { note: 'x' }, { 'if-match': ifMatch })
  t.match(await note('"0"'), { status: 200, body: { revision: 1 } })
  isProblem(t, await note('"0"'), 'revision_mismatch', /revision 1, not 0/)
  isProblem(t, await note('"2"'), 'revision_mismatch')
  t.equal((await note('*')).status, 200)
  for (const garbage of ['', '2', '"two"', '"2', '"-1"', '"1", "2"', '"99999999999"', '"1.2.3"'])
    isProblem(t, await note(garbage), 'invalid_request', /If-Match/)
  isProblem(t, await note(['"2"', '"3"']), 'invalid_request', /If-Match/)
  t.equal((await api.task(taskId)).revision, 2)
  for (const command of ['cancel', 'retry'])
    isProblem(
      t,
      await api.post(`/v1/tasks/${taskId}/${command}`, {}, { 'if-match': '"1"' }),
      'revision_mismatch',
    )
  const read = await api.get(`/v1/tasks/${taskId}`)
  const cancelled = await api.post(`/v1/tasks/${taskId}/cancel`, {}, { 'if-match': read.headers.etag! })
  t.match(cancelled, { status: 200, body: { status: 'CANCELLED' } })
})

t.test('the ETag moves with progress, and still names the revision', async t => {
  const task = await api.started()
  const before = await api.get(`/v1/tasks/${task.taskId}`)
  const beat = { taskId: task.taskId, attempt: 1, leaseToken: TOKEN, progress: 0.25 }
  await api.post('/v1/workers/heartbeat', { worker: 'worker-1', beats: [beat] })
  const after = await api.get<TaskView>(`/v1/tasks/${task.taskId}`)
  t.equal(after.body.progress, 0.25)
  t.not(after.headers.etag, before.headers.etag)
  t.match(after.headers.etag, /^"1\.\d+"$/)
  const cancelled = await api.post(`/v1/tasks/${task.taskId}/cancel`, {}, { 'if-match': after.headers.etag! })
  t.equal(cancelled.status, 200)
})

t.test('S49 an id that is none is refused everywhere, one that nobody has is not found', async t => {
  const { taskId } = await api.submit()
  t.equal((await api.task(taskId.toUpperCase())).taskId, taskId, 'upper case is folded')
  const ids = [
    '%00',
    '..%2f..',
    '..%2F..%2Fetc',
    'x'.repeat(101),
    '%20',
    `%7B${taskId}%7D`,
    `{${taskId}}`,
    `${taskId}x`,
    `${taskId}%0a`,
    taskId.replaceAll('-', ''),
    'null',
    'undefined',
    '0',
    '%F0%9F%98%80',
    '-1',
    '__proto__',
    'constructor',
    'batch',
  ]
  const routes: ['GET' | 'POST', string, object?][] = [
    ['GET', ''],
    ['GET', '/history'],
    ['POST', '/cancel'],
    ['POST', '/retry'],
    ['POST', '/notes', { note: 'x' }],
    ['POST', '/start', { worker: 'w', attempt: 1, leaseToken: TOKEN }],
    ['POST', '/step', { step: 'X', attempt: 1, leaseToken: TOKEN }],
    ['POST', '/succeed', { attempt: 1, leaseToken: TOKEN }],
    ['POST', '/fail', { error: { message: 'x' }, attempt: 1, leaseToken: TOKEN }],
    ['POST', '/release', { attempt: 1, leaseToken: TOKEN }],
  ]
  for (const [method, path, body] of routes) {
    for (const id of ids)
      isProblem(
        t,
        await api.ask(method, `/v1/tasks/${id}${path}`, { body }),
        'invalid_request',
        /^id: must be a UUID/,
      )
    isProblem(t, await api.ask(method, `/v1/tasks/${randomUUID()}${path}`, { body }), 'not_found')
  }
  for (const id of ['%ff', '%', '%zz', 'x'.repeat(1_000)])
    isProblem(t, await api.get(`/v1/tasks/${id}`), 'invalid_request')
  isProblem(t, await api.get('/v1/tasks/../../etc'), 'route_not_found')
  isProblem(t, await api.get('/v1/tasks/'), 'invalid_request')
})
