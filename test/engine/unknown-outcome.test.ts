import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { type Append, type EventLog, LogUnavailableError } from '../../src/eventlog/event-log.ts'
import { openEventStoreDBEventLog } from '../../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../../src/eventlog/eventstoredb/settings.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { note, start, succeed } from '../domain/specification.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import { testDatabase } from '../support/postgres.ts'
import {
  ask,
  history,
  mustBe,
  said,
  startEngine,
  submitting,
  typesOf,
  wrapLog,
} from '../support/service-parts.ts'

type When = 'before' | 'after'

/** A log whose next appends are answered with an error, before or after they were stored. */
function losing(log: EventLog) {
  const faults: When[] = []
  const seen: string[][] = []
  const lossy = wrapLog(log, {
    appendMany: async (appends: readonly Append[]) => {
      seen.push(appends.flatMap(({ events }) => events.map(({ id }) => id)))
      const when = faults.shift()
      if (when === 'before') throw new LogUnavailableError('nothing was stored')
      const results = await log.appendMany(appends)
      if (when === 'after') throw new LogUnavailableError('it was stored, and the answer is lost')
      return results
    },
  })
  return { lossy, faults, seen }
}

async function rules(t: Test, log: EventLog): Promise<void> {
  for (const faults of [['before'], ['after'], ['before', 'after'], ['after', 'before']] as When[][])
    await t.test(`the answer is lost, ${faults.join(' then ')} storing`, async t => {
      const { lossy, faults: next, seen } = losing(log)
      const engine = await startEngine(lossy)
      const taskId = randomUUID()
      next.push(...faults)
      seen.length = 0
      const { event } = mustBe('accepted', await engine.execute(ask(taskId, submitting())))
      t.strictSame(await history(log, taskId), [event], 'one event, the one answered')
      t.equal(seen.length, faults.length + 1)
      t.equal(new Set(seen.flat()).size, 1, 'each time the same bytes')
      next.push(...faults)
      mustBe('accepted', await engine.execute(ask(taskId, start())))
      mustBe('accepted', await engine.execute(ask(taskId, succeed())))
      t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    })

  await t.test('nothing was stored and another engine was first: it is decided again', async t => {
    const taskId = randomUUID()
    const other = await startEngine(log)
    mustBe('accepted', await other.execute(ask(taskId, submitting())))
    mustBe('accepted', await other.execute(ask(taskId, start())))
    const lose: true[] = []
    const engine = await startEngine(
      wrapLog(log, {
        appendMany: async appends => {
          // The lost append is overtaken once.
          if (lose.splice(0).length === 0) return log.appendMany(appends)
          mustBe('accepted', await other.execute(ask(taskId, note())))
          throw new LogUnavailableError('nothing was stored')
        },
      }),
    )
    lose.push(true)
    mustBe('accepted', await engine.execute(ask(taskId, succeed())))
    t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskNoted', 'TaskSucceeded'])
  })

  await t.test('it was stored and another engine went on from there: it is accepted', async t => {
    const taskId = randomUUID()
    const other = await startEngine(log)
    mustBe('accepted', await other.execute(ask(taskId, submitting())))
    const lose: true[] = []
    const engine = await startEngine(
      wrapLog(log, {
        appendMany: async appends => {
          const results = await log.appendMany(appends)
          if (lose.splice(0).length === 0) return results
          mustBe('accepted', await other.execute(ask(taskId, succeed())))
          throw new LogUnavailableError('it was stored, and the answer is lost')
        },
      }),
    )
    lose.push(true)
    const { event } = mustBe('accepted', await engine.execute(ask(taskId, start())))
    t.equal(event.revision, 1)
    t.match(await engine.read(taskId), { kind: 'task', task: { status: 'SUCCESS', revision: 2 } })
    t.equal(said(await engine.execute(ask(taskId, note()))), 'accepted')
  })

  await t.test('the outcome stays unknown to the deadline: asked again, the stream decides', async t => {
    for (const when of ['before', 'after'] as const) {
      const { lossy, faults } = losing(log)
      const engine = await startEngine(lossy, { appendDeadlineMs: 20 })
      const taskId = randomUUID()
      mustBe('accepted', await engine.execute(ask(taskId, submitting())))
      faults.push(when)
      const asked = ask(taskId, start())
      t.match(await engine.execute(asked), { kind: 'refused', code: 'log_unavailable', task: null }, when)
      const again = await engine.execute(asked)
      t.equal(said(again), when === 'before' ? 'accepted' : 'repeated')
      t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted'])
    }
  })

  await t.test('after an unknown outcome the cache is dropped, so that the stream is read', async t => {
    const { lossy, faults } = losing(log)
    const engine = await startEngine(lossy, { appendDeadlineMs: 1 })
    const taskId = randomUUID()
    mustBe('accepted', await engine.execute(ask(taskId, submitting())))
    faults.push('after')
    t.equal(said(await engine.execute(ask(taskId, start()))), 'log_unavailable')
    const { task } = mustBe('accepted', await engine.execute(ask(taskId, succeed())))
    t.equal(task.revision, 2, 'it was not stopped by a fold without the START')
  })
}

t.test('S14 on the log in memory', async t => rules(t, createMemoryEventLog()))

t.test('S14 on the log in Postgres', async t => {
  const { url } = await testDatabase(t)
  const log = await openPostgresEventLog({ connectionString: url })
  t.teardown(() => log.close())
  await rules(t, log)
})

t.test('S14 on the log in EventStoreDB', async t => {
  const double = await startEventStoreDBDouble(t)
  const log = openEventStoreDBEventLog({
    settings: eventStoreDBSettings(double.address),
    appendTimeoutMs: 500,
  })
  t.teardown(() => log.close())
  await rules(t, log)

  const losses: Record<string, () => void> = {
    'and nothing comes any more': () => double.loseAcks(1),
    'and the server says that it took too long': () => double.failAppends('timeout', { store: true }),
    'and the connection with it': () => {
      double.answerLate(400)
      setTimeout(() => {
        double.cut()
        double.answerLate(0)
      }, 100)
    },
  }
  for (const [how, lose] of Object.entries(losses))
    await t.test(`the server stores and its answer is lost, ${how}`, async t => {
      const engine = await startEngine(log)
      const taskId = randomUUID()
      for (const command of [submitting(), start(), succeed()]) {
        lose()
        mustBe('accepted', await engine.execute(ask(taskId, command)))
      }
      t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    })
})

t.test('a log that cannot be read answers log_unavailable, to reads as an error', async t => {
  const log = createMemoryEventLog()
  const engine = await startEngine(log)
  const taskId = randomUUID()
  await log.close()
  t.match(await engine.execute(ask(taskId, start())), { kind: 'refused', code: 'log_unavailable' })
  await t.rejects(engine.read(taskId), { code: 'log_unavailable' })
  await t.rejects(engine.readMany([taskId]), { code: 'log_unavailable' })
})
