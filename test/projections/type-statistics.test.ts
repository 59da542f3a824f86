/** What is read of a type, from real rows, and how often. */
import pg from 'pg'
import t from 'tap'
import { readSample, TypeStatisticsReader } from '../../src/projections/type-statistics.ts'
import { fail, succeed } from '../domain/specification.ts'
import { testDatabase } from '../support/postgres.ts'
import { aClaim, ask, mustBe, NEVER, startParts, submitTasks, until } from '../support/service-parts.ts'

t.test('a sample has the last attempts that succeeded, and who waits', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  const [plain, retried, failed] = await submitTasks(parts.engine, 3, index => ({ priority: 9 - index }))
  const [delayed] = await submitTasks(parts.engine, 1, () => ({ delayMs: 1 }))
  await submitTasks(parts.engine, 1, () => ({ type: 'report' }))
  await parts.projected()
  await parts.workState.passNotBefore([(await parts.task(delayed!)) as never])
  const report = async (of: readonly string[], trigger: typeof succeed | typeof fail, over = {}) => {
    for (const { taskId, attempt } of await parts.claims.claim(aClaim({ max: of.length }), NEVER)) {
      t.ok(of.includes(taskId))
      mustBe('accepted', await parts.engine.execute(ask(taskId, trigger({ attempt, ...over }))))
    }
    await parts.projected()
  }
  await report([plain!], succeed)
  await report([retried!], fail, { retryAfterMs: 0 })
  await until('its backoff is over', async () => {
    await parts.timers.tick()
    return (await parts.task(retried!)).status === 'PENDING'
  })
  await parts.projected()
  await report([retried!], succeed)
  await report([failed!], fail, { retryable: false })
  await report([delayed!], succeed)
  const waits = await submitTasks(parts.engine, 2)
  await parts.projected()
  const sample = await readSample(parts.pool, 'image.generate')
  const expected = await Promise.all(
    [retried, delayed, plain].map(async id => {
      const task = await parts.task(id!)
      if (task.status !== 'SUCCESS') throw new Error(`it is ${task.status}`)
      const { runAt: readyAt, startedAt, finishedAt, attempt } = task
      return { readyAt, startedAt, finishedAt, attempt }
    }),
  )
  t.strictSame(
    sample.succeeded.toSorted((a, b) => b.finishedAt - a.finishedAt || b.attempt - a.attempt),
    expected.toSorted((a, b) => b.finishedAt - a.finishedAt || b.attempt - a.attempt),
  )
  t.strictSame(expected.map(({ attempt }) => attempt).sort(), [1, 1, 2])
  t.equal(sample.waiting, 2)
  t.equal(sample.waitingSince, (await parts.task(waits[0]!)).createdAt)
  t.ok(Math.abs(sample.takenAt - parts.clock.now()) < 5_000)
})

t.test('reads of a type that come together are one, and it is good for a second', async t => {
  const { url } = await testDatabase(t)
  const pool = new pg.Pool({ connectionString: url, max: 2 })
  const since = performance.now()
  let asked = 0
  pool.on('acquire', () => asked++)
  const reader = new TypeStatisticsReader(pool)
  await Promise.all(Array.from({ length: 50 }, () => reader.of('image.generate')))
  await reader.of('image.generate')
  t.equal(asked, 1)
  await Promise.all([reader.of('report'), reader.of('report')])
  t.equal(asked, 2, 'another type is read by itself')
  await until('it is read again', async () => {
    await reader.of('image.generate')
    return asked === 3
  })
  t.ok(performance.now() - since >= 1_000, 'not before it was a second old')
  await pool.end()
  t.equal(await reader.of('transcode'), null, 'where nothing can be read, nothing is known')
})
