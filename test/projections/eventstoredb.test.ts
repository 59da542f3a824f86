/** The projector on the log in EventStoreDB: whatever the server and others on it do, the rows are the fold. */
import * as eventstoredb from '@eventstore/db-client'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { streamOf } from '../../src/eventlog/codec.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { openEventStoreDBEventLog } from '../../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../../src/eventlog/eventstoredb/settings.ts'
import type { Finding } from '../../src/projections/findings.ts'
import { readLag } from '../../src/projections/lag.ts'
import { refold } from '../../src/projections/projection.ts'
import { walkOn } from '../../src/projections/verify.ts'
import { note, start, succeed } from '../domain/specification.ts'
import { differences } from '../support/compare.ts'
import { type EventStoreDBDouble, startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import { testDatabase } from '../support/postgres.ts'
import {
  ask,
  ManualClock,
  mustBe,
  openParts,
  type Parts,
  type PartsOptions,
  recordingLogger,
  startParts,
  submitTasks,
  until,
  wrapLog,
} from '../support/service-parts.ts'
import { doubling } from './doubling.ts'
import { live, lives } from './histories.ts'

/** The options of parts whose log is on this double. */
const on = (double: EventStoreDBDouble, options: PartsOptions = {}): PartsOptions => ({
  openLog: () =>
    openEventStoreDBEventLog({
      settings: eventStoreDBSettings(double.address),
      appendTimeoutMs: 10_000,
      silenceMs: 300,
    }),
  ...options,
})

/** What a whole walk of `rollcall verify` finds, and in how many steps it went over the log. */
async function verified({ pool, log }: Parts) {
  const all = { rows: 0, events: 0, steps: 0, findings: [] as Finding[] }
  for (let place: string | null = null; ; ) {
    const step = await walkOn({ pool, log }, place, { rows: 100, events: 2_000 })
    all.rows += step.rows
    all.events += step.events
    if (step.events > 0) all.steps++
    all.findings.push(...step.findings)
    place = step.next
    if (place === null) return all
  }
}

async function work({ engine }: Parts, ids: readonly string[]): Promise<void> {
  for (const command of [start(), succeed()])
    for (const answer of await engine.executeMany(ids.map(id => ask(id, command)))) mustBe('accepted', answer)
}

/** Events of another hand, by the client that others use. */
async function writtenByOthers(
  double: EventStoreDBDouble,
  stream: string,
  events: eventstoredb.EventData[] = [eventstoredb.jsonEvent({ type: 'TaskSubmitted', data: { a: 1 } })],
): Promise<void> {
  const client = eventstoredb.EventStoreDBClient.connectionString(double.address)
  await client.appendToStream(stream, events)
  await client.dispose()
}

const noDifferences = async (t: Test, parts: Parts): Promise<void> => {
  t.strictSame(await differences(parts.pool, parts.log), [], 'the rows are the fold')
  t.strictSame((await verified(parts)).findings, [], 'and so says verify')
}

t.test(
  'every event twice, of whatever happened, over subscriptions that end: the rows are the fold',
  async t => {
    const double = await startEventStoreDBDouble(t)
    const clock = new ManualClock()
    const parts = await startParts(t, on(double, { clock, log: doubling }))
    const plain = await openParts(t, parts.url, on(double))
    parts.projector.start()
    let rounds = 0
    for (const those of fc.sample(lives, { numRuns: 6, seed: 4 }))
      await live(parts.engine, clock, those, async () => {
        if (rounds++ % 4 === 0) double.endSubscriptions(rounds % 8 === 0 ? 'end' : 'unavailable')
      })
    await parts.projected()
    await noDifferences(t, plain)
    t.ok(rounds > 20, `${rounds} rounds`)
  },
)

t.test('tasks are folded again in place, and all of them from nothing', async t => {
  const parts = await startParts(t, on(await startEventStoreDBDouble(t)))
  const ids = await submitTasks(parts.engine, 50)
  await work(parts, ids.slice(10))
  parts.projector.start()
  await parts.projected()
  await parts.rows(
    `UPDATE rollcall.tasks SET status = 'FAILED', revision = 0 WHERE task_id = ANY ($1::uuid[])`,
    [ids.slice(0, 30)],
  )
  await parts.rows('DELETE FROM rollcall.deadlines')
  t.not((await verified(parts)).findings.length, 0)
  t.strictSame(await refold(parts.pool, asked => parts.engine.readMany(asked), ids), [])
  await noDifferences(t, parts)

  await parts.projector.stop()
  await parts.rows('TRUNCATE rollcall.tasks, rollcall.deadlines, rollcall.ready, rollcall.projectors')
  t.match(await readLag(parts.pool, parts.log), { events: 1 + 50 + 2 * 40, caughtUp: false })
  parts.projector.start()
  await parts.projected()
  await noDifferences(t, parts)
})

t.test('when one projector stops another takes over, from where it stood', async t => {
  const double = await startEventStoreDBDouble(t)
  const parts = await startParts(t, on(double))
  const other = await openParts(t, parts.url, on(double))
  parts.projector.start()
  await until('one projects', () => parts.projector.mode === 'projecting')
  other.projector.start()
  for (const [active, idle] of [
    [parts, other],
    [other, parts],
  ] as const) {
    await work(active, await submitTasks(parts.engine, 30))
    await active.projected()
    t.strictSame([active.projector.mode, idle.projector.mode], ['projecting', 'standing_by'])
    // What comes while nobody projects is there when the other does.
    const stopped = active.projector.stop()
    await submitTasks(parts.engine, 30)
    await stopped
    await until('the other projects', () => idle.projector.mode === 'projecting')
    await idle.projected()
    active.projector.start()
  }
  await noDifferences(t, parts)
})

/** Delivers 50 events at a time. */
const inSteps = (log: EventLog): EventLog =>
  wrapLog(log, {
    follow: (from, onBatch, signal) =>
      log.follow(
        from,
        async batch => {
          if (batch.length === 0) await onBatch(batch)
          for (let at = 0; at < batch.length; at += 50) await onBatch(batch.slice(at, at + 50))
        },
        signal,
      ),
  })

t.test('the server restarts in the middle of a backlog of 5,000 events: nothing is missing', async t => {
  const double = await startEventStoreDBDouble(t)
  const { url } = await testDatabase(t)
  const parts = await openParts(t, url, on(double))
  const ids = await submitTasks(parts.engine, 1_250)
  for (const command of [start(), note(), succeed()])
    await parts.engine.executeMany(ids.map(id => ask(id, command)))
  // Without the folds that the engine has, and in small steps.
  const other = await openParts(t, url, on(double, { log: inSteps }))
  const projected = async () => {
    const [row] = await parts.rows<{ n: number }>(
      'SELECT coalesce(sum(revision + 1), 0)::int AS n FROM rollcall.tasks',
    )
    return row!.n
  }
  let within = 0
  other.projector.start()
  for (const [at, pauseMs] of [
    [800, 0],
    [2_000, 200],
    [3_500, 700],
  ] as const) {
    await until('it has moved on', async () => (await projected()) > at)
    if ((await projected()) < 5_000) within++
    await double.restart(pauseMs)
  }
  t.ok(within > 0, `${within} restarts before the end`)
  await until('all are there', async () => (await projected()) === 5_000)
  await other.projected()
  t.strictSame(await readLag(parts.pool, parts.log), { events: 0, seconds: 0, caughtUp: true })
  const { steps, ...walked } = await verified(parts)
  t.strictSame(walked, { rows: 1_250, events: 5_001, findings: [] })
  t.ok(steps <= 3, `${steps} steps over the log, however small its batches are`)
})

t.test('the lag counts what waits, and nothing that others keep on the server', async t => {
  const double = await startEventStoreDBDouble(t)
  const parts = await startParts(t, on(double))
  parts.projector.start()
  await submitTasks(parts.engine, 3)
  await parts.projected()
  t.strictSame(await readLag(parts.pool, parts.log), { events: 0, seconds: 0, caughtUp: true })
  await parts.projector.stop()
  for (const stream of ['orders', 'rollcall2.task-1', 'rollcall']) await writtenByOthers(double, stream)
  t.strictSame(await readLag(parts.pool, parts.log), { events: 0, seconds: 0, caughtUp: true })
  await submitTasks(parts.engine, 7)
  await writtenByOthers(double, 'orders')
  const lag = await readLag(parts.pool, parts.log)
  t.match(lag, { events: 7, caughtUp: false })
  t.ok(lag.seconds < 30, `${lag.seconds} s`)
  parts.projector.start()
  await parts.projected()
  t.match(await verified(parts), { rows: 10, findings: [] })
})

t.test('what another hand writes among our streams stops nobody', async t => {
  const double = await startEventStoreDBDouble(t)
  const { logger, lines } = recordingLogger()
  const parts = await startParts(t, on(double, { logger }))
  const [sound, spoilt] = (await submitTasks(parts.engine, 2)) as [string, string]
  const { jsonEvent, binaryEvent } = eventstoredb
  for (const name of ['task-not-a-uuid', 'task-', `task-${spoilt}x`, 'task-it\u0000', 'lifecycle-x', ''])
    await writtenByOthers(double, `rollcall.${name}`, [
      jsonEvent({ type: 'TaskSubmitted', data: { a: 1 } }),
      binaryEvent({ type: 'TaskSubmitted', data: Buffer.from([0, 255, 123]) }),
    ])
  // As another process has it: without folds in its cache.
  const other = await openParts(t, parts.url, on(double, { logger }))
  await writtenByOthers(double, `rollcall.${streamOf(spoilt)}`)
  other.projector.start()
  mustBe('accepted', await parts.engine.execute(ask(sound, note())))
  await other.projected()
  // The other one may have had a row before its spoilt event came.
  t.match(await parts.rows('SELECT revision FROM rollcall.tasks WHERE task_id = $1', [sound]), [
    { revision: 1 },
  ])
  t.match(await parts.rows('SELECT task_id, reason FROM rollcall.set_aside'), [
    { task_id: spoilt, reason: /cannot be read/ },
  ])
  t.equal(lines.filter(({ msg }) => /no task/.test(msg)).length, 1, 'that a stream is no task is said once')
  t.strictSame(await differences(other.pool, other.log), [])
  await verified(other)
  await work(other, [sound])
  await other.projected()
  t.match(await other.task(sound), { status: 'SUCCESS' })
})

t.test('a server that came back with an older copy of the log halts the projector', async t => {
  const double = await startEventStoreDBDouble(t)
  const parts = await startParts(t, on(double))
  parts.projector.start()
  await submitTasks(parts.engine, 3)
  await parts.projected()
  const position = double.store.lastPosition
  await submitTasks(parts.engine, 3)
  await parts.projected()
  double.goBackTo(position)
  await until('it halts', () => parts.projector.mode === 'halted')
  t.match(parts.projector.haltedBecause, /went backwards/)
  t.match(await readLag(parts.pool, parts.log), { events: null, caughtUp: false })
  t.equal((await parts.rows('SELECT * FROM rollcall.tasks')).length, 6, 'its rows stand')
})
