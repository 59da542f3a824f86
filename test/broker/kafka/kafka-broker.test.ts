/** Topics and sends. K4, K13 and so on are the client's traps: docs/adr/0014-kafkajs-behind-a-port.md. */
import t from 'tap'
import {
  apiVersions,
  assertCompatible,
  CLIENT_APIS,
  incompatibilities,
} from '../../../src/broker/kafka/compatibility.ts'
import { kafkaBroker, uniqueName } from '../../support/kafka.ts'
import { open, plainAdmin, plainProducer, read, record, until } from './fixture.ts'

/** A topic of this run. */
const run = uniqueName('sending')
const own = (what: string): string => `${run}-${what}`
const topic = (name: string, partitions = 1, compacted = false) => ({ name, partitions, compacted })

t.test('K1: the real broker takes what the client sends', async t => {
  const broker = await kafkaBroker(t)
  if (!broker) return
  await assertCompatible(broker.brokers)
  const versions = await apiVersions({ broker: broker.brokers[0]! })
  t.ok(versions.size > Object.keys(CLIENT_APIS).length)
  t.same(incompatibilities(versions), [])
})

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
  const plain = await plainProducer(t, server)
  await plain.send({
    topic: own('round-trip'),
    messages: [{ key: null, value: null, headers: { two: ['1', '2'] }, timestamp: '1234' }],
  })
  const reader = read(broker, [own('round-trip')])
  await until('all are there', () => reader.got.length === 4)
  const headersOf = (one: (typeof reader.got)[number]) =>
    one.headers.map(([name, bytes]) => [name, String(bytes)])
  t.same(
    reader.got.map(one => [one.key?.toString(), one.value, headersOf(one)]),
    [
      [
        'a',
        every,
        [
          ['ce_id', 'x/1'],
          ['emoji', '\u{1F600}'],
          ['empty', ''],
        ],
      ],
      ['a', null, []],
      ['', Buffer.alloc(0), []],
      [
        undefined,
        null,
        [
          ['two', '1'],
          ['two', '2'],
        ],
      ],
    ],
  )
  t.same(
    reader.got.map(({ offset, partition, topic }) => [offset, partition, topic]),
    ['0', '1', '2', '3'].map(offset => [offset, 0, own('round-trip')]),
  )
  t.equal(reader.got[3]?.timestamp, 1234)
})

t.test('K1 K4: topics are made as asked for, twice without harm, and nothing else makes one', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server, { sendMs: 1_500 })
  await broker.ensureTopics([topic(own('made'), 3), topic(own('kept'), 2, true)])
  await Promise.all([
    broker.ensureTopics([topic(own('made'), 5), topic(own('made-2'))]),
    broker.ensureTopics([topic(own('made-2'))]),
  ])
  const admin = await plainAdmin(t, server)
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

t.test('a topic that was deleted does not fail the sends to others for ever', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server, { sendMs: 1_500 })
  await broker.ensureTopics([topic(own('goes')), topic(own('stays')), topic(own('later'))])
  await broker.send(own('goes'), [record('a')])
  await broker.send(own('stays'), [record('a')])
  const admin = await plainAdmin(t, server)
  await admin.deleteTopics({ topics: [own('goes')] })
  const sends = (name: string) =>
    broker.send(name, [record('b')]).then(
      () => true,
      () => false,
    )
  // For a topic that it has not sent to the client asks for all that it ever sent to, the deleted one among them.
  await until('a new one takes', () => sends(own('later')))
  t.ok(await sends(own('stays')))
  t.notOk(await sends(own('goes')))
})

t.test('K18: a record that is too large is refused, and the others of its send arrive', async t => {
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
  await until('all are there', () => new Set(reader.keys()).size === 41)
  t.ok(
    reader.got.every(({ value }) => value!.length <= 100_000),
    'all but the large one',
  )
})

t.test('K19: what is sent with a key stays in one partition, in its order', async t => {
  const server = await kafkaBroker(t)
  if (!server) return
  const { broker } = open(t, server)
  await broker.ensureTopics([topic(own('keys'), 8)])
  for (let round = 0; round < 5; round++)
    await broker.send(
      own('keys'),
      Array.from({ length: 20 }, (_, i) => record(`k${i}`, String(round))),
    )
  const reader = read(broker, [own('keys')])
  const sent = () => new Set(reader.got.map(({ key, value }) => `${key} ${value}`)).size
  await until('all are there', () => sent() === 100)
  for (let i = 0; i < 20; i++) {
    const of = reader.got.filter(one => String(one.key) === `k${i}`)
    t.equal(new Set(of.map(one => one.partition)).size, 1)
    t.same([...new Set(of.map(one => String(one.value)))], ['0', '1', '2', '3', '4'])
  }
  t.ok(new Set(reader.got.map(one => one.partition)).size > 3, 'the keys are spread')
})

t.test('K13: a broker that is not there is an error in its time, and a consumer waits for it', async t => {
  const { broker } = open(t, { brokers: ['127.0.0.1:1'] }, { sendMs: 1_000 })
  const reader = read(broker, ['any'])
  const before = performance.now()
  await t.rejects(broker.send('any', [record('a')]), { code: 'broker_unavailable' })
  await t.rejects(broker.ensureTopics([topic('any')]), { code: 'broker_unavailable' })
  t.ok(performance.now() - before < 4_000)
  t.match(reader.consumer.health(), { ok: false, reason: /not joined.+127\.0\.0\.1:1 cannot be reached/ })
  await broker.close()
  await broker.close()
  await t.rejects(broker.send('any', [record('a')]), { code: 'broker_unavailable' })
})
