/** Records as nobody would wish them: many times, out of order, from the beginning again, and some that are none. */
import { randomUUID } from 'node:crypto'
import kafkajs, { type Message } from 'kafkajs'
import t from 'tap'
import type { DeadLetterList, DeadLetterView } from '../../src/api/schemas/dead-letters.ts'
import { WORKER_EVENTS } from '../../src/broker/topics.ts'
import { until } from '../api/fixture.ts'
import { CompressionTypes, plainClient, writeCodecs } from '../broker/kafka/fixture.ts'
import { endedRight } from './kafka-right.ts'
import { healthOf, INGEST_GROUP, PATIENCE_MS, Stage, untilReady } from './kafka-stage.ts'
import { eventsOf, nothing, type Plan, RawWorker, recordOf } from './kafka-worker.ts'

writeCodecs()

const { None, GZIP, Snappy, LZ4, ZSTD } = CompressionTypes
const CODECS = [None, GZIP, Snappy, LZ4, ZSTD]

interface Bad {
  code: string
  /** Of an event that would have been right. */
  message: (event: Record<string, unknown>) => Message
}

const value = (of: Message['value']) => () => ({ value: of })
const changed = (over: object) => (event: object) => ({ value: JSON.stringify({ ...event, ...over }) })
const deep = (levels: number): string => '['.repeat(levels) + ']'.repeat(levels)

/** What is no worker event, and what is said of it. */
const BAD: Bad[] = [
  { code: 'invalid_json', message: value('{') },
  { code: 'invalid_json', message: value('') },
  { code: 'invalid_json', message: value(Buffer.from([0, 1, 2, 254, 255])) },
  { code: 'invalid_json', message: value(Buffer.from('"\ud83d\ude00"').subarray(0, 3)) },
  { code: 'invalid_json', message: value('{"a":"\u0000"}') },
  { code: 'no_value', message: value(null) },
  { code: 'json_too_deep', message: value(deep(300_000)) },
  {
    code: 'json_too_deep',
    message: event => ({ value: JSON.stringify(event).replace('"bad"', deep(300_000)) }),
  },
  { code: 'invalid_event', message: value('null') },
  { code: 'invalid_event', message: value('[]') },
  { code: 'invalid_event', message: value('"SUCCEED"') },
  { code: 'invalid_event', message: changed({ attempt: '1' }) },
  { code: 'invalid_event', message: changed({ attempt: -1 }) },
  { code: 'invalid_event', message: changed({ worker: null }) },
  { code: 'invalid_event', message: changed({ taskId: ['a'] }) },
  { code: 'invalid_event', message: changed({ trigger: 'START' }) },
  { code: 'invalid_event', message: changed({ trigger: '__proto__' }) },
  { code: 'invalid_event', message: changed({ surprise: true }) },
  {
    code: 'number_not_exact',
    message: event => ({ value: JSON.stringify(event).replace('"bad"', '1e999') }),
  },
  {
    code: 'forbidden_key',
    message: event => ({ value: JSON.stringify(event).replace('"bad"', '{"__proto__":1}') }),
  },
  { code: 'content_too_large', message: changed({ result: 'x'.repeat(256 * 1024) }) },
  { code: 'key_mismatch', message: event => ({ ...changed({})(event), key: randomUUID() }) },
  { code: 'key_mismatch', message: event => ({ ...changed({})(event), key: Buffer.from([0, 255]) }) },
  {
    code: 'no_key',
    message: event => ({
      ...changed({})(event),
      key: null,
      headers: { one: '1', two: Buffer.from([0, 255]) },
    }),
  },
  { code: 'invalid_event', message: () => ({ key: null, value: '{"order":1,"of":"another system"}' }) },
  {
    code: 'not_found',
    message: event => {
      const key = randomUUID()
      return { ...changed({ taskId: key })(event), key }
    },
  },
]

const text = (of: Message['value'] | undefined): string =>
  of === null || of === undefined ? 'none' : Buffer.from(of as string).toString('base64')

/** A letter as one text that can be sorted. */
const lettered = (code: string, { key, value }: Message): string => `${code} ${text(key)} ${text(value)}`

const LARGEST_BYTES = 6 * 1024 * 1024
const kafka = { maxOutstanding: 200 }
const stage = await Stage.open(t, ['api', 'projector', 'timers', 'dispatcher'], {
  copies: kafka,
  order: kafka,
  alone: kafka,
  bad: kafka,
})

const letterCount = async (): Promise<number> =>
  (await stage!.pool.query('SELECT count(*)::int FROM rollcall.dead_letters')).rows[0].count

async function lettersNow(): Promise<string[]> {
  const { rows } = await stage!.pool.query<{ code: string; key: Buffer | null; value: Buffer | null }>(
    'SELECT reason_code AS code, key, value FROM rollcall.dead_letters',
  )
  return rows.map(({ code, ...of }) => lettered(code, of)).sort()
}

async function headersOf(code: string): Promise<DeadLetterView['headers']> {
  const { body } = await stage!.api.get<DeadLetterList>(`/v1/dead-letters?reason=${code}`)
  return (await stage!.api.get<DeadLetterView>(`/v1/dead-letters/${body.letters[0]!.letterId}`)).body.headers
}

if (stage) {
  let ingest = await stage.serve(['ingest'])
  await untilReady(ingest.url!)

  t.test('each record comes five times, and each task has one outcome', async t => {
    const plans: Plan[] = [{}, { fails: 1 }, { givesUp: true }]
    await RawWorker.start(t, stage.broker, 'copies', {
      says: (task, worker) => Array.from({ length: 5 }, () => eventsOf(task, worker)).flat(),
    })
    const ids = await stage.submit('copies', 150, index => ({ payload: { ...plans[index % 3] } }))
    const ends = ['SUCCESS in attempt 1', 'SUCCESS in attempt 2', 'FAILED in attempt 1']
    await endedRight(t, stage, new Map(ids.map((id, index) => [id, ends[index % 3]!])))
  })

  t.test('SUCCEED before START, FAIL before START, no START at all: the outcome counts', async t => {
    await RawWorker.start(t, stage.broker, 'order', { says: (...of) => eventsOf(...of).reverse() })
    await RawWorker.start(t, stage.broker, 'alone', { says: (...of) => eventsOf(...of).slice(1) })
    const plan = (index: number) => ({ payload: { fails: index % 2 } })
    const ids = [...(await stage.submit('order', 50, plan)), ...(await stage.submit('alone', 50, plan))]
    await endedRight(t, stage, new Map(ids.map((id, index) => [id, `SUCCESS in attempt ${1 + (index % 2)}`])))
  })

  t.test(
    'the group of ingest is deleted while it is stopped: it reads all again and changes nothing',
    async t => {
      const eventCount = async () =>
        (await stage.pool.query('SELECT count(*)::int FROM rollcall_log.events')).rows[0].count
      await ingest.stop()
      const before = await eventCount()
      const known = await stage.pool.query('SELECT task_id, revision FROM rollcall.tasks ORDER BY task_id')
      t.ok(known.rows.length > 200, 'there is something to read again')
      await stage.admin.deleteGroups([INGEST_GROUP])
      ingest = await stage.serve(['ingest'])
      await stage.passed()
      await stage.projected()
      t.equal(await eventCount(), before, 'nothing was appended')
      const after = await stage.pool.query('SELECT task_id, revision FROM rollcall.tasks ORDER BY task_id')
      t.strictSame(after.rows, known.rows)
      t.equal(await letterCount(), 0, 'nothing became a dead letter')
    },
  )

  t.test('bad records among good ones: those are dead letters byte for byte, these end right', async t => {
    const producer = plainClient(stage.kafka).producer()
    await producer.connect()
    t.teardown(() => producer.disconnect())
    const worker = await RawWorker.start(t, stage.broker, 'bad', { says: nothing })
    const ids = await stage.submit('bad', BAD.length + 4)
    await until('they are handed out', () => worker.tasks.length === ids.length, PATIENCE_MS)

    const huge = Buffer.from(JSON.stringify({ result: 'x'.repeat(5 * 1024 * 1024) }))
    await t.rejects(
      stage.broker.send(WORKER_EVENTS, [{ key: ids[0]!, value: huge, headers: {} }]),
      { code: 'record_refused' },
      'as the topic is made, 5 MB do not even come in',
    )
    // An operator may allow it, and then it comes in. The request names all that is set, or it would be unset.
    await stage.admin.alterConfigs({
      validateOnly: false,
      resources: [
        {
          type: kafkajs.ConfigResourceTypes.TOPIC,
          name: WORKER_EVENTS,
          configEntries: [
            { name: 'max.message.bytes', value: String(LARGEST_BYTES) },
            { name: 'compression.type', value: 'uncompressed' },
          ],
        },
      ],
    })
    const states: boolean[] = []
    const looking = setInterval(async () => {
      const { alive, checks } = await healthOf(ingest.url!).catch(() => ({ alive: false, checks: [] }))
      states.push(alive && checks.some(({ name, ok }) => name === 'ingest' && ok))
    }, 100)
    t.teardown(() => clearInterval(looking))

    const bad: string[] = []
    for (const [index, task] of worker.tasks.entries()) {
      const [start, end] = eventsOf(task, worker.name)
      const of = BAD[index]
      // What users write may hold NUL and halves of characters: it is kept as it is.
      const result = index % 2 ? { 'a\u0000b': ['\ud800', '\u0000'] } : null
      const good = [start, { ...end, result }].map(event => {
        const { key, value } = recordOf(event)
        return { key, value, headers: { traceparent: 'no trace at all' } }
      })
      const messages = of
        ? [good[0]!, { key: task.taskId, ...of.message({ ...end, commandId: 'bad' }) }, good[1]!]
        : good
      const compression = CODECS[index % CODECS.length]!
      await producer.send({ topic: WORKER_EVENTS, messages, compression })
      if (of) bad.push(lettered(of.code, messages[1]!))
    }
    const tooLarge = { key: ids[0]!, value: huge }
    await producer.send({ topic: WORKER_EVENTS, messages: [tooLarge] })
    bad.push(lettered('record_too_large', tooLarge))

    await endedRight(t, stage, new Map(ids.map(id => [id, 'SUCCESS in attempt 1'])))
    const kept = await stage.api.get<{ result: unknown }>(`/v1/tasks/${worker.tasks[1]!.taskId}`)
    t.strictSame(kept.body.result, { 'a\u0000b': ['\ud800', '\u0000'] })
    t.strictSame(await lettersNow(), bad.sort())
    t.strictSame(await headersOf('no_key'), [
      { name: 'one', value: Buffer.from('1').toString('base64') },
      { name: 'two', value: Buffer.from([0, 255]).toString('base64') },
    ])
    const { body } = await stage.api.get<DeadLetterList>('/v1/dead-letters?limit=200')
    t.equal(body.waiting, bad.length)
    t.equal(body.letters.length, bad.length)
    t.ok(states.length > 0 && states.every(Boolean), `ingest was well in each of ${states.length} looks`)
  })
}
