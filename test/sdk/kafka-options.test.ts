/** What a worker fed by Kafka is told, and what its messages hold, without a broker. */
import fc from 'fast-check'
import t from 'tap'
import type { IncomingRecord } from '../../src/broker/broker.ts'
import { parseTaskMessage } from '../../src/sdk/kafka/task-message.ts'
import { createWorker, type WorkerOptions } from '../../src/sdk/worker.ts'
import { messageOf } from './kafka-fixture.ts'

t.test('options that cannot be meant are refused where the worker is made', async t => {
  const url = 'http://127.0.0.1:8080'
  const brokers = ['127.0.0.1:9092']
  const wrong: [string, object, RegExp][] = [
    ['no url', {}, /^url must say where/],
    ['no url, and the API confirms', { kafka: { brokers } }, /^url must say where/],
    ['no brokers', { url, kafka: {} }, /^kafka\.brokers must name at least one/],
    ['an empty list', { url, kafka: { brokers: [] } }, /^kafka\.brokers must name at least one/],
    ['an address without port', { url, kafka: { brokers: ['kafka'] } }, /"kafka" must be host:port/],
    ['an address of the web', { url, kafka: { brokers: ['http://kafka:9092'] } }, /must be host:port/],
    ['another confirm', { url, kafka: { brokers, confirm: 'yes' } }, /^kafka\.confirm must be/],
    ['a group that Kafka does not take', { url, kafka: { brokers, group: 'a b' } }, /^kafka\.group must be/],
  ]
  for (const [name, options, message] of wrong)
    t.throws(() => createWorker({ types: { a: () => null }, ...options } as WorkerOptions), { message }, name)
  const types = { a: () => null }
  t.ok(createWorker({ url, types, kafka: { brokers: ['[::1]:9092', 'kafka-1:9092'], group: 'mine' } }))
  t.ok(createWorker({ types, kafka: { brokers, confirm: 'none' } }), 'without url where nobody confirms')
})

const taskId = '0198c7a0-0000-7000-8000-000000000001'
const record = (value: Buffer | null): IncomingRecord => ({
  topic: 'rollcall.tasks.a',
  partition: 0,
  offset: '0',
  key: Buffer.from(taskId),
  value,
  headers: [],
  timestamp: 0,
})
const parse = (fields: object) =>
  parseTaskMessage(record(messageOf({ taskId, type: 'a' }, fields).value), 'a')

t.test('a message is read, whatever a newer service has added to it', async t => {
  t.match(parse({ payload: { of: 'a test' }, newer: true }), {
    message: { taskId, payload: { of: 'a test' } },
  })
})

t.test('a message with a field that is missing or wrong is none', async t => {
  const wrong: [object, RegExp][] = [
    [{ taskId: 'x' }, /^taskId/],
    [{ taskId: taskId.toUpperCase() }, /^taskId/],
    [{ type: 'b' }, /^its type is "b", not a$/],
    [{ attempt: 0 }, /^attempt/],
    [{ attempt: 1.5 }, /^attempt/],
    [{ attempt: 1e12 }, /^attempt/],
    [{ run: '1' }, /^run/],
    [{ payload: undefined }, /^payload/],
    [{ labels: { a: 1 } }, /^labels/],
    [{ labels: null }, /^labels/],
    [{ correlationId: 1 }, /^correlationId/],
    [{ leaseMs: null }, /^leaseMs/],
    [{ executionMs: -1 }, /^executionMs/],
  ]
  for (const [fields, fault] of wrong)
    t.match(parse(fields), { message: null, fault }, JSON.stringify(fields))
  t.match(parseTaskMessage(record(null), 'a'), { fault: 'it has no value' })
})

t.test('nothing that a record holds makes the reading throw', async () => {
  fc.assert(
    fc.property(fc.oneof(fc.uint8Array(), fc.json().map(Buffer.from)), bytes => {
      const { message, fault } = parseTaskMessage(record(Buffer.from(bytes)), 'a')
      return message === null && fault !== null
    }),
  )
})
