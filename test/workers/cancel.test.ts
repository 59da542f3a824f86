/** Cancel is cooperative: API, projector and the worker's heartbeats may each be in another process. */
import t, { type Test } from 'tap'
import { aType, startApi, TOKEN } from '../api/fixture.ts'
import { cancel, fail, note, start, succeed, TOKEN_A, TOKEN_B } from '../domain/specification.ts'
import {
  ask,
  mustBe,
  openParts,
  type Parts,
  said,
  startParts,
  submitTasks,
  until,
} from '../support/service-parts.ts'

const beat = (taskId: string, leaseTokenHash = TOKEN_A) => ({
  taskId,
  attempt: 1,
  leaseTokenHash,
  progress: null,
})

const noticeOf = async (parts: Parts, taskId: string) =>
  (await parts.workState.signals(await parts.task(taskId))).cancelNotice

/** Two processes on one database, and running tasks that both of them know; nobody projects yet. */
async function twoProcesses(t: Test, count = 1) {
  const a = await startParts(t)
  const b = await openParts(t, a.url)
  const ids = await submitTasks(a.engine, count)
  for (const answer of await b.engine.executeMany(ids.map(id => ask(id, start())))) mustBe('accepted', answer)
  return { a, b, ids, taskId: ids[0]! }
}

const cancelAt = async ({ engine }: Parts, taskId: string) =>
  mustBe('accepted', await engine.execute(ask(taskId, cancel('not wanted any more'))))

for (const projecting of ['a', 'b'] as const)
  t.test(
    `cancelled in process a, heartbeats in b, projector in ${projecting}: the worker is told`,
    async t => {
      const { a, b, taskId } = await twoProcesses(t)
      const { projector } = { a, b }[projecting]
      projector.start()
      await a.projected()
      t.match(await b.leases.heartbeat([beat(taskId)]), [{ state: 'held' }])
      await cancelAt(a, taskId)
      await a.projected()
      t.match(await noticeOf(a, taskId), { attempt: 1, worker: 'worker-1', toldAt: null }, 'not yet')
      t.strictSame(await b.leases.heartbeat([beat(taskId)]), [
        { state: 'cancelled', reason: 'not wanted any more' },
      ])
      const told = await noticeOf(a, taskId)
      t.match(told, { attempt: 1, worker: 'worker-1', toldAt: Number })
      await b.leases.heartbeat([beat(taskId)])
      t.strictSame(await noticeOf(b, taskId), told, 'the first time counts')
    },
  )

t.test('who beats where the task was cancelled is told at once, before anything is projected', async t => {
  const { a, b, taskId } = await twoProcesses(t)
  a.projector.start()
  await a.projected()
  await a.projector.stop()
  await cancelAt(b, taskId)
  t.match(await a.rows('SELECT lost FROM rollcall.leases'), [{ lost: false }], 'its row still stands')
  t.match(await b.leases.heartbeat([beat(taskId)]), [{ state: 'cancelled' }])
  const told = await noticeOf(b, taskId)
  t.match(told, { attempt: 1, worker: 'worker-1', toldAt: Number })
  a.projector.start()
  await a.projected()
  t.strictSame(await noticeOf(a, taskId), told, 'the projector keeps what is known')
})

t.test('a report of a cancelled attempt tells its worker, and nobody else’s', async t => {
  const { a, b, ids } = await twoProcesses(t, 2)
  a.projector.start()
  const [taskId, other] = ids as [string, string]
  for (const id of ids) await cancelAt(a, id)
  await a.projected()
  const report = async (id: string, leaseTokenHash: string) => {
    const answer = await b.engine.execute(ask(id, succeed({ leaseTokenHash })))
    await b.leases.markTold([{ task: answer.task, attempt: 1, leaseTokenHash }])
    return said(answer)
  }
  t.equal(await report(taskId, TOKEN_A), 'superseded')
  t.match(await noticeOf(a, taskId), { toldAt: Number })
  t.equal(await report(other, TOKEN_B), 'not_lease_holder')
  await b.leases.heartbeat([beat(other, TOKEN_B)])
  t.match(await noticeOf(a, other), { toldAt: null })
})

t.test('there is nobody to tell of what did not run', async t => {
  const a = await startParts(t)
  a.projector.start()
  const [waiting, retrying] = (await submitTasks(a.engine, 2)) as [string, string]
  for (const command of [start(), fail()]) mustBe('accepted', await a.engine.execute(ask(retrying, command)))
  for (const id of [waiting, retrying]) await cancelAt(a, id)
  await a.projected()
  t.strictSame(await a.rows('SELECT * FROM rollcall.cancel_notices'), [])
  t.strictSame([await noticeOf(a, waiting), await noticeOf(a, retrying)], [null, null])
})

t.test(
  'notices are forgotten after seven days, some at a time, and a late note brings none back',
  async t => {
    const { a, ids } = await twoProcesses(t, 5)
    a.projector.start()
    for (const id of ids) await cancelAt(a, id)
    await a.projected()
    const left = async () => (await a.rows('SELECT * FROM rollcall.cancel_notices')).length
    await a.workState.pruneCancelNotices(10)
    t.equal(await left(), 5, 'none of today')
    await a.rows(
      `UPDATE rollcall.cancel_notices SET cancelled_at = cancelled_at - interval '7 days' WHERE task_id <> $1`,
      [ids[0]],
    )
    await a.workState.pruneCancelNotices(3)
    t.equal(await left(), 2)
    await until('the sweeps forget the rest', async () => {
      await a.timers.tick()
      return (await left()) === 1
    })
    mustBe('accepted', await a.engine.execute(ask(ids[0]!, note())))
    await a.projected()
    t.equal(await left(), 1)
  },
)

t.test('a report that comes by HTTP after the cancel tells its worker, alone or among others', async t => {
  const { api, service } = await startApi(t)
  const type = aType()
  const reports = [
    (taskId: string, report: object) =>
      api.post('/v1/workers/report', {
        worker: 'worker-1',
        reports: [{ taskId, trigger: 'SUCCEED', ...report }],
      }),
    (taskId: string, report: object) => api.post(`/v1/tasks/${taskId}/succeed`, report),
  ]
  for (const report of reports) {
    const { taskId } = await api.submit({ type })
    await api.claim({ types: [type], waitMs: 20_000 })
    await api.post(`/v1/tasks/${taskId}/cancel`, { reason: 'not wanted any more' })
    await report(taskId, { attempt: 1, leaseToken: TOKEN, result: null, resultUrl: null })
    const { rows } = await service.pool.query(
      'SELECT told_at FROM rollcall.cancel_notices WHERE task_id = $1',
      [taskId],
    )
    t.match(rows, [{ told_at: Date }])
  }
})
