import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type {
  DeadLetterList,
  DeadLetterView,
  DiscardAnswer,
  RedriveAnswer,
} from '../../src/api/schemas/dead-letters.ts'
import { createClient } from '../../src/sdk/client.ts'
import type { DeadLetterReason } from '../../src/workers/dead-letters.ts'
import { PostgresDeadLetters } from '../../src/workers/postgres/dead-letters.ts'
import { aRecord, says } from '../workers/worker-event-records.ts'
import { Api, aType, isProblem, startApi, until } from './fixture.ts'

const { api, service, databaseUrl } = await startApi(t)
const deadLetters = new PostgresDeadLetters(service.pool)

/** Keeps letters, as ingest does. @returns their ids, the oldest first */
async function letters(
  records: readonly ReturnType<typeof aRecord>[],
  code: DeadLetterReason = 'invalid_json',
  taskId: string | null = null,
): Promise<string[]> {
  const before = await list('?limit=200')
  await deadLetters.keep(
    records.map(record => ({ record, fault: { code, message: `${code} here`, taskId } })),
  )
  const now = await list('?limit=200')
  const known = new Set(before.letters.map(({ letterId }) => letterId))
  return now.letters
    .map(({ letterId }) => letterId)
    .filter(id => !known.has(id))
    .reverse()
}

const list = async (query = ''): Promise<DeadLetterList> =>
  (await api.get<DeadLetterList>(`/v1/dead-letters${query}`)).body
const show = async (id: string): Promise<DeadLetterView> =>
  (await api.get<DeadLetterView>(`/v1/dead-letters/${id}`)).body
const redrive = async (letterIds: string[], by = 'bob') =>
  (await api.post<RedriveAnswer>('/v1/dead-letters/redrive', { letterIds }, { 'rollcall-actor': by })).body
    .results
const discard = async (letterIds: string[], reason = 'a test', by = 'ada') =>
  (await api.post<DiscardAnswer>('/v1/dead-letters/discard', { letterIds, reason }, { 'rollcall-actor': by }))
    .body.results
const clear = async () => {
  await service.pool.query('TRUNCATE rollcall.dead_letters')
}
const garbage = (count = 1) =>
  Array.from({ length: count }, (_, index) => aRecord({ value: Buffer.from(`{${index}`) }))
/** A letter about a task that is there since. */
async function curable(t: Test): Promise<{ letterId: string; taskId: string }> {
  const { taskId } = await api.submit({ type: aType() })
  const [letterId] = await letters([says(taskId, 'SUCCEED', { result: 5 })], 'not_found', taskId)
  t.ok(letterId)
  return { letterId: letterId!, taskId }
}

t.beforeEach(clear)

t.test('a letter, whole and in a list', async t => {
  const taskId = randomUUID()
  const record = aRecord({
    key: Buffer.from(taskId),
    value: Buffer.alloc(5_000, 0xff),
    headers: [
      ['twice', Buffer.from('b')],
      ['twice', Buffer.of(0, 255)],
      ['\0', Buffer.alloc(0)],
    ],
  })
  const [letterId] = await letters([record], 'not_found', taskId)
  const row = {
    letterId,
    status: 'waiting',
    code: 'not_found',
    message: 'not_found here',
    taskId,
    topic: record.topic,
    partition: record.partition,
    offset: record.offset,
    timestamp: record.timestamp,
    key: record.key?.toString('base64'),
    valueBytes: 5_000,
    keptAt: /^\d{4}-.*Z$/,
    redrives: 0,
    redrivenAt: null,
    settledAt: null,
    settledBy: null,
    settledBecause: null,
  }
  const listed = await list()
  t.match(listed, {
    letters: [{ ...row, value: Buffer.alloc(1_024, 0xff).toString('base64') }],
    waiting: 1,
    nextCursor: null,
  })
  t.notOk('headers' in listed.letters[0]!)
  t.match(await show(letterId!), {
    ...row,
    value: record.value?.toString('base64'),
    headers: [
      { name: 'twice', value: Buffer.from('b').toString('base64') },
      { name: 'twice', value: Buffer.of(0, 255).toString('base64') },
      { name: '\0', value: '' },
    ],
  })
  await clear()
  const [empty] = await letters([aRecord()])
  t.match(await show(empty!), { key: null, value: null, valueBytes: null, headers: [], taskId: null })
})

t.test('lists are filtered, and paged without a gap while letters come', async t => {
  const taskId = randomUUID()
  const ids = [...(await letters(garbage(7))), ...(await letters(garbage(3), 'not_found', taskId))]
  t.equal((await list(`?taskId=${taskId.toUpperCase()}`)).letters.length, 3)
  t.equal((await list('?reason=invalid_json')).letters.length, 7)
  t.match(await list('?status=discarded'), { letters: [], waiting: 10 })
  const seen: string[] = []
  for (let cursor: string | null = ''; cursor !== null; ) {
    const page: DeadLetterList = await list(`?limit=3${cursor && `&cursor=${cursor}`}`)
    seen.push(...page.letters.map(({ letterId }) => letterId))
    cursor = page.nextCursor
    await letters(garbage(2))
  }
  t.strictSame(seen, ids.toReversed())
})

t.test('what does not fit is refused', async t => {
  const id = randomUUID()
  const many = Array.from({ length: 101 }, () => randomUUID())
  const queries = [
    ['status=lost', /^status/],
    ['reason=unknown', /^reason/],
    ['taskId=1', /^taskId/],
    ['limit=0', /^limit/],
    ['limit=201', /^limit/],
    ['limit=1e1', /^limit/],
    ['cursor=-1', /^cursor/],
    ['cursor=99999999999999999999', /^cursor/],
    ['limit=1&limit=2', /^limit/],
    ['offset=1', /^offset/],
  ] as const
  for (const [query, detail] of queries)
    isProblem(t, await api.get(`/v1/dead-letters?${query}`), 'invalid_request', detail)
  isProblem(t, await api.get('/v1/dead-letters/1'), 'invalid_request', /^id/)
  isProblem(t, await api.get(`/v1/dead-letters/${id}`), 'dead_letter_not_found')
  const bodies: [string, unknown, RegExp][] = [
    ['redrive', {}, /^letterIds/],
    ['redrive', { letterIds: [] }, /^letterIds/],
    ['redrive', { letterIds: many }, /^letterIds/],
    ['redrive', { letterIds: ['1'] }, /^letterIds\.0/],
    ['redrive', { letterIds: [id], reason: 'x' }, /^reason/],
    ['discard', { letterIds: [id] }, /^reason/],
    ['discard', { letterIds: [id], reason: '' }, /^reason: must not be empty/],
    ['discard', { letterIds: [id], reason: ' \n ' }, /^reason: must not be empty/],
    ['discard', { letterIds: [], reason: 'x' }, /^letterIds/],
    ['discard', { letterIds: [id], reason: 'x', all: true }, /^all/],
  ]
  for (const [command, body, detail] of bodies)
    isProblem(t, await api.post(`/v1/dead-letters/${command}`, body), 'invalid_request', detail)
  isProblem(
    t,
    await api.post('/v1/dead-letters/discard', { letterIds: [id], reason: 'x'.repeat(4_097) }),
    'content_too_large',
    /^reason/,
  )
  isProblem(t, await api.ask('DELETE', `/v1/dead-letters/${id}`), 'method_not_allowed')
})

t.test('a redrive ends the task, and is told by whom', async t => {
  const { letterId, taskId } = await curable(t)
  const [bad] = await letters(garbage())
  const nobody = randomUUID()
  t.match(await redrive([letterId.toUpperCase(), bad!, nobody]), [
    { letterId, kind: 'redriven', answer: 'accepted', code: null, message: null },
    { letterId: bad, kind: 'kept', code: 'invalid_json', message: /not JSON/ },
    { letterId: nobody, kind: 'refused', code: 'dead_letter_not_found' },
  ])
  t.match(await api.task(taskId), { status: 'SUCCESS', result: 5 })
  t.strictSame(await api.eventTypes(taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  t.match(await show(letterId), {
    status: 'redriven',
    redrives: 1,
    redrivenAt: String,
    settledBy: 'bob',
    settledBecause: 'accepted',
  })
  t.match(await show(bad!), { status: 'waiting', redrives: 1, message: /not JSON/, settledAt: null })
  t.match(await redrive([letterId]), [{ kind: 'refused', code: 'not_waiting' }])
  t.match(await list('?status=redriven'), { letters: [{ letterId }], waiting: 1 })
})

t.test('a discard needs a reason and keeps it; the letter stays on record', async t => {
  const { letterId, taskId } = await curable(t)
  const nobody = randomUUID()
  t.strictSame(await discard([letterId, nobody, letterId], 'sent by mistake\0'), [
    { letterId, kind: 'discarded' },
    {
      letterId: nobody,
      kind: 'refused',
      code: 'dead_letter_not_found',
      message: 'No dead letter has this id.',
    },
    { letterId, kind: 'discarded' },
  ])
  t.match(await show(letterId), {
    status: 'discarded',
    settledBy: 'ada',
    settledBecause: 'sent by mistake�',
    redrives: 0,
  })
  t.match(await discard([letterId]), [{ kind: 'refused', code: 'not_waiting', message: /discarded before/ }])
  t.match(await redrive([letterId]), [{ kind: 'refused', code: 'not_waiting' }])
  t.match(await api.task(taskId), { status: 'PENDING' })
  t.match(await list(), { letters: [], waiting: 0 })
})

t.test('redrive and discard of the same letters at once: each letter has one of both', async t => {
  const ids = await letters(
    Array.from({ length: 20 }, () => says(randomUUID(), 'HEARTBEAT')),
    'internal_error',
  )
  const [redriven, discarded] = await Promise.all([redrive(ids), discard(ids.toReversed())])
  for (const id of ids) {
    const { status } = await show(id)
    t.match(
      redriven.find(({ letterId }) => letterId === id),
      {
        kind: status === 'redriven' ? 'redriven' : 'refused',
      },
    )
    t.match(
      discarded.find(({ letterId }) => letterId === id),
      {
        kind: status === 'discarded' ? 'discarded' : 'refused',
      },
    )
  }
})

t.test('more redrives at once than are served are answered 503', async t => {
  const ids = await letters(garbage(30))
  const answers = await Promise.all(
    Array.from({ length: 6 }, () => api.post('/v1/dead-letters/redrive', { letterIds: ids })),
  )
  const [refused, served] = [503, 200].map(status => answers.filter(one => one.status === status))
  t.match([refused?.length, served?.length], [2, 4])
  isProblem(t, refused![0]!, 'overloaded')
})

t.test('what waits is seen by people on call: in the roll call and in the metrics', async () => {
  await letters(garbage(3))
  const waiting = async () => (await api.get<{ deadLetters: number }>('/v1/rollcall')).body.deadLetters
  await until('the roll call counts them', async () => (await waiting()) === 3)
  await until('the gauge counts them', async () =>
    /^rollcall_dead_letters 3$/m.test((await api.get('/metrics')).text),
  )
  const { letters: all } = await list()
  await discard(all.map(({ letterId }) => letterId))
  await until('they are not counted any more', async () => (await waiting()) === 0)
})

t.test('the client has them all', async t => {
  const client = createClient({ url: api.url, headers: { 'rollcall-actor': 'bob' } })
  const { letterId, taskId } = await curable(t)
  const ids = await letters(garbage(3))
  t.match(await client.deadLetters({ reason: 'not_found', taskId }), { letters: [{ letterId }], waiting: 4 })
  const first = await client.deadLetters({ limit: 2 })
  t.match(await client.deadLetters({ limit: 2, cursor: first.nextCursor! }), { nextCursor: null })
  t.match(await client.deadLetter(letterId), { letterId, headers: [] })
  t.match(await client.redrive([letterId]), [{ kind: 'redriven' }])
  t.match(await client.discard(ids, 'noise'), [
    { kind: 'discarded' },
    { kind: 'discarded' },
    { kind: 'discarded' },
  ])
  t.match(await client.deadLetters({ status: 'discarded' }), { letters: { length: 3 }, waiting: 0 })
  await t.rejects(client.deadLetter(randomUUID()), { code: 'dead_letter_not_found', status: 404 })
  await t.rejects(client.discard(ids, ''), { code: 'invalid_request', status: 400 })
  await t.rejects(client.deadLetter('../tasks'), { code: 'invalid_request' })
})

t.test(
  'without Kafka, and from another process, they can be looked at and redriven all the same',
  async t => {
    const { letterId } = await curable(t)
    const other = await startApi(t, { databaseUrl })
    t.ok(other.api instanceof Api)
    t.match((await other.api.post('/v1/dead-letters/redrive', { letterIds: [letterId] })).body, {
      results: [{ kind: 'redriven' }],
    })
  },
)
