import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { tasksTopic } from '../../src/broker/topics.ts'
import { LogUnavailableError } from '../../src/eventlog/event-log.ts'
import { Dispatcher, type DispatchSettings } from '../../src/workers/dispatcher.ts'
import { OFFER_HOLD_MAX_MS } from '../../src/workers/work-state.ts'
import { cancel, start, succeed, TOKEN_A } from '../domain/specification.ts'
import { FakeBroker } from '../support/fake-broker.ts'
import {
  aClaim,
  ask,
  history,
  mustBe,
  NEVER,
  openParts,
  type Parts,
  type PartsOptions,
  SILENT,
  signalled,
  startParts,
  submitTasks,
  typesOf,
  until,
  wrapLog,
} from '../support/service-parts.ts'

const TYPE = 'image.generate'
const TOPIC = tasksTopic(TYPE)
const OVERDUE = `UPDATE rollcall.offers SET held_until = now() - interval '1 second'`

const settings = (over: Partial<DispatchSettings> = {}): DispatchSettings => ({
  maxOutstanding: 100,
  partitions: 4,
  offerHoldMs: 60_000,
  ...over,
})

function aDispatcher(
  t: Test,
  parts: Parts,
  broker: FakeBroker,
  types: Record<string, DispatchSettings> = { [TYPE]: settings() },
) {
  const { workState, engine, signal } = parts
  const counted = { dispatched: 0, failed: [] as string[], outstanding: 0 }
  const dispatcher = new Dispatcher({
    broker,
    workState,
    engine,
    signal,
    types,
    observer: {
      dispatched: (_, count) => {
        counted.dispatched += count
      },
      failed: (type, reason) => counted.failed.push(`${type} ${reason}`),
      outstanding: (_, count) => {
        counted.outstanding = Math.max(counted.outstanding, count)
      },
    },
    logger: SILENT,
  })
  t.teardown(() => dispatcher.stop())
  return { dispatcher, counted }
}

async function setUp(t: Test, options: PartsOptions = {}) {
  const parts = await startParts(t, options)
  parts.projector.start()
  return { parts, broker: new FakeBroker() }
}

const outstanding = async ({ rows }: Parts, type = TYPE): Promise<number> =>
  (
    await rows<{ n: number }>(`SELECT count(*)::int AS n FROM rollcall.offers WHERE claim_id = $1`, [
      `dispatch ${type}`,
    ])
  )[0]!.n

const starting = (taskId: string, attempt = 1) => ask(taskId, start({ attempt, leaseTokenHash: TOKEN_A }))

t.test('a waiting task is sent once, with all that a worker needs, and started from there', async t => {
  const { parts, broker } = await setUp(t)
  const { dispatcher, counted } = aDispatcher(t, parts, broker)
  dispatcher.start()
  dispatcher.start()
  const [taskId] = (await submitTasks(parts.engine, 1, () => ({ labels: { team: 'a' } }))) as [string]
  await until('it is sent', () => broker.sent.length > 0)
  const { topic, record } = broker.sent[0]!
  t.equal(topic, TOPIC)
  t.equal(record.key, taskId)
  t.strictSame(JSON.parse(record.value!.toString()), {
    taskId,
    type: TYPE,
    run: 1,
    attempt: 1,
    maxAttempts: 3,
    attemptsCharged: 0,
    payload: { prompt: 'a lighthouse' },
    context: null,
    labels: { team: 'a' },
    correlationId: null,
    leaseMs: 2_000,
    executionMs: 10_000,
  })
  const { ce_time, ...headers } = record.headers
  t.strictSame(headers, {
    ce_specversion: '1.0',
    ce_id: `${taskId}/1/1`,
    ce_source: 'rollcall',
    ce_type: 'rollcall.task.offered',
    ce_subject: taskId,
    'content-type': 'application/json',
  })
  const [now] = await parts.rows<{ ms: number }>('SELECT extract(epoch FROM clock_timestamp()) * 1000 AS ms')
  t.ok(Math.abs(now!.ms - Date.parse(ce_time!)) < 30_000, 'by the clock of the database')
  t.strictSame(broker.topics.get(TOPIC), { name: TOPIC, partitions: 4, compacted: false })

  mustBe('accepted', await parts.engine.execute(starting(taskId)))
  await parts.projected()
  t.equal(await outstanding(parts), 0, 'what was started is not on its way')
  t.strictSame(dispatcher.health(), { ok: true, reason: null })
  await dispatcher.stop()
  await dispatcher.stop()
  await submitTasks(parts.engine, 1)
  await parts.projected()
  await sleep(100)
  t.strictSame(broker.keys(), [taskId], 'nothing is sent after the stop')
  t.equal(counted.dispatched, 1)
  dispatcher.start()
  await until('it goes on after another start', () => broker.sent.length === 2)
})

t.test('three dispatchers at once never have more on their way than the window of the type', async t => {
  const window = 7
  const tasks = 60
  const { parts, broker } = await setUp(t)
  const types = { [TYPE]: settings({ maxOutstanding: window }) }
  const others = [await openParts(t, parts.url), await openParts(t, parts.url)]
  const ids = await submitTasks(parts.engine, tasks)
  await parts.projected()
  const three = [parts, ...others].map(one => aDispatcher(t, one, broker, types))
  for (const { dispatcher } of three) dispatcher.start()
  const started: string[] = []
  let most = 0
  while (started.length < tasks) {
    await until('some are sent', () => broker.sent.length > started.length)
    most = Math.max(most, await outstanding(parts))
    // The window is full again and again: only a start makes room.
    if (broker.sent.length < Math.min(tasks, started.length + window)) continue
    t.equal(broker.sent.length, Math.min(tasks, started.length + window))
    const fresh = broker.keys().slice(started.length)
    for (const id of fresh) mustBe('accepted', await parts.engine.execute(starting(id)))
    started.push(...fresh)
  }
  t.equal(most, window)
  for (const { counted } of three) t.ok(counted.outstanding <= window, `${counted.outstanding} were seen`)
  t.strictSame(broker.keys().sort(), ids.sort(), 'each was sent once')
})

t.test('calls at once share the window: what one has taken the other counts', async t => {
  const { parts } = await setUp(t)
  await submitTasks(parts.engine, 50)
  await parts.projected()
  const query = { type: TYPE, max: 4, maxOutstanding: 20, holdMs: 60_000 }
  for (let round = 0; round < 3; round++) {
    const looks = await Promise.all(Array.from({ length: 6 }, () => parts.workState.takeToDispatch(query)))
    const taken = looks.flatMap(look => look.taken)
    t.equal(new Set(taken.map(({ taskId }) => taskId)).size, taken.length)
    t.ok(Math.max(...looks.map(look => look.outstanding)) <= 20)
  }
  t.equal(await outstanding(parts), 20)
})

t.test('priority counts among what waits, and not among what is on its way', async t => {
  const { parts, broker } = await setUp(t)
  const make = async (priority: number) =>
    (await submitTasks(parts.engine, 1, () => ({ priority })))[0] as string
  const early = [await make(0), await make(0)]
  await parts.projected()
  const { dispatcher } = aDispatcher(t, parts, broker, { [TYPE]: settings({ maxOutstanding: 2 }) })
  dispatcher.start()
  await until('the window is full', () => broker.sent.length === 2)
  const low = await make(-1)
  const high = await make(9)
  await parts.projected()
  for (const id of early) mustBe('accepted', await parts.engine.execute(starting(id)))
  await until('the others follow', () => broker.sent.length === 4)
  t.strictSame(broker.keys(), [...early, high, low])
})

t.test('an offer that is not started in its time is offered again, and held for longer', async t => {
  const { parts, broker } = await setUp(t)
  const { dispatcher } = aDispatcher(t, parts, broker, { [TYPE]: settings({ offerHoldMs: 200_000 }) })
  dispatcher.start()
  const [taskId] = (await submitTasks(parts.engine, 1)) as [string]
  const holdMs = async () =>
    (
      await parts.rows<{ ms: number }>(
        'SELECT round(extract(epoch FROM held_until - clock_timestamp()) * 1000)::int AS ms FROM rollcall.offers',
      )
    )[0]!.ms
  const holds: number[] = []
  for (const times of [1, 2, 3]) {
    await until(`it is sent, time ${times}`, () => broker.sent.length === times)
    t.equal(broker.sent[times - 1]!.record.headers.ce_id, `${taskId}/1/${times}`)
    holds.push(await holdMs())
    await parts.rows(OVERDUE)
    await parts.timers.tick()
  }
  const expected = [200_000, OFFER_HOLD_MAX_MS, OFFER_HOLD_MAX_MS]
  for (const [index, ms] of holds.entries())
    t.ok(Math.abs(ms - expected[index]!) < 30_000, `held for ${ms} ms`)
})

t.test(
  'a task that was cancelled or started elsewhere meanwhile is not sent and gives its place up',
  async t => {
    const { parts, broker } = await setUp(t)
    const [cancelled, claimed, sound] = (await submitTasks(parts.engine, 3)) as [string, string, string]
    await parts.projected()
    // From here on `ready` is behind the log.
    await parts.projector.stop()
    mustBe('accepted', await parts.engine.execute(ask(cancelled, cancel())))
    mustBe('accepted', await parts.engine.execute(starting(claimed)))
    aDispatcher(t, parts, broker).dispatcher.start()
    await until('one is sent', () => broker.sent.length > 0)
    await until('the others were dropped', async () => (await outstanding(parts)) === 1)
    t.strictSame(broker.keys(), [sound])
  },
)

t.test('what was sent before a task was cancelled does no harm', async t => {
  const { parts, broker } = await setUp(t)
  aDispatcher(t, parts, broker).dispatcher.start()
  const [taskId] = (await submitTasks(parts.engine, 1)) as [string]
  await until('it is sent', () => broker.sent.length === 1)
  mustBe('accepted', await parts.engine.execute(ask(taskId, cancel())))
  await parts.projected()
  t.equal(await outstanding(parts), 0, 'it makes room')
  // A worker that read the message nevertheless.
  t.match(await parts.engine.execute(starting(taskId)), { kind: 'refused', code: 'task_finished' })
  t.strictSame(await typesOf(parts.log, taskId), ['TaskSubmitted', 'TaskCancelled'])
})

t.test('a type whose topic fails holds up no other, and goes on when it is there', async t => {
  const { parts, broker } = await setUp(t)
  broker.away.add(tasksTopic('report'))
  const types = { report: settings(), [TYPE]: settings() }
  const { dispatcher, counted } = aDispatcher(t, parts, broker, types)
  dispatcher.start()
  const make = async (type: string) => (await submitTasks(parts.engine, 1, () => ({ type })))[0] as string
  const report = await make('report')
  const images = [await make(TYPE), await make(TYPE), await make(TYPE)]
  await until('the others are sent', () => broker.sent.length === 3)
  t.strictSame(broker.keys().sort(), images.sort())
  await until('it was noticed', () => counted.failed.length > 0)
  t.strictSame([...new Set(counted.failed)], ['report unavailable'])
  t.match(
    await parts.rows('SELECT task_id FROM rollcall.ready'),
    [{ task_id: report }],
    'what cannot be sent is not taken',
  )
  broker.away.clear()
  await until('it is sent as well', () => broker.keys(tasksTopic('report')).length === 1)
  await until('all is well', () => dispatcher.health().ok)
})

t.test(
  'a send that failed is tried again while its offers are held, and takes no others meanwhile',
  async t => {
    const { parts, broker } = await setUp(t)
    const { dispatcher, counted } = aDispatcher(t, parts, broker)
    dispatcher.start()
    await until('the topic is there', () => broker.topics.size === 1)
    // As when the topic was deleted while nobody looked.
    broker.topics.clear()
    broker.away.add(TOPIC)
    const [first] = (await submitTasks(parts.engine, 1)) as [string]
    await until('it failed', () => counted.failed.length > 0)
    await submitTasks(parts.engine, 5)
    await parts.projected()
    await until('it failed again', () => counted.failed.length > 2)
    t.equal(await outstanding(parts), 1)
    broker.away.clear()
    await until('all are sent', () => broker.sent.length === 6)
    t.equal(broker.keys()[0], first)
    t.ok(broker.topics.has(TOPIC), 'the topic was made again')
  },
)

t.test('a send without an end in the time of its offers is given up, and its tasks come again', async t => {
  const { parts, broker } = await setUp(t)
  parts.timers.start()
  const { dispatcher } = aDispatcher(t, parts, broker, { [TYPE]: settings({ offerHoldMs: 1_000 }) })
  dispatcher.start()
  await until('the topic is there', () => broker.topics.size === 1)
  broker.away.add(TOPIC)
  const ids = await submitTasks(parts.engine, 3)
  await parts.projected()
  const times = () =>
    parts.rows<{ n: number }>(
      `SELECT coalesce(max(times_offered), 0)::int AS n FROM
        (SELECT times_offered FROM rollcall.offers UNION ALL SELECT times_offered FROM rollcall.ready) o`,
    )
  await until('they went back', async () => (await times())[0]!.n >= 1 && (await outstanding(parts)) === 0)
  broker.away.clear()
  await until('all are sent', () => new Set(broker.keys()).size === 3)
  t.strictSame([...new Set(broker.keys())].sort(), ids.sort())
})

t.test('the log or the database away only delays', async t => {
  let isAway = false
  const { parts, broker } = await setUp(t, {
    log: log =>
      wrapLog(log, {
        readStreams: async streams => {
          if (isAway) throw new LogUnavailableError('away')
          return log.readStreams(streams)
        },
      }),
  })
  const { dispatcher } = aDispatcher(t, parts, broker)
  const ids = await submitTasks(parts.engine, 4)
  await parts.projected()
  isAway = true
  dispatcher.start()
  await until('they are held', async () => (await outstanding(parts)) === 4)
  isAway = false
  await until('they are sent', () => broker.sent.length === 4)
  t.strictSame(broker.keys().sort(), ids.sort())
  await parts.rows('ALTER FUNCTION rollcall.take_to_dispatch RENAME TO gone')
  const [late] = (await submitTasks(parts.engine, 1)) as [string]
  await sleep(700)
  await parts.rows('ALTER FUNCTION rollcall.gone RENAME TO take_to_dispatch')
  await until('the last is sent', () => broker.keys().includes(late))
})

t.test(
  'a message that the broker refuses fails its attempt, and the others of its batch are sent',
  async t => {
    const { parts, broker } = await setUp(t)
    const [huge, ...others] = (await submitTasks(parts.engine, 4)) as [string, ...string[]]
    broker.refuses = ({ key }) => key === huge
    await parts.projected()
    const { counted } = (() => {
      const made = aDispatcher(t, parts, broker)
      made.dispatcher.start()
      return made
    })()
    await until('the others are sent', () => broker.sent.length === 3)
    await until('it failed', async () => (await parts.task(huge)).status === 'RETRYING')
    t.strictSame(broker.keys().sort(), others.sort())
    t.match(await parts.task(huge), {
      lastError: { code: 'message_refused', message: /refuses the message/ },
    })
    t.strictSame(counted.failed, [`${TYPE} refused`])
    t.match((await history(parts.log, huge)).at(-1)?.metadata, {
      actor: { kind: 'system', id: 'dispatcher' },
      source: 'kafka',
    })
    await parts.projected()
    t.equal(await outstanding(parts), 3, 'it does not stand in the window')
  },
)

t.test('what was committed and not sent, because the process died, comes again', async t => {
  const { parts, broker } = await setUp(t)
  const [taskId] = (await submitTasks(parts.engine, 1)) as [string]
  await parts.projected()
  const look = { type: TYPE, max: 10, maxOutstanding: 10, holdMs: 60_000 }
  t.match(await parts.workState.takeToDispatch(look), {
    taken: [{ taskId, attempt: 1, timesOffered: 1 }],
    outstanding: 1,
  })
  aDispatcher(t, parts, broker).dispatcher.start()
  await parts.rows(OVERDUE)
  await parts.timers.tick()
  await until('it is sent', () => broker.sent.length === 1)
  t.equal(broker.sent[0]!.record.headers.ce_id, `${taskId}/1/2`)
})

t.test('a type of Kafka can be claimed over HTTP too: nobody gets what the other has', async t => {
  const { parts, broker } = await setUp(t)
  const { dispatcher } = aDispatcher(t, parts, broker, { [TYPE]: settings({ maxOutstanding: 3 }) })
  const ids = await submitTasks(parts.engine, 8)
  await parts.projected()
  dispatcher.start()
  await until('the window is full', () => broker.sent.length === 3)
  const claimed = (await parts.claims.claim(aClaim({ max: 10 }), NEVER)).map(({ taskId }) => taskId)
  t.equal(claimed.length, 5)
  t.strictSame([...claimed, ...broker.keys()].sort(), ids.sort())
  for (const id of broker.keys()) mustBe('accepted', await parts.engine.execute(starting(id)))
  mustBe('accepted', await parts.engine.execute(ask(broker.keys()[0]!, succeed())))
})

t.test('a stop waits for what is being sent, for a bounded time', async t => {
  const { parts, broker } = await setUp(t)
  const { dispatcher } = aDispatcher(t, parts, broker)
  const sending = signalled()
  const answered = signalled()
  broker.onSend = () => {
    sending.resolve()
    return answered.promise
  }
  await submitTasks(parts.engine, 1)
  dispatcher.start()
  await sending.promise
  let isStopped = false
  const stopping = dispatcher.stop().then(() => {
    isStopped = true
  })
  await sleep(50)
  t.equal(isStopped, false)
  answered.resolve()
  await stopping
  t.equal(broker.sent.length, 1)

  broker.onSend = () => new Promise(() => {})
  dispatcher.start()
  await submitTasks(parts.engine, 1)
  await until('it is taken', async () => (await outstanding(parts)) === 2)
  const since = performance.now()
  await dispatcher.stop()
  t.ok(performance.now() - since < 10_000)
})
