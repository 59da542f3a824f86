/** A waiting task's place in the queue of its type, in Postgres. */
import t from 'tap'
import { AHEAD_MAX } from '../../src/domain/signals.ts'
import { why } from '../../src/domain/why.ts'
import { aClaim, NEVER, type Parts, startParts, submitTasks } from '../support/service-parts.ts'

const positionOf = async (parts: Parts, taskId: string) =>
  (await parts.workState.signals(await parts.task(taskId))).position

t.test('the rank follows priority, then age, within the type, as claims do', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  const ids: string[] = []
  for (const priority of [0, 5, -3, 5, 0])
    ids.push(...(await submitTasks(parts.engine, 1, () => ({ priority }))))
  const [other] = await submitTasks(parts.engine, 1, () => ({ type: 'report', priority: 9 }))
  const [delayed] = await submitTasks(parts.engine, 1, () => ({ delayMs: 60_000 }))
  await parts.projected()
  const ranks = await Promise.all(ids.map(id => positionOf(parts, id)))
  t.strictSame(
    ranks,
    [3, 1, 5, 2, 4].map(rank => ({ rank, exact: true })),
  )
  t.strictSame(await positionOf(parts, other!), { rank: 1, exact: true }, 'another type is another queue')
  t.equal(await positionOf(parts, delayed!), null, 'it is not its turn before its date')

  const [taken] = await parts.workState.take({
    claimId: 'c',
    types: ['image.generate'],
    tenant: null,
    max: 1,
  })
  t.equal(taken?.taskId, ids[1])
  t.equal(await positionOf(parts, ids[1]!), null, 'handed out, not started: it is in no queue')
  t.strictSame(await positionOf(parts, ids[3]!), { rank: 1, exact: true })
  const [started] = await parts.claims.claim(aClaim({ max: 1 }), NEVER)
  t.equal(started?.taskId, ids[3])
  await parts.projected()
  t.equal(await positionOf(parts, ids[3]!), null, 'it runs')
  t.strictSame(await positionOf(parts, ids[0]!), { rank: 1, exact: true })
})

t.test('beyond a thousand tasks ahead nothing is counted', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  // One transaction gives many the same time, and the id decides.
  await submitTasks(parts.engine, AHEAD_MAX + 3)
  await parts.projected()
  const ids = (
    await parts.rows<{ task_id: string }>(
      'SELECT task_id FROM rollcall.ready ORDER BY priority DESC, pending_since, task_id',
    )
  ).map(row => row.task_id)
  const said = async (index: number) => {
    const task = await parts.task(ids[index]!)
    const signals = await parts.workState.signals(task)
    return [signals.position, why(task, signals, parts.clock.now()).split('; ')[1]]
  }
  t.strictSame(await said(0), [{ rank: 1, exact: true }, 'it is next'])
  t.strictSame(await said(12), [{ rank: 13, exact: true }, '12 tasks are ahead'])
  t.strictSame(await said(AHEAD_MAX), [{ rank: 1_001, exact: true }, '1,000 tasks are ahead'])
  const beyond = [{ rank: 1_001, exact: false }, 'more than 1,000 tasks are ahead']
  t.strictSame(await said(AHEAD_MAX + 1), beyond)
  t.strictSame(await said(AHEAD_MAX + 2), beyond)
})
