/** Consumers, while the broker is well. K5 and so on are the client's traps: docs/adr/0014-kafkajs-behind-a-port.md. */
import t from 'tap'
import { UNREADABLE } from '../../../src/broker/kafka/unreadable.ts'
import { kafkaBroker, uniqueName } from '../../support/kafka.ts'
import {
  breakSnappy,
  CompressionTypes,
  countLooks,
  lz4,
  open,
  plainAdmin,
  plainProducer,
  read,
  record,
  snappyReads,
  until,
  writeCodecs,
  zstd,
} from './fixture.ts'

writeCodecs()

/** A topic of this run. */
const run = uniqueName('consuming')
const own = (what: string): string => `${run}-${what}`
const topic = (name: string, partitions = 1) => ({ name, partitions, compacted: false })
/** Short, and no less than a broker takes that is not ours. */
const SESSION_MS = process.env.KAFKA_BROKERS ? 6_000 : 3_000
const settled = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, ms))
const records = (prefix: string, count: number) =>
  Array.from({ length: count }, (_, i) => record(`${prefix}${i}`))

t.test(
  'K5 K10 K11: a rejected batch comes again, whatever was thrown, while other partitions go on',
  async t => {
    const server = await kafkaBroker(t)
    if (!server) return
    const { broker, lines } = open(t, server)
    await broker.ensureTopics([topic(own('rejects'), 4)])
    const first = Array.from({ length: 40 }, (_, i) => record(`a${i}`, 'secret-payload'))
    const bad: string[][] = []
    let badPartition: number | null = null
    let heal = false
    const errors = [new TypeError('t'), new RangeError('r'), new SyntaxError('s'), 'a string', null]
    const reader = read(broker, [own('rejects')], {
      before: records => {
        badPartition ??= records[0]!.partition
        if (records[0]!.partition !== badPartition || heal) return
        bad.push(records.map(one => one.offset))
        throw errors[bad.length % errors.length]
      },
    })
    await broker.send(own('rejects'), first)
    await until('it was tried six times', () => bad.length >= 6)
    await broker.send(
      own('rejects'),
      Array.from({ length: 40 }, (_, i) => record(`b${i}`)),
    )
    await until('the others have theirs', () => reader.keys().some(key => key.startsWith('b')))
    t.notOk(
      reader.got.some(one => one.partition === badPartition),
      'nothing of it is passed',
    )
    t.ok(
      bad.every(offsets => offsets[0] === '0'),
      'from the same record each time',
    )
    await until('its standstill is reported', () => !reader.consumer.health().ok)
    t.match(reader.consumer.health().reason, /rejects\/\d has records and has not moved/)
    heal = true
    await until('all are there', () => reader.got.length === 80)
    t.equal(new Set(reader.keys()).size, 80, 'each once')
    await until('it is well', () => reader.consumer.health().ok)
    t.notOk(
      lines.some(line => line.includes('secret-payload')),
      'no log line holds what a record holds',
    )
  },
)

t.test('K7: a batch that takes long holds up no other partition, and is in its group still', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server, { sessionMs: SESSION_MS })
  await broker.ensureTopics([topic(own('slow'), 4)])
  let slow: number | null = null
  let atOnce = 0
  let most = 0
  const reader = read(broker, [own('slow')], {
    before: async records => {
      slow ??= records[0]!.partition
      if (records[0]!.partition !== slow) return
      most = Math.max(most, ++atOnce)
      if (records[0]!.offset === '0') await settled(SESSION_MS + 1_000)
      atOnce--
    },
  })
  for (const round of ['a', 'b', 'c']) {
    await broker.send(
      own('slow'),
      Array.from({ length: 20 }, (_, i) => record(`${round}${i}`)),
    )
    await until(`round ${round} of the others`, () => reader.keys().some(key => key.startsWith(round)), 3_000)
  }
  t.notOk(reader.got.some(one => one.partition === slow))
  await until('all are there', () => reader.got.length >= 60)
  t.equal(reader.got.length, 60, 'each once: it was not put out of its group')
  t.equal(most, 1, 'one batch of a partition at a time')
})

t.test('K9: a stop waits for the batch under way and keeps its place', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('stops'))])
  await broker.send(
    own('stops'),
    Array.from({ length: 10 }, (_, i) => record(`a${i}`)),
  )
  let begun = false
  const first = read(broker, [own('stops')], {
    before: async () => {
      begun = true
      await settled(700)
    },
  })
  await until('a batch is under way', () => begun)
  await Promise.all([first.consumer.stop(), first.consumer.stop()])
  const handled = first.got.length
  t.ok(handled > 0)
  t.notOk(first.consumer.health().ok)
  await broker.send(own('stops'), [record('b')])
  const second = read(broker, [own('stops')])
  await until('the rest is there', () => second.got.length === 11 - handled)
  await settled(300)
  t.same(first.got.length + second.got.length, 11, 'each once')
})

t.test('K12: a stop does not wait for ever, and what was under way comes again', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server, { stopMs: 500 })
  await broker.ensureTopics([topic(own('hangs'))])
  await broker.send(own('hangs'), [record('a')])
  let aborted = false
  const hanging = read(broker, [own('hangs')], {
    before: (_, signal) =>
      new Promise(resolve => {
        signal.addEventListener('abort', () => {
          aborted = true
          setTimeout(resolve, 500) // too late to count
        })
      }),
  })
  await until('it is well', () => hanging.consumer.health().ok)
  await settled(300)
  const before = performance.now()
  await hanging.consumer.stop()
  t.ok(performance.now() - before < 3_000)
  t.ok(aborted, 'its signal has fired')
  const next = read(broker, [own('hangs')])
  await until('it came again', () => next.got.length === 1)
})

t.test('K14: a group whose places are gone reads from the beginning', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('lapses'), 2)])
  await broker.send(own('lapses'), [record('a'), record('b'), record('c')])
  const first = read(broker, [own('lapses')])
  await until('all are there', () => first.got.length === 3)
  await first.consumer.stop()
  const admin = await plainAdmin(t, server)
  await admin.deleteGroups([`of-${own('lapses')}`])
  const second = read(broker, [own('lapses')])
  await until('all are there again', () => second.got.length === 3)
})

t.test('K8: a batch that ends after its partition has gone to another is not passed', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const one = open(t, server).broker
  const two = open(t, server).broker
  await one.ensureTopics([topic(own('fenced'), 2)])
  await one.send(own('fenced'), records('a', 10))
  let release: () => void = () => {}
  const gate = new Promise<void>(resolve => {
    release = resolve
  })
  const held = new Set<number>()
  const first = read(one, [own('fenced')], {
    before: batch => {
      held.add(batch[0]!.partition)
      return gate
    },
  })
  await until('it has begun both', () => held.size === 2)
  const second = read(two, [own('fenced')])
  await until('the other has taken one over', () => second.got.length > 0)
  const taken = second.got[0]!.partition
  release()
  await until('the first one has ended both', () => first.got.length === 10)
  await one.send(own('fenced'), records('b', 10))
  await until('each came', () => new Set([...first.keys(), ...second.keys()]).size === 20)
  t.notOk(
    second.got.some(({ partition }) => partition !== taken),
    'the other has its own partition alone',
  )
  t.ok(second.keys().some(key => key.startsWith('b')) && first.keys().some(key => key.startsWith('b')))
  await until('both are well', () => first.consumer.health().ok && second.consumer.health().ok)
  await Promise.all([first.consumer.stop(), second.consumer.stop()])
  const third = read(one, [own('fenced')])
  await one.send(own('fenced'), [record('c')])
  await until('the newest came', () => third.got.length > 0)
  t.same(third.keys(), ['c'], 'all before was passed')
})

t.test('K14: what was deleted before it was read is passed over, and the rest is read', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('deleted'))])
  await broker.send(own('deleted'), records('a', 3))
  const first = read(broker, [own('deleted')])
  await until('the first are there', () => first.got.length === 3)
  await first.consumer.stop()
  await broker.send(own('deleted'), records('b', 5))
  const admin = await plainAdmin(t, server)
  await admin.fetchTopicOffsets(own('deleted')) // without its metadata it cannot
  await admin.deleteTopicRecords({ topic: own('deleted'), partitions: [{ partition: 0, offset: '6' }] })
  const second = read(broker, [own('deleted')])
  await until('what is kept came', () => second.got.length >= 2)
  t.same(second.keys(), ['b3', 'b4'])
})

t.test('K1: two consumers share, and one takes over from the other', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const one = open(t, server).broker
  const two = open(t, server).broker
  await one.ensureTopics([topic(own('shared'), 4)])
  const first = read(one, [own('shared')], { before: () => settled(30) })
  let sent = 0
  const send = async () => {
    for (let i = 0; i < 20; i++)
      await one.send(own('shared'), [record(`k${sent++}`), record(`k${sent++}`), record(`k${sent++}`)])
  }
  await send()
  await until('the first one reads', () => first.got.length > 0)
  const second = read(two, [own('shared')], { before: () => settled(30) })
  await until('the second one has joined', () => second.consumer.health().ok)
  await send()
  await until('the second one reads', async () => {
    await send()
    return second.got.length > 0
  })
  await second.consumer.stop()
  await send()
  await until('each came', () => new Set([...first.keys(), ...second.keys()]).size === sent)
  t.ok(first.consumer.health().ok)
})

t.test('K17: no codec stops a consumer, and what cannot be read comes as it is', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  const [admin, producer] = await Promise.all([plainAdmin(t, server), plainProducer(t, server)])
  const theirs = ['snappy', 'lz4', 'zstd'].map(name => ({ topic: own(name), numPartitions: 1 }))
  await broker.ensureTopics([topic(own('ours'))])
  await admin.createTopics({ topics: theirs, waitForLeaders: true })
  const { Snappy, LZ4, ZSTD } = CompressionTypes
  const messages = Array.from({ length: 30 }, (_, i) => ({ key: `k${i}`, value: `value ${i} `.repeat(20) }))
  const send = async (name: string, compression: number): Promise<void> => {
    await broker.send(own(name), [record('before')])
    await producer.send({ topic: own(name), compression, messages })
    await broker.send(own(name), [record('after')])
  }

  for (const compression of [Snappy, LZ4, ZSTD]) await send('ours', compression)
  const ours = read(broker, [own('ours')])
  await until('all of ours are there', () => ours.got.length === 96)
  t.equal(snappyReads(), 0, 'the broker keeps them without compression')

  await send('snappy', Snappy)
  const snappy = read(broker, [own('snappy')])
  await until('all in snappy are there', () => snappy.got.length === 32)
  t.equal(snappy.got[8]?.value?.toString(), messages[7]!.value)
  t.ok(snappyReads() > 0)

  for (const [name, compression, write] of [
    ['lz4', LZ4, lz4],
    ['zstd', ZSTD, zstd],
  ] as const) {
    await send(name, compression)
    await send(name, compression)
    const reader = read(broker, [own(name)])
    await until(
      `${name}: the last is there`,
      () => reader.keys().at(-1) === 'after' && reader.got.length === 6,
    )
    t.same(reader.keys(), ['before', 'null', 'after', 'before', 'null', 'after'], 'one stands for each batch')
    const one = reader.got[1]!
    t.match(one, { key: null, offset: '30' }, 'at the place of its last record')
    t.match(String(one.headers), `${UNREADABLE},30 records, ${name}: there is no reader for it`)
    // Not smaller, so the records can be seen in it.
    t.ok(one.value?.includes(messages[29]!.value), 'its bytes are kept')
    t.same(one.value?.subarray(0, 4), write(Buffer.alloc(9)).subarray(0, 4), 'all of them')
    await until('it is well', () => reader.consumer.health().ok)
    await reader.consumer.stop()
    const next = read(broker, [own(name)])
    await broker.send(own(name), [record('next')])
    await until(`${name}: the next is there`, () => next.got.length > 0)
    t.same(next.keys(), ['next'], 'all before was passed')
  }
})

t.test('K20: opening and closing leaves no socket and no timer', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('opens'), 2)])
  const stays = read(broker, [own('opens')], { group: own('opens') })
  await until('it is well', () => stays.consumer.health().ok)
  const count = (kind: string) => process.getActiveResourcesInfo().filter(one => one === kind).length
  const before = { TCPSocketWrap: count('TCPSocketWrap'), Timeout: count('Timeout') }
  for (let round = 0; round < 20; round++)
    await Promise.all(
      Array.from({ length: 10 }, async (_, i) => {
        const one = open(t, server).broker
        if (i > 0) await one.send(own('opens'), [record(`${round}-${i}`)])
        // Each end of these is in the middle of a rebalance.
        else one.consume({ group: own('opens'), topics: [own('opens')], onBatch: async () => {} })
        await one.close()
      }),
    )
  await until('all came to the one that stays', () => new Set(stays.keys()).size === 180)
  for (const kind of ['TCPSocketWrap', 'Timeout'] as const)
    await until(`no more of ${kind} than before`, () => count(kind) <= before[kind] + 3, 5_000)
  t.ok(stays.consumer.health().ok)
})

t.test('K6: a client that ended for good is replaced, and does no harm to the records', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker, lines } = open(t, server)
  const [admin, producer] = await Promise.all([plainAdmin(t, server), plainProducer(t, server)])
  await admin.createTopics({ topics: [{ topic: own('dies'), numPartitions: 2 }], waitForLeaders: true })
  const reader = read(broker, [own('dies')])
  await until('it is well', () => reader.consumer.health().ok)
  const heal = breakSnappy()
  t.teardown(heal)
  const messages = Array.from({ length: 30 }, (_, i) => ({ key: `k${i}`, value: `v${i}` }))
  await producer.send({ topic: own('dies'), compression: CompressionTypes.Snappy, messages })
  await until('it is reported', () => /ended \d+ times/.test(reader.consumer.health().reason ?? ''))
  t.match(lines.join(), /the consumer ended/)
  heal()
  await until('all are there', () => reader.got.length >= 30)
  t.equal(new Set(reader.keys()).size, 30)
  await until('it is well again', () => reader.consumer.health().ok)
})

t.test('K15: an idle connection sets no timer after the other', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server, { watchMs: 60_000, fetchWaitMs: 1_000 })
  await broker.ensureTopics([topic(own('idle'))])
  const reader = read(broker, [own('idle')])
  await until('it is well', () => reader.consumer.health().ok)
  await broker.send(own('idle'), [record('a')])
  await until('it came', () => reader.got.length === 1)
  const looks = countLooks(t)
  await settled(1_000)
  t.ok(looks() < 30, `${looks()} looks at the waiting requests in a second`)
})
