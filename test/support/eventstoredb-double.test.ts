/** The double against the real client library, over the wire: what it promises to be like, and each of its faults. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import eventstoredb, { type AllStreamSubscription, type JSONEventData } from '@eventstore/db-client'
import { credentials, status } from '@grpc/grpc-js'
import t, { type Test } from 'tap'
import { selfSigned } from './certificate.ts'
import { type EventStoreDBDouble, startEventStoreDBDouble } from './eventstoredb-double/double.ts'
import { eventAnswer } from './eventstoredb-double/messages.ts'
import { spawnEventStoreDBDouble } from './eventstoredb-double/spawn.ts'
import { EventStoreDBStore, type Expected, type ProposedEvent } from './eventstoredb-double/store.ts'
import {
  BatchAppendReq,
  type BatchAppendResponse,
  Empty,
  ReadReq,
  ReadResp,
  StreamIdentifier,
  streamsClient,
} from './eventstoredb-double/stubs.ts'
import { readUUID, writeUUID } from './eventstoredb-double/uuids.ts'

const { binaryEvent, EventStoreDBClient, eventTypeFilter, jsonEvent, streamNameFilter } = eventstoredb

const WAIT_MS = 10_000

function clientOf(t: Test, address: string) {
  const client = EventStoreDBClient.connectionString(address)
  t.teardown(() => client.dispose())
  return client
}

async function start(t: Test, options: Parameters<typeof startEventStoreDBDouble>[1] = {}) {
  const double = await startEventStoreDBDouble(t, options)
  return { double, client: clientOf(t, double.address), stubs: stubsOf(t, double) }
}

function stubsOf(t: Test, double: EventStoreDBDouble) {
  const stubs = new streamsClient(`127.0.0.1:${double.port}`, credentials.createInsecure())
  t.teardown(() => stubs.close())
  return stubs
}

const anEvent = (type = 'Counted', id = randomUUID()) => jsonEvent({ type, id, data: { by: 1 } })
const events = (count: number, type?: string) => Array.from({ length: count }, () => anEvent(type))

async function all<Item>(items: AsyncIterable<Item>): Promise<Item[]> {
  const read: Item[] = []
  for await (const item of items) read.push(item)
  return read
}

/** What a call was refused with. */
async function refused(call: Promise<unknown>) {
  const error = await call.then(
    () => null,
    (error: unknown) => error,
  )
  if (error === null) throw new Error('the call was not refused')
  return error as {
    type?: string
    code?: number
    message: string
    streamName?: string
    expectedVersion?: unknown
    actualVersion?: unknown
    maxAppendSize?: number
    leader?: unknown
  }
}

async function until(what: string, reached: () => boolean): Promise<void> {
  const deadline = performance.now() + WAIT_MS
  while (!reached()) {
    if (performance.now() > deadline) throw new Error(`not within ${WAIT_MS} ms: ${what}`)
    await new Promise(resolve => setTimeout(resolve, 2))
  }
}

/** A client that is served: one on the way of connections that were just cut is told of that first. */
async function clientBackAt(t: Test, address: string) {
  const client = clientOf(t, address)
  const deadline = performance.now() + WAIT_MS
  for (;;) {
    const error = await all(client.readAll({ maxCount: 1 })).then(
      () => null,
      (error: { type?: string }) => error,
    )
    if (error === null) return client
    if (error.type !== 'unavailable' || performance.now() > deadline) throw error
  }
}

/** Whether a promise is still open after a while in which it would have been settled. */
const stillOpen = async (promise: Promise<unknown>): Promise<boolean> => {
  const open = Symbol('open')
  promise.catch(() => {})
  return (await Promise.race([promise, new Promise(resolve => setTimeout(resolve, 150, open))])) === open
}

type FilterOptions = { maxSearchWindow?: number; checkpointInterval?: number }

interface Followed {
  subscription: AllStreamSubscription
  ids: string[]
  errors: { type?: string; code?: number; message: string }[]
  checkpoints: { commit: bigint; prepare: bigint }[]
  caughtUp: number
  ended: boolean
}

async function follow(
  t: Test,
  client: ReturnType<typeof clientOf>,
  options: Omit<NonNullable<Parameters<typeof client.subscribeToAll>[0]>, 'filter'> & {
    filter?: FilterOptions & ({ prefixes: string[] } | { regex: string })
  } = {},
): Promise<Followed> {
  const { filter, ...rest } = options
  const checkpoints: Followed['checkpoints'] = []
  const checkpointReached = async (_: unknown, position: (typeof checkpoints)[number]) => {
    checkpoints.push(position)
  }
  const subscription = client.subscribeToAll({
    ...rest,
    ...(filter && {
      filter:
        'regex' in filter
          ? streamNameFilter({ ...filter, checkpointReached })
          : streamNameFilter({ ...filter, checkpointReached }),
    }),
  })
  const followed: Followed = { subscription, ids: [], errors: [], checkpoints, caughtUp: 0, ended: false }
  subscription.on('data', ({ event }) => followed.ids.push(event!.id))
  subscription.on('error', error => followed.errors.push(error))
  subscription.on('caughtUp', () => followed.caughtUp++)
  subscription.on('end', () => {
    followed.ended = true
  })
  t.teardown(() => subscription.unsubscribe())
  await once(subscription, 'confirmation')
  return followed
}

t.test('what is appended is read as it was sent, where the append said that it is', async t => {
  const { double, client } = await start(t, { firstPosition: 2n ** 53n + 11n })
  const json = jsonEvent({ type: 'Counted', data: { text: 'Grüße 🙂' }, metadata: { by: 'me' } })
  const binary = binaryEvent({ type: 'Drawn', data: Buffer.from([0, 255, 1]), metadata: Buffer.from([0xfe]) })
  const appended = await client.appendToStream('drawing-1', [json, binary], { expectedRevision: 'no_stream' })
  t.match(appended, { success: true, nextExpectedRevision: 1n })
  t.ok(appended.position!.commit > 2n ** 53n, 'a position that no number holds')
  const read = (await all(client.readStream('drawing-1'))).map(({ event }) => event!)
  t.match(read, [
    { id: json.id, type: 'Counted', isJson: true, data: { text: 'Grüße 🙂' }, metadata: { by: 'me' } },
    { id: binary.id, type: 'Drawn', isJson: false },
  ])
  t.same(
    read.map(({ revision, streamId }) => [revision, streamId]),
    [
      [0n, 'drawing-1'],
      [1n, 'drawing-1'],
    ],
  )
  t.same(Buffer.from(read[1]!.data as Uint8Array), Buffer.from([0, 255, 1]))
  t.same(read[1]!.position, appended.position, 'the position is that of the last event')
  t.ok(Math.abs(read[0]!.created.getTime() - Date.now()) < 60_000)
  t.ok(read[1]!.position!.commit - read[0]!.position!.commit > 100n, 'positions grow by bytes')
  t.equal(double.store.records[0]!.end, double.store.records[1]!.position)
})

t.test('a stream is read forwards and backwards, from where and as far as was asked', async t => {
  const { client } = await start(t)
  await client.appendToStream('s', events(100))
  const revisions = async (options: Parameters<typeof client.readStream>[1]) =>
    (await all(client.readStream('s', options))).map(({ event }) => Number(event!.revision))
  const range = (from: number, to: number) =>
    Array.from({ length: Math.abs(to - from) + 1 }, (_, index) => from + Math.sign(to - from) * index)
  t.same(await revisions({}), range(0, 99))
  t.same(await revisions({ fromRevision: 40n, maxCount: 3 }), range(40, 42))
  t.same(await revisions({ fromRevision: 98n }), [98, 99])
  t.same(await revisions({ fromRevision: 100n }), [])
  t.same(await revisions({ direction: 'backwards', fromRevision: 'end', maxCount: 2 }), [99, 98])
  t.same(await revisions({ direction: 'backwards', fromRevision: 1n }), [1, 0])
  t.same(await revisions({ direction: 'backwards', fromRevision: 5_000n, maxCount: 1 }), [99])
  t.match(await refused(all(client.readStream('absent'))), {
    type: 'stream-not-found',
    streamName: 'absent',
  })
})

t.test('conflicts say what was expected and what is there', async t => {
  const { client } = await start(t)
  await client.appendToStream('s', events(42))
  const cases: [
    stream: string,
    expected: bigint | 'no_stream' | 'stream_exists',
    actual: bigint | 'no_stream',
  ][] = [
    ['s', 'no_stream', 41n],
    ['s', 7n, 41n],
    ['s', 42n, 41n],
    ['absent', 0n, 'no_stream'],
    ['absent', 'stream_exists', 'no_stream'],
  ]
  for (const [stream, expectedRevision, actualVersion] of cases)
    t.match(await refused(client.appendToStream(stream, anEvent(), { expectedRevision })), {
      type: 'wrong-expected-version',
      streamName: stream,
      expectedVersion: expectedRevision,
      actualVersion,
      message: '',
    })
  const lenient = clientOf(t, `${(await start(t)).double.address}&throwOnAppendFailure=false`)
  await lenient.appendToStream('s', events(42))
  t.match(
    await lenient.appendToStream('s', anEvent(), { expectedRevision: 'no_stream' }),
    { success: false, nextExpectedRevision: 1n },
    'the client reports 1 whatever the real revision is',
  )
})

t.test('an append is repeated, refused or written by the rules of the server', async t => {
  const [a, b, c, d, x] = Array.from({ length: 5 }, () => randomUUID()) as [
    string,
    string,
    string,
    string,
    string,
  ]
  const proposed = (ids: string[]): ProposedEvent[] =>
    ids.map(id => ({ id, type: 'T', isJson: true, data: Buffer.from('{}'), metadata: new Uint8Array() }))
  const cases: [title: string, expected: Expected, ids: string[], outcome: object][] = [
    ['the whole of it stands there', 'no_stream', [a, b], { kind: 'repeated', revision: 1n }],
    ['its first part stands there with more behind', 'no_stream', [a], { kind: 'repeated', revision: 0n }],
    ['in the middle', 0n, [b, c], { kind: 'repeated', revision: 2n }],
    ['only its beginning stands there', 1n, [c, d], { kind: 'wrong_expected_version', current: 2n }],
    ['other ids', 'no_stream', [x], { kind: 'wrong_expected_version', current: 2n }],
    ['the ids in another order', 'no_stream', [b, a], { kind: 'wrong_expected_version', current: 2n }],
    ['nothing at an old revision', 0n, [], { kind: 'wrong_expected_version', current: 2n }],
    ['known ids at the end are written again', 2n, [a], { kind: 'written', revision: 3n }],
    ['any: known', 'any', [b, c], { kind: 'repeated', revision: 2n }],
    ['any: not known', 'any', [x], { kind: 'written', revision: 3n }],
    ['any: partly known', 'any', [c, x], { kind: 'wrong_expected_version', current: 2n }],
    ['any: the first is not known', 'any', [x, c], { kind: 'written', revision: 4n }],
    ['existing: known', 'stream_exists', [a], { kind: 'repeated', revision: 0n }],
    ['beyond the end', 3n, [a], { kind: 'wrong_expected_version', current: 2n }],
  ]
  for (const [title, expected, ids, outcome] of cases) {
    const store = new EventStoreDBStore()
    store.append('s', 'no_stream', proposed([a, b, c]))
    const made = store.append('s', expected, proposed(ids))
    t.match(made, outcome, title)
    if (made.kind === 'repeated')
      t.equal(made.position, store.records[Number(made.revision)]!.position, `${title}: its old place`)
  }
  const restarted = new EventStoreDBStore()
  restarted.append('s', 'any', proposed([a]))
  restarted.restarted()
  t.match(restarted.append('s', 'any', proposed([a])), { kind: 'written' }, 'only memory knew the id')
  t.match(restarted.append('s', 'no_stream', proposed([a])), { kind: 'repeated', revision: 0n })
  const forgetful = new EventStoreDBStore({ recentIdsBytes: 100 })
  forgetful.append('s', 'any', proposed([a, b, c, d]))
  t.match(forgetful.append('s', 'any', proposed([a])), { kind: 'written' }, 'the oldest ids are forgotten')
  t.match(forgetful.append('s', 'any', proposed([a])), { kind: 'repeated' })
})

t.test('a deleted stream is not found and goes on with its numbers; a tombstone is for ever', async t => {
  const { client, double } = await start(t)
  const first = events(2)
  await client.appendToStream('s', first)
  t.match(await refused(client.deleteStream('s', { expectedRevision: 7n })), {
    type: 'wrong-expected-version',
    actualVersion: 1n,
  })
  t.ok((await client.deleteStream('s', { expectedRevision: 1n })).position)
  t.match(await refused(all(client.readStream('s'))), { type: 'stream-not-found' })
  t.match(await refused(client.appendToStream('s', anEvent(), { expectedRevision: 'stream_exists' })), {
    type: 'stream-deleted',
    streamName: 's',
  })
  t.match(
    await client.appendToStream('s', first, { expectedRevision: 'no_stream' }),
    { success: true, nextExpectedRevision: 1n, position: undefined },
    'a repetition of what cannot be read any more has no position',
  )
  t.match(await client.appendToStream('s', events(2), { expectedRevision: 'no_stream' }), {
    nextExpectedRevision: 3n,
  })
  t.same(
    (await all(client.readStream('s'))).map(({ event }) => event!.revision),
    [2n, 3n],
  )
  t.same(
    double.store.records.map(({ stream, type }) => `${stream} ${type}`),
    ['s Counted', 's Counted', '$$s $metadata', 's Counted', 's Counted', '$$s $metadata'],
    'deleting and writing again are events of the log, too',
  )
  await client.tombstoneStream('s')
  t.match(await refused(client.appendToStream('s', anEvent())), { type: 'stream-deleted' })
  t.match(await refused(all(client.readStream('s'))), { type: 'stream-deleted', streamName: 's' })
  t.match(await refused(client.tombstoneStream('s')), { type: 'stream-deleted' })
  t.match(await refused(client.deleteStream('absent')), { type: 'wrong-expected-version' })
})

t.test("a stream's metadata bounds what is read of it, not of the log", async t => {
  const { client } = await start(t)
  await client.appendToStream('s', events(10))
  await client.setStreamMetadata('s', { maxCount: 3, truncateBefore: 2 })
  t.same(
    (await all(client.readStream('s'))).map(({ event }) => event!.revision),
    [7n, 8n, 9n],
  )
  await client.setStreamMetadata('s', { truncateBefore: 9 })
  t.same(
    (await all(client.readStream('s', { direction: 'backwards', fromRevision: 'end' }))).map(
      ({ event }) => event!.revision,
    ),
    [9n],
  )
  t.equal((await all(client.readAll())).length, 12)
})

t.test('an append is at most as large as the server takes, counted as it counts', async t => {
  const { client, double } = await start(t, { maxAppendBytes: 1_000 })
  const sized = (bytes: number) =>
    binaryEvent({ type: 'Sized', data: Buffer.alloc(bytes - 2 * 'Sized'.length) })
  t.match(await client.appendToStream('s', [sized(400), sized(600)]), { success: true })
  t.match(await refused(client.appendToStream('s', [sized(400), sized(601)])), {
    type: 'maximum-append-size-exceeded',
    maxAppendSize: 1_000,
  })
  const inParts = client.appendToStream('s', [sized(400), sized(601)], { batchAppendSize: 500 })
  t.match(await refused(inParts), { type: 'maximum-append-size-exceeded' })
  t.match(await client.appendToStream('s', [sized(400), sized(600)], { batchAppendSize: 500 }), {
    nextExpectedRevision: 3n,
  })
  t.equal(double.store.records.length, 4)
})

t.test('over TLS users are known by their passwords, appending one by one', async t => {
  const { caFile, ...tls } = await selfSigned(t)
  const options = {
    tls,
    host: 'localhost',
    users: { admin: 'changeit' },
    maxAppendBytes: 1_000,
  }
  const double = await startEventStoreDBDouble(t, options)
  const client = clientOf(t, `${double.address}&tlsCAFile=${caFile}`)
  const admin = { username: 'admin', password: 'changeit' }
  const one = anEvent()
  const append = (expectedRevision: bigint | 'no_stream', event: JSONEventData = one) =>
    client.appendToStream('s', event, { credentials: admin, expectedRevision })
  t.match(await append('no_stream'), { success: true, nextExpectedRevision: 0n })
  t.match(await append('no_stream'), { success: true, nextExpectedRevision: 0n }, 'repeated')
  t.match(await refused(append(9n)), {
    type: 'wrong-expected-version',
    expectedVersion: 9n,
    actualVersion: 0n,
  })
  const large = jsonEvent({ type: 'T', data: { text: 'x'.repeat(1_000) } })
  t.match(await refused(append(0n, large)), { type: 'maximum-append-size-exceeded', maxAppendSize: 1_000 })
  t.match(await refused(client.appendToStream('s', anEvent())), { type: 'access-denied' }, 'nobody')
  const wrong = { username: 'admin', password: 'guess' }
  t.match(await refused(client.appendToStream('s', anEvent(), { credentials: wrong })), {
    type: 'access-denied',
    code: status.UNAUTHENTICATED,
  })
  t.match(await refused(all(client.readStream('s'))), { type: 'access-denied' })
  t.equal((await all(client.readStream('s', { credentials: admin }))).length, 1)
  for (const failure of ['server_busy', 'timeout'] as const) {
    double.failAppends(failure, { store: true })
    const type = failure === 'timeout' ? 'timeout' : 'unavailable'
    t.match(await refused(append(BigInt(double.store.records.length) - 1n, anEvent())), { type }, failure)
  }
  t.equal(double.store.records.length, 3, 'both were stored')
})

t.test('the log is read from positions: forwards with the record there, backwards without it', async t => {
  const { client, double } = await start(t)
  for (let index = 0; index < 50; index++) await client.appendToStream(`s-${index}`, anEvent())
  const { records } = double.store
  const ids = records.map(({ id }) => id)
  const at = (index: number) => ({ commit: records[index]!.position, prepare: records[index]!.position })
  const read = async (options: Parameters<typeof client.readAll>[0]) =>
    (await all(client.readAll(options))).map(({ event }) => event!.id)
  t.same(await read({}), ids)
  t.same(await read({ fromPosition: at(20), maxCount: 3 }), ids.slice(20, 23))
  t.same(await read({ direction: 'backwards', fromPosition: 'end', maxCount: 2 }), ids.slice(-2).reverse())
  t.same(await read({ direction: 'backwards', fromPosition: at(3) }), ids.slice(0, 3).reverse())
  t.same(await read({ fromPosition: 'end' }), [])
  const beyond = records[49]!.position + 1n
  t.same(await read({ fromPosition: { commit: beyond, prepare: beyond } }), [], 'behind the last record')
  const between = records[20]!.position + 1n
  t.match(await refused(read({ fromPosition: { commit: between, prepare: between } })), {
    code: status.UNKNOWN,
    message: /InvalidPosition/,
  })
})

t.test('a subscription gets what its filter is for, in order, from behind where it stood', async t => {
  const { client, double } = await start(t)
  for (let index = 0; index < 60; index++) {
    await client.appendToStream(`mine-${index % 7}`, anEvent(index % 2 ? 'Odd' : 'Even'))
    await client.appendToStream('$stats-127.0.0.1:2113', anEvent('$statsCollected'))
  }
  const { records } = double.store
  const mine = () => records.filter(({ stream }) => stream.startsWith('mine-'))
  const start30 = mine()[29]!.position
  const filter = { prefixes: ['mine-'] }
  const followers = [
    await follow(t, client, { filter }),
    await follow(t, client, { filter, fromPosition: { commit: start30, prepare: start30 } }),
    await follow(t, client, { filter: { regex: '^mine-[35]$' }, fromPosition: 'end' }),
    await follow(t, client, { fromPosition: 'start' }),
  ]
  await until('all have caught up', () => followers.every(({ caughtUp }) => caughtUp > 0))
  for (let index = 0; index < 40; index++) await client.appendToStream(`mine-${index % 7}`, anEvent())
  const expected = [
    mine(),
    mine().slice(30),
    mine()
      .slice(60)
      .filter(({ stream }) => /[35]$/.test(stream)),
    records,
  ].map(wanted => wanted.map(({ id }) => id))
  await until('all have got all', () =>
    followers.every(({ ids }, index) => ids.length >= expected[index]!.length),
  )
  t.same(
    followers.map(({ ids }) => ids),
    expected,
  )
  const byType = client.subscribeToAll({ filter: eventTypeFilter({ prefixes: ['Od'] }) })
  const types: string[] = []
  byType.on('data', ({ event }) => types.push(event!.type))
  await until('those of the type came', () => types.length === 30)
  t.same(new Set(types), new Set(['Odd']))
  await byType.unsubscribe()
})

t.test('a subscription that begins again at any of its checkpoints misses nothing', async t => {
  const { client, double } = await start(t)
  const append = async (count: number) => {
    for (let index = 0; index < count; index++)
      await client.appendToStream(index % 3 ? 'other' : 'mine', anEvent())
  }
  await append(200)
  const filter = { prefixes: ['mine'], maxSearchWindow: 10, checkpointInterval: 2 }
  const whole = await follow(t, client, { filter })
  await until('it has caught up', () => whole.caughtUp > 0)
  await append(100)
  const ids = double.store.records.filter(({ stream }) => stream === 'mine').map(({ id }) => id)
  await until('it has got all', () => whole.ids.length === ids.length)
  const { checkpoints } = whole
  t.ok(checkpoints.length > 12, `${checkpoints.length} checkpoints, every 20 events`)
  t.same(
    checkpoints,
    [...checkpoints].sort((one, other) => Number(one.commit - other.commit)),
  )
  for (const checkpoint of checkpoints) {
    const wanted = double.store.records
      .filter(
        ({ stream, position }) =>
          stream === 'mine' && position > checkpoint.commit - (checkpoint.prepare === 0n ? 1n : 0n),
      )
      .map(({ id }) => id)
    const again = await follow(t, client, { filter, fromPosition: checkpoint })
    await until('it has got the rest', () => again.ids.length >= wanted.length && again.caughtUp > 0)
    t.same(again.ids, wanted)
    await again.subscription.unsubscribe()
  }
})

t.test('a subscription from within a record is refused, one from beyond the end waits for that', async t => {
  const { client, double } = await start(t)
  await client.appendToStream('s', events(3))
  const within = double.store.records[1]!.position + 1n
  const bad = client.subscribeToAll({ fromPosition: { commit: within, prepare: within } })
  const [error] = (await once(bad, 'error')) as [{ code: number; message: string }]
  t.match(error, { code: status.INVALID_ARGUMENT, message: /Trying to read from an invalid position\./ })
  const beyond = double.store.end + 1n
  const early = await follow(t, client, { fromPosition: { commit: beyond, prepare: beyond } })
  await client.appendToStream('s', events(2))
  await until('what lies behind the position came', () => early.ids.length > 0)
  t.same(early.ids, [double.store.records[4]!.id], 'the record before it was passed over in silence')
})

t.test(
  'a subscription to a stream has its events from behind a revision, and ends with the stream',
  async t => {
    const { client } = await start(t)
    await client.appendToStream('s', events(40))
    const revisions: bigint[] = []
    const errors: { type?: string }[] = []
    const subscription = client.subscribeToStream('s', { fromRevision: 37n })
    subscription.on('data', ({ event }) => revisions.push(event!.revision))
    subscription.on('error', error => errors.push(error as { type?: string }))
    await until('the old ones came', () => revisions.length === 2)
    await client.appendToStream('s', anEvent())
    await until('the new one came', () => revisions.length === 3)
    t.same(revisions, [38n, 39n, 40n])
    await client.tombstoneStream('s')
    await until('it ended', () => errors.length > 0)
    t.match(errors, [{ type: 'stream-deleted' }])
  },
)

t.test('links are resolved when that is asked', async t => {
  const { client } = await start(t)
  await client.appendToStream('s', events(2))
  const link = binaryEvent({ type: '$>', data: Buffer.from('1@s') })
  await client.appendToStream('$ce-s', [link, binaryEvent({ type: '$>', data: Buffer.from('9@s') })])
  const [found, lost] = await all(client.readStream('$ce-s', { resolveLinkTos: true }))
  t.match(found, { event: { streamId: 's', revision: 1n }, link: { id: link.id, streamId: '$ce-s' } })
  t.equal(lost!.event, undefined, 'what it names is not there')
  t.match((await all(client.readStream('$ce-s')))[0], { event: { type: '$>' } })
})

t.test('a client that does not read makes nobody hold the log for it', async t => {
  const { double, client, stubs } = await start(t)
  const data = Buffer.alloc(10_000)
  for (let index = 0; index < 40; index++)
    await client.appendToStream(
      's',
      Array.from({ length: 100 }, () => binaryEvent({ type: 'T', data })),
    )
  const request = new ReadReq()
  const options = new ReadReq.Options()
  const from = new ReadReq.Options.AllOptions()
  from.setStart(new Empty())
  options.setAll(from)
  const ids = new ReadReq.Options.UUIDOption()
  ids.setString(new Empty())
  options.setUuidOption(ids)
  options.setNoFilter(new Empty())
  options.setSubscription(new ReadReq.Options.SubscriptionOptions())
  request.setOptions(options)
  const call = stubs.read(request)
  call.on('error', () => {})
  // One that has read nothing yet is not held back by the library: it keeps what comes itself.
  call.once('data', () => call.pause())
  const sent = () => double.store.records.filter(({ wire }) => wire !== null).length
  await until('it began', () => sent() > 0)
  await new Promise(resolve => setTimeout(resolve, 500))
  t.ok(sent() < 2_000, `${sent()} of 4,000 events were made ready`)
  call.cancel()
  await until('the subscription is gone', () => double.subscriptions === 0)
})

t.test('the answers that are made by hand are those that the generated code reads', t => {
  const sizes = [0, 1, 127, 128, 16_383, 16_384, 300_000]
  for (const firstPosition of [0n, 127n, 128n, 2n ** 32n, 2n ** 53n - 1n, 2n ** 53n, 2n ** 62n]) {
    const store = new EventStoreDBStore({ firstPosition })
    for (const size of sizes) {
      const event = {
        id: randomUUID(),
        type: 'Größe',
        isJson: size % 2 === 0,
        data: Buffer.alloc(size, 7),
        metadata: Buffer.alloc(Math.min(size, 200), 9),
      }
      store.append('ström', 'any', [event])
      const stored = store.records.at(-1)!
      const byHand = ReadResp.deserializeBinary(eventAnswer(stored, false) as Buffer)
        .getEvent()!
        .toObject()
      const generated = eventAnswer(stored, true) as InstanceType<typeof ReadResp>
      const expected = generated.getEvent()!.toObject()
      t.equal(readUUID(generated.getEvent()!.getEvent()!.getId()), event.id, 'halves of an id')
      t.same(
        plain(byHand.event!),
        plain({ ...expected.event!, id: { string: event.id } }),
        `${firstPosition} ${size}`,
      )
      t.equal(byHand.commitPosition, expected.commitPosition)
    }
  }
  t.end()

  /** Bytes come as base64 where they were read, and as they were set where they were not. */
  function plain(
    event: NonNullable<
      typeof ReadResp.ReadEvent.prototype.toObject extends () => infer R ? R : never
    >['event'],
  ) {
    const { id, streamIdentifier, data, customMetadata, metadataMap, ...rest } = event!
    return {
      ...rest,
      id: id!.string,
      stream: Buffer.from(asHex(streamIdentifier!.streamName), 'hex').toString('utf8'),
      data: asHex(data),
      customMetadata: asHex(customMetadata),
      metadata: new Map(metadataMap),
    }
  }
  function asHex(bytes: string | Uint8Array): string {
    return (typeof bytes === 'string' ? Buffer.from(bytes, 'base64') : Buffer.from(bytes)).toString('hex')
  }
})

/** An append by the stubs: what the client's own table of promises hides can be seen here. */
function batch(t: Test, double: EventStoreDBDouble) {
  const call = stubsOf(t, double).batchAppend()
  const answers: BatchAppendResponse[] = []
  const errors: unknown[] = []
  call.on('data', answer => answers.push(answer))
  call.on('error', error => errors.push(error))
  const append = (stream: string, { structured = false } = {}) => {
    const request = new BatchAppendReq()
    const options = new BatchAppendReq.Options()
    const identifier = new StreamIdentifier()
    identifier.setStreamName(Buffer.from(stream))
    options.setStreamIdentifier(identifier)
    options.setNoStream(new Empty() as never)
    request.setOptions(options)
    const correlation = randomUUID()
    request.setCorrelationId(writeUUID(correlation, structured))
    const event = new BatchAppendReq.ProposedMessage()
    event.setId(writeUUID(randomUUID(), structured))
    event.getMetadataMap().set('type', 'T').set('content-type', 'application/json')
    event.setData(Buffer.from('{}'))
    request.addProposedMessages(event)
    request.setIsFinal(true)
    call.write(request)
    return correlation
  }
  const answered = () => answers.map(answer => readUUID(answer.getCorrelationId()))
  return { append, answers, answered, errors, call }
}

t.test('answers come in the order of the appends, under their correlation ids in either form', async t => {
  const { double } = await start(t)
  const { append, answered, answers, call } = batch(t, double)
  const sent = Array.from({ length: 200 }, (_, index) =>
    append(`s-${index % 150}`, { structured: index % 3 === 0 }),
  )
  await until('all are answered', () => answers.length === 200)
  t.same(answered(), sent)
  t.equal(answers.filter(answer => answer.hasError()).length, 50)
  call.end()
  await once(call, 'end')
})

t.test('faults of appends', async t => {
  t.test('answers are lost: stored and never answered; the same append again is a repetition', async t => {
    const { double, client } = await start(t)
    const one = anEvent()
    await client.appendToStream('warm', anEvent())
    double.loseAcks(1)
    const lost = client.appendToStream('s', one, { expectedRevision: 'no_stream' })
    await until('it is stored', () => double.store.lastRevision('s') === 0n)
    t.ok(await stillOpen(lost))
    t.match(await client.appendToStream('s', one, { expectedRevision: 'no_stream' }), {
      nextExpectedRevision: 0n,
    })
    t.equal(double.store.records.length, 2)
    double.cut()
    t.match(await refused(lost), { type: /unavailable|cancelled|unknown/ })
  })

  t.test('stalled: taken, neither stored nor answered until it goes on', async t => {
    const { double, client } = await start(t)
    const follower = await follow(t, client)
    await client.appendToStream('s', anEvent())
    double.stall()
    const held = [client.appendToStream('s', anEvent()), client.appendToStream('s', anEvent())]
    t.ok(await stillOpen(Promise.race(held)))
    t.ok(await stillOpen(all(client.readStream('s'))))
    t.equal(double.store.records.length, 1)
    double.resume()
    t.same(
      (await Promise.all(held)).map(({ nextExpectedRevision }) => nextExpectedRevision),
      [1n, 2n],
    )
    await until('followers go on, too', () => follower.ids.length === 3)
  })

  t.test('late: stored at once, answered after a while, in order', async t => {
    const { double, client } = await start(t)
    await client.appendToStream('s', anEvent())
    double.answerLate(100)
    const startedAt = performance.now()
    const late = [client.appendToStream('s', anEvent()), client.appendToStream('s', anEvent())]
    await until('both are stored', () => double.store.records.length === 3)
    t.ok(performance.now() - startedAt < 90, 'stored at once')
    await Promise.all(late)
    t.ok(performance.now() - startedAt >= 99, 'answered late')
  })

  t.test('answered twice', async t => {
    const { double } = await start(t)
    const { append, answered } = batch(t, double)
    double.answerTwice(1, 10)
    const first = append('s-1')
    const second = append('s-2')
    await until('three answers came', () => answered().length === 3)
    t.same(answered().sort(), [first, first, second].sort())
  })

  t.test('failed as the server fails one, stored or not', async t => {
    const { double, client } = await start(t)
    const cases = [
      ['server_busy', { type: 'unknown', message: /Server Is Busy/ }],
      ['server_not_ready', { type: 'unknown', message: /Server Is Not Ready/ }],
      ['timeout', { type: 'deadline-exceeded' }],
      ['access_denied', { type: 'access-denied' }],
      ['unknown', { type: 'unknown' }],
    ] as const
    for (const [failure, expected] of cases)
      for (const store of [false, true]) {
        const before = double.store.records.length
        double.failAppends(failure, { store })
        t.match(await refused(client.appendToStream('s', anEvent())), expected, failure)
        t.equal(double.store.records.length, before + Number(store), `${failure}, stored: ${store}`)
      }
    t.match(await client.appendToStream('s', anEvent()), { success: true }, 'then all is well again')
  })
})

t.test('faults of reads', async t => {
  const { double, client } = await start(t)
  await client.appendToStream('s', anEvent())
  const cases = [
    ['server_busy', { type: 'unavailable' }],
    ['server_not_ready', { type: 'unavailable' }],
    ['timeout', { type: 'timeout' }],
    ['unknown', { type: 'unknown' }],
  ] as const
  for (const [failure, expected] of cases) {
    double.failReads(failure)
    t.match(await refused(all(client.readStream('s'))), expected, failure)
    t.equal((await all(client.readStream('s'))).length, 1)
  }
})

t.test('faults of connections', async t => {
  t.test('cut: calls end, new connections are taken', async t => {
    const { double, client } = await start(t)
    const follower = await follow(t, client)
    await double.cut()
    await until('the follower was told', () => follower.errors.length > 0)
    t.match(follower.errors[0], { type: /unavailable|cancelled/ })
    await until('nothing is left of it', () => double.subscriptions === 0)
    const after = await clientBackAt(t, double.address)
    t.match(await after.appendToStream('s', anEvent()), { success: true })
  })

  t.test('refused: nobody is let in until it accepts again', async t => {
    const { double } = await start(t)
    await double.refuse()
    const fresh = clientOf(t, double.address)
    t.match(await refused(fresh.appendToStream('s', anEvent())), { code: status.UNAVAILABLE })
    await double.accept()
    const after = await clientBackAt(t, double.address)
    t.match(await after.appendToStream('s', anEvent()), { success: true })
  })

  t.test('restarted: calls die, the log and the port stay; stopping twice is as once', async t => {
    const { double, client } = await start(t)
    const one = anEvent()
    await client.appendToStream('s', one)
    const follower = await follow(t, client)
    await double.restart(20)
    await until('the follower was told', () => follower.errors.length > 0)
    const after = await clientBackAt(t, double.address)
    t.equal((await all(after.readStream('s'))).length, 1)
    await after.appendToStream('s', one)
    t.equal(double.store.records.length, 2, 'what only memory knew is forgotten')
    await Promise.all([double.stop(), double.stop()])
    await double.stop()
    t.equal(double.connections, 0)
    const late = clientOf(t, double.address)
    t.match(await refused(late.appendToStream('s', one)), { code: status.UNAVAILABLE })
  })
})

t.test('faults of subscriptions', async t => {
  t.test('dropped in silence: nothing comes any more, and no error; a new one is served', async t => {
    const { double, client } = await start(t)
    const silent = await follow(t, client)
    t.equal(double.dropSubscriptions(), 1)
    const fresh = await follow(t, client)
    await client.appendToStream('s', anEvent())
    await until('the new one got it', () => fresh.ids.length === 1)
    t.same([silent.ids, silent.errors, silent.ended], [[], [], false])
  })

  for (const [reason, type] of [
    ['unavailable', 'unavailable'],
    ['cancelled', 'cancelled'],
  ] as const)
    t.test(`ended: ${reason}`, async t => {
      const { double, client } = await start(t)
      const follower = await follow(t, client)
      t.equal(double.endSubscriptions(reason), 1)
      await until('it was told', () => follower.errors.length > 0)
      t.match(follower.errors, [{ type }])
    })

  t.test('ended as if there were nothing more', async t => {
    const { double, client } = await start(t)
    const follower = await follow(t, client)
    double.endSubscriptions('end')
    await until('it ended', () => follower.ended)
    t.same(follower.errors, [])
  })

  t.test('checkpoints that repeat, and that run ahead', async t => {
    const { double, client } = await start(t)
    const follower = await follow(t, client, { filter: { prefixes: ['s'] } })
    await until('it has caught up', () => follower.caughtUp > 0)
    for (const position of [5n, 5n, 2n ** 60n]) double.sendCheckpoint(position)
    await until('they came', () => follower.checkpoints.length === 3)
    t.same(
      follower.checkpoints.map(({ commit }) => commit),
      [5n, 5n, 2n ** 60n],
    )
  })
})

t.test('faults of the log: an older copy, an empty one', async t => {
  const { double, client } = await start(t)
  await client.appendToStream('s', events(5))
  await client.appendToStream('other', events(1))
  const { position } = double.store.records[2]!
  await double.goBackTo(position)
  const back = await clientBackAt(t, double.address)
  t.equal((await all(back.readStream('s'))).length, 3)
  t.match(await refused(all(back.readStream('other'))), { type: 'stream-not-found' })
  t.match(await back.appendToStream('s', anEvent(), { expectedRevision: 2n }), { nextExpectedRevision: 3n })
  await double.forget()
  const empty = await clientBackAt(t, double.address)
  t.same(await all(empty.readAll()), [])
  t.match(await empty.appendToStream('s', anEvent(), { expectedRevision: 'no_stream' }), {
    position: { commit: 0n, prepare: 0n },
  })
})

t.test('a cluster: clients find the leader among the nodes, and are told when it is another', async t => {
  const leader = await startEventStoreDBDouble(t)
  const follower = await startEventStoreDBDouble(t, { store: leader.store })
  follower.becomeFollower({ host: '127.0.0.1', port: leader.port })
  const hosts = `127.0.0.1:${follower.port},127.0.0.1:${leader.port}`
  const client = clientOf(t, `esdb://${hosts}?tls=false&nodePreference=leader`)
  for (let round = 0; round < 5; round++)
    t.match(await client.appendToStream('s', anEvent(), { requiresLeader: true }), { success: true })
  const direct = clientOf(t, follower.address)
  t.match(await refused(direct.appendToStream('s', anEvent(), { requiresLeader: true })), {
    type: 'not-leader',
    leader: { address: '127.0.0.1', port: leader.port },
  })
  t.match(
    await direct.appendToStream('s', anEvent(), { requiresLeader: true }),
    { success: true },
    'the client went to where the leader is',
  )
  const reader = clientOf(t, follower.address)
  t.equal((await all(reader.readStream('s'))).length, 6, 'whoever does not need the leader may read here')
  t.match(await refused(all(reader.readStream('s', { requiresLeader: true }))), { type: 'not-leader' })
  follower.becomeLeader()
  leader.becomeFollower(null)
  t.match(await refused(client.appendToStream('s', anEvent(), { requiresLeader: true })), {
    type: 'unknown',
    message: /No leader info/,
  })
})

t.test(
  'as a process: it serves, takes faults as commands, refuses bad ones, and ends with its parent',
  async t => {
    const double = await spawnEventStoreDBDouble(t)
    const client = clientOf(t, double.address)
    await client.appendToStream('s', anEvent())
    t.match(await double.order({ do: 'describe' }), { events: 1, lastPosition: '0', connections: 1 })
    await double.order({ do: 'loseAcks', count: 1 })
    t.ok(await stillOpen(client.appendToStream('s', anEvent())))
    t.match(await double.order({ do: 'describe' }), { events: 2 })
    await t.rejects(double.order({ do: 'answerLate', ms: -1 }), /ms/)
    await t.rejects(double.order({ do: 'explode' } as never), /do/)
    await double.order({ do: 'restart', pauseMs: 1 })
    t.equal((await all((await clientBackAt(t, double.address)).readStream('s'))).length, 2)
    t.match(await double.order({ do: 'forget' }), { events: 0, lastPosition: '-1' })
    await double.stop()
    await double.stop()
    t.notOk(double.running)
    await t.rejects(double.order({ do: 'describe' }), /has ended/)
    const again = await spawnEventStoreDBDouble(t, { port: double.port })
    await again.kill()
    t.notOk(again.running)
  },
)

t.test('how fast it is: printed, not judged', async t => {
  const { client, double } = await start(t)
  const count = 5_000
  const startedAt = performance.now()
  let next = 0
  const writer = async () => {
    while (next < count)
      await client.appendToStream(`s-${next++}`, anEvent(), { expectedRevision: 'no_stream' })
  }
  await Promise.all(Array.from({ length: 128 }, writer))
  const appendsPerS = Math.round((count * 1_000) / (performance.now() - startedAt))
  const subscribedAt = performance.now()
  const follower = await follow(t, client, { filter: { prefixes: ['s-'] } })
  await until('all came', () => follower.ids.length === count)
  const eventsPerS = Math.round((count * 1_000) / (performance.now() - subscribedAt))
  t.comment(`client and double in one process: ${appendsPerS} appends/s, ${eventsPerS} subscribed events/s`)
  t.equal(double.store.records.length, count)
})
