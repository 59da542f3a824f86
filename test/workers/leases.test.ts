import { randomUUID } from 'node:crypto'
import t from 'tap'
import { NO_SIGNALS } from '../../src/domain/signals.ts'
import type { Heartbeat } from '../../src/workers/work-state.ts'
import {
  cancel,
  fail,
  note,
  release,
  retry,
  start,
  succeed,
  TOKEN_A,
  TOKEN_B,
} from '../domain/specification.ts'
import {
  ask,
  mustBe,
  openParts,
  type Parts,
  startParts,
  submitTasks,
  typesOf,
} from '../support/service-parts.ts'

const beat = (taskId: string, over: Partial<Heartbeat> = {}): Heartbeat => ({
  taskId,
  attempt: 1,
  leaseTokenHash: TOKEN_A,
  progress: null,
  ...over,
})

/**
 * Started tasks, and the read model that knows it. Their first lease is over by then, so that the log has nothing
 * against the end of a later one; the rows hold them for a minute.
 */
async function running(t: Parameters<typeof startParts>[0], count: number) {
  const parts = await startParts(t)
  const ids = await submitTasks(parts.engine, count, () => ({
    timeouts: { queueMs: 60_000, executionMs: 600_000, leaseMs: 1, totalMs: 600_000 },
  }))
  for (const answer of await parts.engine.executeMany(ids.map(id => ask(id, start()))))
    mustBe('accepted', answer)
  parts.projector.start()
  await parts.projected()
  await parts.rows(
    `UPDATE rollcall.leases SET lease_ms = 60000, held_until = clock_timestamp() + interval '1 minute'`,
  )
  return { ...parts, ids }
}

const statesOf = (results: readonly { state: string }[]): string[] => results.map(({ state }) => state)

/** The timers have looked just now, however busy the machine is: no gap gives the leases anew. */
const endLeases = async ({ rows, workState }: Parts) => {
  await rows(`UPDATE rollcall.leases SET held_until = clock_timestamp() - interval '1 millisecond'`)
  await workState.beginLook(3_600_000)
}

t.test('a heartbeat holds the lease for its full length from now and keeps the progress', async t => {
  const { leases, ids, rows, engine, workState } = await running(t, 2)
  await rows(`UPDATE rollcall.leases SET held_until = clock_timestamp() + interval '1 second'`)
  const [first] = await leases.heartbeat([beat(ids[0]!, { progress: 0.25 })])
  t.equal(first!.state, 'held')
  const left = await rows<{ task_id: string; full: boolean }>(
    `SELECT task_id, held_until > clock_timestamp() + interval '50 seconds' AS full FROM rollcall.leases`,
  )
  t.strictSame(
    left.filter(({ full }) => full).map(row => row.task_id),
    [ids[0]],
    'and nobody else is held',
  )
  await leases.heartbeat([beat(ids[0]!)])
  const loaded = await engine.read(ids[0]!)
  if (loaded.kind !== 'task' || loaded.task.status !== 'PROCESSING') throw new Error('it runs')
  const { lease } = await workState.signals(loaded.task)
  t.match(lease, { lost: false, progress: 0.25, heldUntil: Number, lastHeartbeatAt: Number })
  t.strictSame(
    await workState.signals({ ...loaded.task, attempt: 2 }),
    NO_SIGNALS,
    'another attempt has none',
  )
})

t.test('a beat that holds nothing is told why', async t => {
  const { leases, ids, engine, projected } = await running(t, 6)
  const [cancelled, done, retried, released, failed, held] = ids as [
    string,
    string,
    string,
    string,
    string,
    string,
  ]
  await engine.executeMany([
    ask(cancelled, cancel('not wanted any more')),
    ask(done, succeed()),
    ask(retried, fail({ retryAfterMs: 0 })),
    ask(released, release()),
    ask(failed, fail({ retryable: false })),
  ])
  await engine.execute(ask(retried, retry()))
  mustBe('accepted', await engine.execute(ask(retried, start({ attempt: 2, leaseTokenHash: TOKEN_B }))))
  await projected()
  const absent = randomUUID()
  const results = await leases.heartbeat([
    ...[cancelled, done, retried, released, failed, absent].map(id => beat(id)),
    beat(held, { leaseTokenHash: TOKEN_B }),
    beat(held, { attempt: 2 }),
    beat(held),
  ])
  t.strictSame(statesOf(results), ['cancelled', ...Array(7).fill('lost'), 'held'])
  t.strictSame(results[0], { state: 'cancelled', reason: 'not wanted any more' })
  t.match(results[5], { reason: /No task/ })
})

t.test('beats of two attempts of one task in one call are two matters', async t => {
  const { leases, ids, engine, projected } = await running(t, 1)
  const taskId = ids[0]!
  await engine.executeMany([fail({ retryAfterMs: 0 }), retry()].map(command => ask(taskId, command)))
  mustBe('accepted', await engine.execute(ask(taskId, start({ attempt: 2, leaseTokenHash: TOKEN_B }))))
  await projected()
  const old = beat(taskId)
  const current = beat(taskId, { attempt: 2, leaseTokenHash: TOKEN_B })
  t.strictSame(statesOf(await leases.heartbeat([old, current, old, current])), [
    'lost',
    'held',
    'lost',
    'held',
  ])
  t.strictSame(statesOf(await leases.heartbeat([current, old])), ['held', 'lost'])
})

t.test('a lease that the timers took is lost, whatever the worker says', async t => {
  const { leases, ids, rows } = await running(t, 1)
  // Taken, and the timers have not got to the log yet.
  await rows('UPDATE rollcall.leases SET lost = true')
  t.match(await leases.heartbeat([beat(ids[0]!)]), [{ state: 'lost', reason: /lease ended/ }])
})

t.test('a missing row is granted anew to whom the log says holds the lease, and to nobody else', async t => {
  const { leases, ids, rows } = await running(t, 3)
  await rows('TRUNCATE rollcall.leases')
  const results = await leases.heartbeat([
    beat(ids[0]!, { progress: 0.5 }),
    beat(ids[1]!, { leaseTokenHash: TOKEN_B }),
    beat(ids[2]!, { attempt: 2 }),
    // Asked twice in one call.
    beat(ids[0]!),
  ])
  t.strictSame(statesOf(results), ['held', 'lost', 'lost', 'held'])
  t.match(await rows('SELECT task_id, lost, progress FROM rollcall.leases'), [
    { task_id: ids[0], lost: false },
  ])
})

t.test(
  'a row of an earlier attempt gives way to the one that runs, though the projector is behind',
  async t => {
    const { leases, ids, engine, projector, rows } = await running(t, 1)
    const taskId = ids[0]!
    await projector.stop()
    await engine.executeMany([fail({ retryAfterMs: 0 }), retry()].map(command => ask(taskId, command)))
    mustBe('accepted', await engine.execute(ask(taskId, start({ attempt: 2, leaseTokenHash: TOKEN_B }))))
    const current = beat(taskId, { attempt: 2, leaseTokenHash: TOKEN_B, progress: 1 })
    t.strictSame(
      statesOf(await leases.heartbeat([beat(taskId), current])),
      ['lost', 'held'],
      'this process knows that the other is over',
    )
    t.strictSame(statesOf(await leases.heartbeat([current])), ['held'])
    t.strictSame(statesOf(await leases.heartbeat([beat(taskId)])), ['lost'])
    t.match(await rows('SELECT attempt, progress FROM rollcall.leases'), [{ attempt: 2, progress: 1 }])
  },
)

t.test('what happens to a task beside its attempt leaves the lease alone', async t => {
  const { leases, ids, engine, projected, rows } = await running(t, 1)
  await leases.heartbeat([beat(ids[0]!, { progress: 0.75 })])
  await engine.execute(ask(ids[0]!, note()))
  await projected()
  t.match(await rows('SELECT progress FROM rollcall.leases'), [{ progress: 0.75 }])
})

t.test(
  'an ended lease is taken once, and the attempt times out with the last heartbeat in its history',
  async t => {
    const parts = await running(t, 1)
    const { leases, ids, timers, engine, log } = parts
    await timers.tick()
    await leases.heartbeat([beat(ids[0]!)])
    await endLeases(parts)
    await timers.tick()
    await timers.tick()
    t.strictSame(await typesOf(log, ids[0]!), ['TaskSubmitted', 'TaskStarted', 'TaskAttemptTimedOut'])
    t.match(await leases.heartbeat([beat(ids[0]!)]), [{ state: 'lost', reason: /RETRYING/ }])
    t.strictSame(await parts.rows('SELECT * FROM rollcall.leases'), [])
    t.match(await engine.read(ids[0]!), { task: { lastError: { code: 'timeout_lease' } } })
  },
)

t.test('a heartbeat that races the timers: one of them wins, and the log agrees (200 races)', async t => {
  const parts = await running(t, 200)
  const { leases, ids, engine } = parts
  // Connections of their own, or they would queue behind the heartbeats.
  const { timers } = await openParts(t, parts.url)
  await timers.tick()
  const held: string[] = []
  const lost: string[] = []
  for (let from = 0; from < ids.length; from += 50) {
    const some = ids.slice(from, from + 50)
    await parts.rows(
      `UPDATE rollcall.leases SET held_until = clock_timestamp() - interval '1 millisecond' WHERE task_id = ANY ($1)`,
      [some],
    )
    const send = async (taskId: string) => {
      const [result] = await leases.heartbeat([beat(taskId)])
      ;(result!.state === 'held' ? held : lost).push(taskId)
    }
    await Promise.all([timers.tick(), ...some.map(send)])
  }
  t.comment(`${held.length} held, ${lost.length} lost`)
  t.equal(held.length + lost.length, 200)
  const loaded = await engine.readMany(ids)
  const runs = ids.filter(id => {
    const one = loaded.get(id)
    return one?.kind === 'task' && one.task.status === 'PROCESSING'
  })
  t.strictSame(runs.sort(), held.sort(), 'held is what runs, lost is what timed out')
  // On a slow machine the backoff of the first ones is over by now.
  for (const taskId of lost)
    t.strictSame((await typesOf(parts.log, taskId)).slice(0, 3), [
      'TaskSubmitted',
      'TaskStarted',
      'TaskAttemptTimedOut',
    ])
})

t.test('a lease that was taken before its process died is taken to the log by another', async t => {
  const parts = await running(t, 1)
  const { ids, timers, log } = parts
  await timers.tick()
  await endLeases(parts)
  await parts.rows('UPDATE rollcall.leases SET lost = true')
  const other = await openParts(t, parts.url)
  await other.timers.tick()
  t.strictSame(await typesOf(log, ids[0]!), ['TaskSubmitted', 'TaskStarted', 'TaskAttemptTimedOut'])
})

t.test('a lease whose end cannot be decided for the moment stays lost and is asked again', async t => {
  const parts = await running(t, 1)
  await parts.timers.tick()
  await endLeases(parts)
  const away = await openParts(t, parts.url)
  await away.engine.stop()
  await away.timers.tick()
  t.match(await parts.rows('SELECT lost FROM rollcall.leases'), [{ lost: true }])
  t.match(
    await parts.leases.heartbeat([beat(parts.ids[0]!)]),
    [{ state: 'lost' }],
    'the worker lost it all the same',
  )
  await parts.timers.tick()
  t.equal((await typesOf(parts.log, parts.ids[0]!)).at(-1), 'TaskAttemptTimedOut')
})
