/** Refused commands kept beside their task, on real Postgres. */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import t, { type Test } from 'tap'
import type { CommandEnvelope } from '../../src/domain/commands.ts'
import type { Task } from '../../src/domain/task.ts'
import { type Answer, refused } from '../../src/engine/answer.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { Refusals, type RefusalsOptions } from '../../src/projections/refusals.ts'
import { start, TIMER, TOKEN_B, WORKER } from '../domain/specification.ts'
import { execute, testDatabase, testServer } from '../support/postgres.ts'
import {
  ask,
  ManualClock,
  mustBe,
  recordingLogger,
  SILENT,
  startEngine,
  submitting,
  until,
} from '../support/service-parts.ts'

function keeper(t: Test, url: string, over: Partial<RefusalsOptions> = {}) {
  const pool = new pg.Pool({ connectionString: url, max: 2, options: '-c timezone=UTC -c datestyle=ISO' })
  pool.on('error', () => {})
  const dropped: number[] = []
  const refusals = new Refusals({
    pool,
    clock: new ManualClock(),
    logger: SILENT,
    onDropped: count => dropped.push(count),
    intervalMs: 1,
    ...over,
  })
  t.teardown(async () => {
    await refusals.stop()
    await pool.end()
  })
  return { pool, refusals, dropped: () => dropped.reduce((sum, one) => sum + one, 0) }
}

/** A refusal as the engine gives it; only the revision of its task is looked at. */
const aRefusal = (message: string, revision = 3): Answer =>
  refused('illegal_transition', { revision } as Task, message)

const cancelling = (taskId: string, over: Partial<CommandEnvelope> = {}): CommandEnvelope =>
  ask(taskId, { trigger: 'CANCEL', reason: null }, over)

const numbersOf = (some: readonly { number: number }[]) => some.map(({ number }) => number)
const upTo = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, index) => from + index)

t.test('the first 20, the last 20 and the count of 100 refusals are kept, in their order', async t => {
  const { url } = await testDatabase(t)
  const { refusals, pool } = keeper(t, url)
  const taskId = randomUUID()
  t.same(await refusals.read(taskId), { count: 0, first: [], last: [] }, 'a task without refusals')
  for (let at = 1; at <= 100; at++) {
    refusals.record(cancelling(taskId), aRefusal(`refusal ${at}`))
    // Batches of different sizes, so that what moves on in the ring comes from one and from several.
    if (at === 7 || at === 22 || at === 60)
      await until('they are written', async () => (await refusals.read(taskId)).count === at)
  }
  await until('all are written', async () => (await refusals.read(taskId)).count === 100)
  const { first, last } = await refusals.read(taskId)
  t.same(numbersOf(first), upTo(1, 20))
  t.same(numbersOf(last), upTo(81, 100))
  for (const { number, message } of [...first, ...last]) t.equal(message, `refusal ${number}`)
  t.equal((await pool.query('SELECT FROM rollcall.refusals')).rowCount, 40, 'bounded rows')
})

t.test('a refusal says what was asked, by whom, when, at which revision and why', async t => {
  const { url } = await testDatabase(t)
  const clock = new ManualClock()
  const { refusals } = keeper(t, url, { clock })
  const engine = await startEngine(createMemoryEventLog(), {
    clock,
    observer: (envelope, answer) => refusals.record(envelope, answer),
  })
  const taskId = randomUUID()
  mustBe('accepted', await engine.execute(ask(taskId, submitting())))
  mustBe('accepted', await engine.execute(ask(taskId, start())))
  clock.pass(5_000)
  const late = ask(taskId, start({ leaseTokenHash: TOKEN_B, worker: 'painter-2' }), {
    actor: { kind: 'worker', id: 'painter-2' },
  })
  const { message } = mustBe('refused', await engine.execute(late))
  await until('it is kept', async () => (await refusals.read(taskId)).count === 1)
  t.strictSame((await refusals.read(taskId)).first, [
    {
      number: 1,
      revision: 1,
      code: 'already_started',
      message,
      trigger: 'START',
      actor: { kind: 'worker', id: 'painter-2' },
      source: 'http',
      commandId: late.commandId,
      at: new Date(clock.at),
    },
  ])
})

t.test('what says nothing about a task is not kept beside it', async t => {
  const { url } = await testDatabase(t)
  const { refusals, pool, dropped } = keeper(t, url)
  const taskId = randomUUID()
  const task = { revision: 1 } as Task
  refusals.record(cancelling(randomUUID()), refused('not_found'))
  for (const code of ['overloaded', 'log_unavailable', 'shutting_down', 'internal_error'] as const)
    refusals.record(cancelling(taskId), refused(code, task))
  refusals.record(cancelling(taskId, { actor: TIMER }), aRefusal('a stale view'))
  refusals.record(cancelling(taskId), { kind: 'repeated', task })
  refusals.record(cancelling(taskId), aRefusal('the only one'))
  await refusals.stop()
  t.same(
    (await pool.query('SELECT message FROM rollcall.refusals')).rows.map(row => row.message),
    ['the only one'],
  )
  t.equal(dropped(), 0)
})

t.test('many at once from several processes are all counted, and nobody waits in a circle', async t => {
  const { url } = await testDatabase(t)
  const tasks = Array.from({ length: 30 }, () => randomUUID())
  const { logger, lines } = recordingLogger()
  const keepers = Array.from({ length: 4 }, () => keeper(t, url, { logger, intervalMs: 0 }))
  for (let round = 0; round < 40; round++) {
    // Each in an order of its own.
    for (const [index, { refusals }] of keepers.entries())
      for (const taskId of index % 2 ? tasks : tasks.toReversed())
        refusals.record(cancelling(taskId), aRefusal(`from ${index} in round ${round}`))
    await new Promise(resolve => setImmediate(resolve))
  }
  await Promise.all(keepers.map(({ refusals }) => refusals.stop()))
  t.same(lines, [], 'nothing failed')
  for (const taskId of tasks) {
    const { count, first, last } = await keepers[0]!.refusals.read(taskId)
    t.equal(count, 160)
    t.same(numbersOf(first), upTo(1, 20))
    t.same(numbersOf(last), upTo(141, 160))
    for (const index of keepers.keys()) {
      const rounds = [...first, ...last]
        .filter(({ message }) => message.startsWith(`from ${index} `))
        .map(({ message }) => Number(message.split(' ').at(-1)))
      t.same(
        rounds,
        rounds.toSorted((a, b) => a - b),
        'those of one process stay in order',
      )
    }
  }
})

t.test('a batch whose answer was lost is written again and counted once', async t => {
  const { url } = await testDatabase(t)
  const pool = new pg.Pool({ connectionString: url, max: 2 })
  t.teardown(() => pool.end())
  let lose = 2
  const losing = {
    query: async (statement: pg.QueryConfig) => {
      const result = await pool.query(statement)
      if (statement.name === 'keep-refusals' && lose-- > 0)
        throw Object.assign(new Error('Connection terminated unexpectedly'), { code: 'ECONNRESET' })
      return result
    },
  } as unknown as pg.Pool
  const { refusals } = keeper(t, url, { pool: losing })
  const taskId = randomUUID()
  for (const message of ['one', 'two', 'three']) refusals.record(cancelling(taskId), aRefusal(message))
  await until('it was written three times', () => lose < 0)
  await refusals.stop()
  const { count, first } = await refusals.read(taskId)
  t.equal(count, 3)
  t.same(
    first.map(({ message }) => message),
    ['one', 'two', 'three'],
  )
})

t.test(
  'while the database is away refusals wait, up to a bound, and are written when it is back',
  async t => {
    const server = await testServer(t)
    const { refusals, dropped } = keeper(t, server.url, { waiting: 600 })
    const taskId = randomUUID()
    await server.stop()
    for (let at = 1; at <= 700; at++) refusals.record(cancelling(taskId), aRefusal(`refusal ${at}`))
    t.equal(dropped(), 100, 'the queue is bounded')
    await server.restart()
    await until(
      'they are written',
      async () => (await refusals.read(taskId).catch(() => null))?.count === 600,
    )
    const { last } = await refusals.read(taskId)
    t.same(last.at(-1)?.message, 'refusal 600')
    refusals.record(cancelling(taskId), aRefusal('afterwards'))
    await until('it goes on', async () => (await refusals.read(taskId)).count === 601)
    t.equal(dropped(), 100)
  },
)

t.test('stopping writes what waits, and does not wait for a database that does not answer', async t => {
  const { url } = await testDatabase(t)
  const patient = keeper(t, url, { intervalMs: 60_000 })
  const taskId = randomUUID()
  for (let at = 1; at <= 1_234; at++) patient.refusals.record(cancelling(taskId), aRefusal(`refusal ${at}`))
  await Promise.all([patient.refusals.stop(), patient.refusals.stop()])
  t.equal((await patient.refusals.read(taskId)).count, 1_234)
  patient.refusals.record(cancelling(taskId), aRefusal('too late'))
  t.equal(patient.dropped(), 1, 'after the stop nothing is taken')

  const silent = { query: () => new Promise(() => {}) } as unknown as pg.Pool
  const stuck = keeper(t, url, { pool: silent })
  stuck.refusals.record(cancelling(taskId), aRefusal('never written'))
  const before = performance.now()
  await stuck.refusals.stop()
  t.ok(performance.now() - before < 5_000, 'bounded')
  t.equal(stuck.dropped(), 1)
})

t.test('texts that the database does not take are made storable, long ones are cut', async t => {
  const { url } = await testDatabase(t)
  const { refusals } = keeper(t, url)
  const taskId = randomUUID()
  const envelope = cancelling(taskId, {
    actor: { kind: 'worker', id: 'w\u0000\ud800x' },
    commandId: 'c\u0000',
  })
  refusals.record(envelope, aRefusal(`NUL \u0000, half of a pair \udc00, ${'ä'.repeat(2_000)}`))
  refusals.record(cancelling(taskId), aRefusal('the next one'))
  await refusals.stop()
  const [odd, next] = (await refusals.read(taskId)).first
  t.match(odd, {
    actor: { id: 'w\ufffd\ufffdx' },
    commandId: 'c\ufffd',
    message: /^NUL \ufffd, half of a pair \ufffd, ä+…$/,
  })
  t.ok(Buffer.byteLength(odd!.message) <= 1_000)
  t.equal(next?.message, 'the next one')
})

t.test('rows that the database refuses are dropped, said and counted; the next ones are kept', async t => {
  const { url } = await testDatabase(t)
  const { logger, lines } = recordingLogger()
  const { refusals, dropped } = keeper(t, url, { logger })
  const taskId = randomUUID()
  await execute(url, `ALTER TABLE rollcall.refusals ADD CONSTRAINT odd CHECK (message <> 'odd')`)
  refusals.record(cancelling(taskId), aRefusal('odd'))
  await until('it was dropped', () => dropped() === 1)
  t.match(lines, [{ level: 50, msg: /refusals were not kept/ }])
  refusals.record(cancelling(taskId, { actor: WORKER }), aRefusal('even', 7))
  await until('the next is kept', async () => (await refusals.read(taskId)).count === 1)
  t.match((await refusals.read(taskId)).first, [{ number: 1, revision: 7, message: 'even' }])
})
