/** Whose a task is, and batches that have a key as a whole. */
import t from 'tap'
import type { BatchAnswer, TaskView } from '../../src/api/schemas/tasks.ts'
import { aType, isProblem, startApi } from './fixture.ts'

const { api } = await startApi(t)

const submit = (key: string, task: object) =>
  api.post<TaskView>('/v1/tasks', { type: 'a', ...task }, { 'idempotency-key': key })
const batch = (key: string, tasks: unknown[]) =>
  api.post<BatchAnswer>('/v1/tasks/batch', { tasks }, { 'idempotency-key': key })
const idsOf = ({ results }: BatchAnswer) => results.map(one => ('taskId' in one ? one.taskId : one.code))
const kindsOf = ({ results }: BatchAnswer) => results.map(({ kind }) => kind)

t.test('S56 a tenant is part of a task, and of what its key means', async t => {
  const tenants = [undefined, 'acme', 'bolt', 'default']
  const first = await Promise.all(tenants.map(tenant => submit('one-key', { tenant })))
  t.strictSame(
    first.map(({ status, body }) => [status, body.tenant]),
    [
      [201, null],
      [201, 'acme'],
      [201, 'bolt'],
      [201, 'default'],
    ],
  )
  t.equal(new Set(first.map(({ body }) => body.taskId)).size, 4, 'the same key of four is four tasks')
  const again = await Promise.all(tenants.map(tenant => submit('one-key', { tenant })))
  t.strictSame(
    again.map(({ status, body }) => [status, body.taskId]),
    first.map(({ body }) => [200, body.taskId]),
  )
  isProblem(t, await submit('one-key', { tenant: 'acme', payload: 1 }), 'idempotency_key_reused')
  for (const tenant of ['', 'A', 'x'.repeat(65), 'two words', 1, null])
    isProblem(t, await submit('k', { tenant }), 'invalid_request', /^tenant/)
})

t.test('a batch with a key happens once: the same batch again is answered with the same tasks', async t => {
  const type = aType()
  const tasks = [{ type, payload: 1 }, { type: 'NO NAME' }, { type, payload: 2, tenant: 'acme' }]
  const first = await batch('batch-1', tasks)
  t.strictSame(kindsOf(first.body), ['accepted', 'refused', 'accepted'])
  const again = await batch('batch-1', tasks)
  t.strictSame(kindsOf(again.body), ['repeated', 'refused', 'repeated'])
  t.strictSame(idsOf(again.body), idsOf(first.body))
  const [one, , three] = idsOf(first.body)
  t.match(await api.task(one!), { payload: 1, tenant: null, revision: 0 })
  t.match(await api.task(three!), { payload: 2, tenant: 'acme', revision: 0 })
  t.notSame(idsOf((await batch('batch-2', tasks)).body), idsOf(first.body), 'another key, other tasks')
  t.notSame((await submit('batch-1', tasks[0]!)).body.taskId, one, 'the key of a submit is another one')
})

t.test('equal members of one batch are tasks of their own', async t => {
  const type = aType()
  const { body } = await batch('batch-equal', [{ type }, { type }, { type }])
  t.equal(new Set(idsOf(body)).size, 3)
})

t.test('S56 another batch under the same key is refused whole, and nothing of it is stored', async t => {
  const type = aType()
  const tasks = [
    { type, payload: 1 },
    { type, payload: 2 },
  ]
  await batch('batch-3', tasks)
  const others = [
    [{ type, payload: 1 }],
    [...tasks, { type, payload: 3 }],
    [tasks[1], tasks[0]],
    [tasks[0], { type, payload: 'other' }],
    [{ type, payload: 1, priority: 1 }, tasks[1]],
    [tasks[0], { type: 'NO NAME' }],
  ]
  for (const other of others) isProblem(t, await batch('batch-3', other), 'idempotency_key_reused')
  const reordered = await batch('batch-3', [
    { payload: 1, type },
    { payload: 2, type },
  ])
  t.strictSame(kindsOf(reordered.body), ['repeated', 'repeated'], 'the order of fields says nothing')
  const { body } = await api.get<{ tasks: TaskView[] }>(`/v1/tasks?type=${type}`)
  t.ok(body.tasks.length <= 2)
})

t.test('a batch that was stored in part is completed by asking again', async t => {
  const type = aType()
  const tasks = [1, 2, 3].map(payload => ({ type, payload }))
  const [first, ...rest] = await Promise.all([
    batch('batch-4', tasks),
    batch('batch-4', tasks),
    batch('batch-4', tasks),
  ])
  for (const other of rest) t.strictSame(idsOf(other.body), idsOf(first!.body))
  const kinds = [first!, ...rest].flatMap(({ body }) => kindsOf(body))
  t.equal(kinds.filter(kind => kind === 'accepted').length, 3)
  t.equal(kinds.filter(kind => kind === 'repeated').length, 6)
})

t.test('a batch has one key or its members have theirs, not both', async t => {
  for (const idempotencyKey of ['own', null, 1])
    isProblem(
      t,
      await batch('batch-5', [{ type: 'a' }, { type: 'a', idempotencyKey }]),
      'invalid_request',
      /^Idempotency-Key is for the whole batch/,
    )
  for (const key of ['', 'a,b', 'x'.repeat(256)])
    isProblem(t, await batch(key, [{ type: 'a' }]), 'invalid_request', /^Idempotency-Key/)
  const refused = await batch('batch-6', [{ type: 'NO NAME' }, null])
  t.strictSame(kindsOf(refused.body), ['refused', 'refused'])
})
