import t from 'tap'
import { kafkaBroker, ownKafkaBroker, uniqueName } from '../../support/kafka.ts'
import {
  breakSnappy,
  CompressionTypes,
  countLooks,
  open,
  plainClient,
  read,
  record,
  snappyReads,
  until,
  writeSnappy,
} from './fixture.ts'

writeSnappy()

/** A topic of this run. */
const run = uniqueName('port')
const own = (what: string): string => `${run}-${what}`

const topic = (name: string, partitions = 1, compacted = false) => ({ name, partitions, compacted })
const settled = (ms: number): Promise<void> => new Promise(resolve => setTimeout(resolve, ms))

t.test('a record comes out byte for byte as it went in', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('round-trip'))])
  const every = Buffer.from(Array.from({ length: 256 }, (_, i) => i))
  await broker.send(own('round-trip'), [
    { key: 'a', value: every, headers: { ce_id: 'x/1', emoji: '\u{1F600}', empty: '' } },
    { key: 'a', value: null, headers: {} },
    { key: '', value: Buffer.alloc(0), headers: {} },
  ])
  const plain = plainClient(server).producer({ allowAutoTopicCreation: false })
  await plain.connect()
  t.teardown(() => plain.disconnect())
  await plain.send({
    topic: own('round-trip'),
    messages: [{ key: null, value: null, headers: { two: ['1', '2'] }, timestamp: '1234' }],
  })
  const reader = read(broker, [own('round-trip')])
  await until('all are there', () => reader.got.length === 4)
  t.same(
    reader.got.map(({ key, value, headers, offset, partition, topic }) => [
      key?.toString(),
      value,
      headers.map(([name, bytes]) => [name, bytes.toString()]),
      offset,
      partition,
      topic,
    ]),
    [
      [
        'a',
        every,
        [
          ['ce_id', 'x/1'],
          ['emoji', '\u{1F600}'],
          ['empty', ''],
        ],
        '0',
        0,
        own('round-trip'),
      ],
      ['a', null, [], '1', 0, own('round-trip')],
      ['', Buffer.alloc(0), [], '2', 0, own('round-trip')],
      [
        undefined,
        null,
        [
          ['two', '1'],
          ['two', '2'],
        ],
        '3',
        0,
        own('round-trip'),
      ],
    ],
  )
  t.equal(reader.got[3]?.timestamp, 1234)
})

t.test('topics are made as asked for, twice without harm, and nothing else makes one', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('made'), 3), topic(own('kept'), 2, true)])
  await Promise.all([
    broker.ensureTopics([topic(own('made'), 5), topic(own('made-2'))]),
    broker.ensureTopics([topic(own('made-2'))]),
  ])
  const admin = plainClient(server).admin()
  t.teardown(() => admin.disconnect())
  await admin.connect()
  const { topics } = await admin.fetchTopicMetadata({ topics: [own('made'), own('kept')] })
  t.same(Object.fromEntries(topics.map(one => [one.name, one.partitions.length])), {
    [own('made')]: 3,
    [own('kept')]: 2,
  })
  const { resources } = await admin.describeConfigs({
    includeSynonyms: false,
    resources: [{ type: 2, name: own('kept'), configNames: ['cleanup.policy', 'compression.type'] }],
  })
  t.same(Object.fromEntries(resources[0]!.configEntries.map(one => [one.configName, one.configValue])), {
    'cleanup.policy': 'compact',
    'compression.type': 'uncompressed',
  })
  await t.rejects(broker.ensureTopics([topic('not allowed: /')]), { code: 'record_refused' })
  await t.rejects(broker.send(own('nobody-made-it'), [record('a')]), { code: 'broker_unavailable' })
  await broker.send(own('made'), [record('a')])
  t.notOk((await admin.listTopics()).includes(own('nobody-made-it')))
})

t.test('a topic that was deleted does not fail the sends to others', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('goes')), topic(own('stays'))])
  await broker.send(own('goes'), [record('a')])
  await broker.send(own('stays'), [record('a')])
  const admin = plainClient(server).admin()
  t.teardown(() => admin.disconnect())
  await admin.connect()
  await admin.deleteTopics({ topics: [own('goes')] })
  await t.rejects(broker.send(own('goes'), [record('b')]), { code: 'broker_unavailable' })
  await until('the other one takes', () =>
    broker.send(own('stays'), [record('b')]).then(
      () => true,
      () => false,
    ),
  )
  await t.rejects(broker.send(own('goes'), [record('c')]), { code: 'broker_unavailable' })
  await broker.send(own('stays'), [record('c')])
})

t.test('a record that is too large is refused, and the others of its send arrive', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('sizes'))])
  const large = { key: 'large', value: Buffer.alloc(5_000_000), headers: {} }
  await t.rejects(broker.send(own('sizes'), [record('a'), large]), { code: 'record_refused' })
  const many = Array.from({ length: 40 }, (_, i) => ({
    key: `k${i}`,
    value: Buffer.alloc(100_000),
    headers: {},
  }))
  await broker.send(own('sizes'), many)
  const reader = read(broker, [own('sizes')])
  await until('all are there', () => reader.got.length === 41)
  t.equal(new Set(reader.keys()).size, 41)
})

t.test('a rejected batch comes again, whatever was thrown, while other partitions go on', async t => {
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
})

t.test('a batch that takes long holds up no other partition, and is in its group still', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('slow'), 4)])
  let slow: number | null = null
  let atOnce = 0
  let most = 0
  const reader = read(broker, [own('slow')], {
    before: async records => {
      slow ??= records[0]!.partition
      if (records[0]!.partition !== slow) return
      most = Math.max(most, ++atOnce)
      if (records[0]!.offset === '0') await settled(8_000) // longer than the session
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

t.test('a stop waits for the batch under way and keeps its place', async t => {
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

t.test('a stop does not wait for ever, and what was under way comes again', async t => {
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

t.test('a group whose places are gone reads from the beginning', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('lapses'), 2)])
  await broker.send(own('lapses'), [record('a'), record('b'), record('c')])
  const first = read(broker, [own('lapses')])
  await until('all are there', () => first.got.length === 3)
  await first.consumer.stop()
  const admin = plainClient(server).admin()
  t.teardown(() => admin.disconnect())
  await admin.connect()
  await admin.deleteGroups([`of-${own('lapses')}`])
  const second = read(broker, [own('lapses')])
  await until('all are there again', () => second.got.length === 3)
})

t.test('two consumers share, and one takes over from the other', async t => {
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

t.test('snappy stops no consumer', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  const plain = plainClient(server)
  const admin = plain.admin()
  const producer = plain.producer({ allowAutoTopicCreation: false })
  t.teardown(() => Promise.all([admin.disconnect(), producer.disconnect()]))
  await Promise.all([admin.connect(), producer.connect()])
  await broker.ensureTopics([topic(own('ours'))])
  await admin.createTopics({ topics: [{ topic: own('theirs'), numPartitions: 1 }], waitForLeaders: true })
  for (const name of [own('ours'), own('theirs')]) {
    const messages = Array.from({ length: 30 }, (_, i) => ({
      key: `k${i}`,
      value: `snappy ${i} `.repeat(20),
    }))
    await producer.send({ topic: name, compression: CompressionTypes.Snappy, messages })
    const before = snappyReads()
    const reader = read(broker, [name])
    await until(`${name}: all are there`, () => reader.got.length === 30)
    t.equal(reader.got[7]?.value?.toString(), messages[7]!.value)
    t.equal(snappyReads() > before, name === own('theirs'), 'ours holds it without compression')
  }
})

t.test('the broker stops for 5 s under load: each record comes, and the health says so', async t => {
  const server = await ownKafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('restart'), 3)])
  const reader = read(broker, [own('restart')])
  let sent = 0
  let failed = 0
  let ended = false
  t.teardown(() => {
    ended = true
  })
  const send = async (): Promise<void> => {
    for (let i = 0; !ended; i++) {
      const key = `k${i}`
      while (!ended) {
        const done = await broker.send(own('restart'), [record(key)]).then(
          () => true,
          error => {
            failed++
            if (error.code !== 'broker_unavailable') throw error
            return false
          },
        )
        if (done) break
      }
      sent++
      await settled(5)
    }
  }
  const sending = send()
  await until('it flows', () => reader.got.length > 50 && reader.consumer.health().ok)
  await server.stop()
  const before = performance.now()
  await until('the health says so', () => !reader.consumer.health().ok, 5_000)
  t.ok(performance.now() - before < 5_000)
  await settled(5_000 - (performance.now() - before))
  await server.restart()
  await until('it is well', () => reader.consumer.health().ok, 20_000)
  const then = reader.got.length
  await until('it flows again', () => reader.got.length > then + 50)
  ended = true
  await sending
  await until('each came', () => new Set(reader.keys()).size === sent)
  t.ok(failed > 0, 'the load was there')
})

t.test('a client that ended for good is replaced, and does no harm to the records', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker, lines } = open(t, server)
  const plain = plainClient(server)
  const admin = plain.admin()
  const producer = plain.producer({ allowAutoTopicCreation: false })
  t.teardown(() => Promise.all([admin.disconnect(), producer.disconnect()]))
  await Promise.all([admin.connect(), producer.connect()])
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

t.test('an idle connection sets no timer after the other', async t => {
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

t.test('a broker that is not there is an error in its time, and a consumer waits for it', async t => {
  const { broker } = open(t, { brokers: ['127.0.0.1:1'] }, { sendMs: 1_000 })
  const reader = read(broker, ['any'])
  const before = performance.now()
  await t.rejects(broker.send('any', [record('a')]), { code: 'broker_unavailable' })
  await t.rejects(broker.ensureTopics([topic('any')]), { code: 'broker_unavailable' })
  t.ok(performance.now() - before < 4_000)
  t.match(reader.consumer.health(), { ok: false, reason: /not joined/ })
  await broker.close()
  await broker.close()
  await t.rejects(broker.send('any', [record('a')]), { code: 'broker_unavailable' })
})
