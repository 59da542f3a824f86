import t from 'tap'
import { LogUnavailableError } from '../../src/eventlog/event-log.ts'
import { start, TOKEN_A } from '../domain/specification.ts'
import {
  ask,
  mustBe,
  openParts,
  type Parts,
  type PartsOptions,
  startParts,
  submitTasks,
  until,
  wrapLog,
} from '../support/service-parts.ts'
import { recover } from './recovery-drill.ts'

const MINUTE_MS = 60_000

t.test('S68 the timers were down while 5,000 tasks became overdue: live workers report first', t =>
  recover(t, { overdue: 5_000, late: 500, graceMs: 3_000 }),
)

/** Running tasks whose execution limit has passed in a gap of an hour. */
async function overdue(t: Parameters<typeof startParts>[0], count: number, options: PartsOptions = {}) {
  const parts = await startParts(t, options)
  parts.projector.start()
  const ids = await submitTasks(parts.engine, count, () => ({
    timeouts: { queueMs: MINUTE_MS, executionMs: 1, leaseMs: MINUTE_MS, totalMs: 10 * MINUTE_MS },
    retry: { maxAttempts: 1, initialDelayMs: 0, factor: 1, maxDelayMs: 0, jitter: 0 },
  }))
  for (const answer of await parts.engine.executeMany(ids.map(id => ask(id, start()))))
    mustBe('accepted', answer)
  await parts.projected()
  await gap(parts, '1 hour')
  return { ...parts, ids }
}

const gap = ({ rows }: Parts, length: string) =>
  rows('UPDATE rollcall.timer_ticks SET ticked_at = clock_timestamp() - $1::interval', [length])

const statusesOf = async (parts: Parts, ids: readonly string[]) =>
  Promise.all(ids.map(async id => (await parts.task(id)).status))

t.test(
  'after a gap limits of running attempts wait for the grace; timers of other processes wait too',
  async t => {
    const parts = await overdue(t, 3, { timers: { graceMs: MINUTE_MS } })
    const other = await openParts(t, parts.url, { timers: { graceMs: MINUTE_MS } })
    await parts.timers.tick()
    await other.timers.tick()
    t.strictSame(await statusesOf(parts, parts.ids), ['PROCESSING', 'PROCESSING', 'PROCESSING'])

    await t.test('whose worker is lost has nobody to wait for', async t => {
      const [lost, ...held] = parts.ids as [string, string, string]
      await parts.rows('UPDATE rollcall.leases SET lost = true WHERE task_id = $1', [lost])
      await parts.timers.tick()
      t.strictSame(await statusesOf(parts, [lost, ...held]), ['FAILED', 'PROCESSING', 'PROCESSING'])
    })

    await t.test('when the grace is over they fire', async t => {
      const later = await openParts(t, parts.url, { timers: { graceMs: 0 } })
      await later.timers.tick()
      t.strictSame(await statusesOf(parts, parts.ids), ['FAILED', 'FAILED', 'FAILED'])
    })
  },
)

t.test('a gap that comes later is no reason to wait again', async t => {
  const graceMs = MINUTE_MS
  const parts = await overdue(t, 1, { timers: { graceMs } })
  await parts.rows(`UPDATE rollcall.deadlines SET due_at = clock_timestamp() - interval '10 minutes'`)
  await gap(parts, '5 minutes')
  await parts.timers.tick()
  t.strictSame(await statusesOf(parts, parts.ids), ['FAILED'])
})

t.test('what is no limit of a running attempt fires at once after a gap', async t => {
  const parts = await startParts(t, { timers: { graceMs: MINUTE_MS } })
  parts.projector.start()
  const [waits] = await submitTasks(parts.engine, 1, () => ({
    timeouts: { queueMs: 1, executionMs: MINUTE_MS, leaseMs: MINUTE_MS, totalMs: 10 * MINUTE_MS },
  }))
  await parts.projected()
  await gap(parts, '1 hour')
  await parts.timers.tick()
  t.strictSame(await statusesOf(parts, [waits!]), ['FAILED'])
})

t.test('a look that takes long is no gap: the time counts from its end', async t => {
  const parts = await overdue(t, 1, { timers: { graceMs: MINUTE_MS } })
  await parts.timers.tick()
  await parts.rows('UPDATE rollcall.leases SET lease_ms = 1')
  const { workState } = parts
  t.equal(await workState.beginLook(2_000), null)
  t.ok(await workState.keepLook(2_000))
  t.equal(await workState.beginLook(2_000), null)
  await gap(parts, '1 minute')
  t.notOk(await workState.keepLook(2_000), 'whoever stood still does not hide it')
  t.strictSame(await workState.takeLostLeases(10, 2_000), [], 'and takes nothing')
  t.match(await workState.beginLook(2_000), { gapMs: Number, leases: 0 }, 'without an end it is one')
  t.match(
    await parts.leases.heartbeat([
      { taskId: parts.ids[0]!, attempt: 1, leaseTokenHash: TOKEN_A, progress: null },
    ]),
    [{ state: 'held' }],
  )
})

t.test('a missing row of ticks is a gap of unknown length', async t => {
  const parts = await overdue(t, 1, { timers: { graceMs: MINUTE_MS } })
  await parts.rows('TRUNCATE rollcall.timer_ticks')
  await parts.rows(`UPDATE rollcall.leases SET held_until = clock_timestamp() - interval '1 second'`)
  await parts.timers.tick()
  t.strictSame(await statusesOf(parts, parts.ids), ['PROCESSING'])
  t.match(await parts.rows('SELECT held_until > clock_timestamp() AS held FROM rollcall.leases'), [
    { held: true },
  ])
})

/** The timers of one more process, started, and how often they have looked. */
async function counted(t: Parameters<typeof startParts>[0], url: string, options: PartsOptions = {}) {
  const parts = await openParts(t, url, { ...options, timers: { intervalMs: 100 } })
  const tick = parts.timers.tick.bind(parts.timers)
  const looks = { count: 0 }
  parts.timers.tick = () => {
    looks.count++
    return tick()
  }
  parts.timers.start()
  return { ...parts, looks }
}

t.test('of several processes one looks, and another takes over', async t => {
  const { url } = await startParts(t)
  const first = await counted(t, url)
  await until('the first looks', () => first.looks.count > 3)
  const second = await counted(t, url)
  const before = first.looks.count
  await until('the first goes on', () => first.looks.count > before + 20)
  // A busy machine may hold a look up for longer than the others wait.
  t.ok(second.looks.count < 10, `the second looked ${second.looks.count} times beside it`)
  await first.timers.stop()
  const left = second.looks.count
  await until('the second takes over', () => second.looks.count > left + 3)
})

t.test('timers whose log does not answer leave the look to others', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  let isAway = false
  const unlessAway = <T>(call: () => Promise<T>): Promise<T> =>
    isAway ? Promise.reject(new LogUnavailableError('a test')) : call()
  const cut = await counted(t, parts.url, {
    log: log =>
      wrapLog(log, {
        appendMany: appends => unlessAway(() => log.appendMany(appends)),
        readStreams: streams => unlessAway(() => log.readStreams(streams)),
      }),
    engine: { appendDeadlineMs: 10 },
  })
  isAway = true
  const [task] = await submitTasks(parts.engine, 1, () => ({
    timeouts: { queueMs: 1, executionMs: MINUTE_MS, leaseMs: MINUTE_MS, totalMs: 10 * MINUTE_MS },
  }))
  await parts.projected()
  await until('it looks in vain', () => cut.looks.count > 3)
  t.strictSame(await statusesOf(parts, [task!]), ['PENDING'])
  await counted(t, parts.url)
  await until('another fires', async () => (await statusesOf(parts, [task!]))[0] === 'FAILED')
})
