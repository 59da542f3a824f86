import t from 'tap'
import {
  ConfigError,
  fileConfigSchema,
  KAFKA_ROLES,
  kafkaTypes,
  ROLES,
  readEnvironment,
  serviceConfig,
} from '../../src/runtime/config.ts'

const BASE = { databaseUrl: 'postgres://localhost/rollcall' }
const BROKERS = ['kafka-1:9092', '[::1]:9093']

t.test('the roles of Kafka run where its brokers are named, and nowhere else', async t => {
  t.same(serviceConfig(BASE).roles, ['api', 'projector', 'timers'])
  t.same(serviceConfig(BASE).kafkaBrokers, [])
  t.same(serviceConfig({ kafkaBrokers: BROKERS }, BASE).roles, ROLES)
  t.same(serviceConfig({ kafkaBrokers: BROKERS, roles: ['api'] }, BASE).roles, ['api'])
  const given = readEnvironment({ ROLLCALL_KAFKA_BROKERS: BROKERS.join(', '), ROLLCALL_ROLES: 'ingest' })
  t.match(serviceConfig(given, BASE), { kafkaBrokers: BROKERS, roles: ['ingest'], port: null })
  for (const role of KAFKA_ROLES)
    t.throws(() => serviceConfig({ roles: ['api', role] }, BASE), {
      constructor: ConfigError,
      message: new RegExp(`${role} cannot run without --kafka-brokers`),
    })
})

t.test('an address that is none is refused at the start', async t => {
  for (const broker of ['kafka', 'kafka:', ':9092', 'a b:9092', 'kafka://h:9092', ''])
    t.throws(() => serviceConfig({ kafkaBrokers: [broker] }, BASE), { message: /must be host:port/ }, broker)
})

t.test('a type goes to Kafka when its entry says so, with defaults for what it leaves out', async t => {
  const file = fileConfigSchema.parse({
    types: { plain: { priority: 1 }, usual: { kafka: {} }, own: { kafka: { maxOutstanding: 5 } } },
  })
  const usual = { maxOutstanding: 100, partitions: 4, offerHoldMs: 60_000 }
  t.strictSame(kafkaTypes(file), { usual, own: { ...usual, maxOutstanding: 5 } })
  const wrong = [{ maxOutstanding: 0 }, { partitions: 1.5 }, { offerHoldMs: 999 }, { holdMs: 5_000 }]
  for (const kafka of wrong)
    t.notOk(fileConfigSchema.safeParse({ types: { a: { kafka } } }).success, JSON.stringify(kafka))
})

t.test('types whose topics Kafka takes for the same are refused, unless one alone goes there', async t => {
  const types = { 'a.b': { kafka: {} }, a_b: { kafka: {} } }
  t.match(fileConfigSchema.safeParse({ types }).error?.message, /a\.b and a_b for the same/)
  t.ok(fileConfigSchema.safeParse({ types: { ...types, a_b: {} } }).success)
})
