/** When a task will be final: over HTTP on a real service, and what is remembered of it. */
import t from 'tap'
import { Estimates } from '../../src/api/estimates.ts'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { NO_SIGNALS, positionBehind } from '../../src/domain/signals.ts'
import { SAMPLE_MIN, type TypeStatistics, typeStatistics } from '../../src/domain/type-statistics.ts'
import { cancelled, failed, given, started, submitted, succeeded, T0 } from '../domain/specification.ts'
import { execute } from '../support/postgres.ts'
import { aType, startApi, TOKEN, until } from './fixture.ts'

t.test(
  'a waiting task says its place and what is left; once it has ended it is counted whether that held',
  async t => {
    const { api, service, databaseUrl } = await startApi(t)
    const type = aType()
    const first = await Promise.all(Array.from({ length: SAMPLE_MIN }, () => api.submit({ type })))
    const finish = async (ids: readonly string[]) => {
      const reports = ids.map(taskId => ({ trigger: 'SUCCEED', taskId, attempt: 1, leaseToken: TOKEN }))
      await api.post('/v1/workers/report', { worker: 'worker-1', reports })
    }
    await until('all of them can be claimed', async () => {
      const rows = await execute(databaseUrl, 'SELECT FROM rollcall.ready')
      return rows.length === first.length
    })
    const { body } = await api.claim({ types: [type], max: SAMPLE_MIN })
    t.equal(body.tasks.length, SAMPLE_MIN)
    const [running] = body.tasks
    t.equal(
      (await api.task(running!.taskId)).estimatedRemainingSeconds,
      null,
      'nothing is known of the type yet',
    )
    await finish(body.tasks.map(({ taskId }) => taskId))
    await until('the read model has them', async () => {
      const rows = await execute(databaseUrl, `SELECT FROM rollcall.tasks WHERE status = 'SUCCESS'`)
      return rows.length === first.length
    })
    // As if each had taken a minute, one after the other.
    await execute(
      databaseUrl,
      `UPDATE rollcall.tasks t SET created_at = at - interval '1 hour', run_at = at - interval '1 hour',
            started_at = at - interval '1 minute', finished_at = at
       FROM (SELECT task_id, now() - row_number() OVER () * interval '1 minute' AS at FROM rollcall.tasks) n
      WHERE n.task_id = t.task_id`,
    )
    const ids: string[] = []
    for (let index = 0; index < 5; index++) ids.push((await api.submit({ type })).taskId)
    const last = await until<TaskView>(
      'it is in the queue, and what is known of the type was read again',
      async () => {
        const task = await api.task(ids.at(-1)!)
        return task.position !== null && task.estimatedRemainingSeconds !== null && task
      },
    )
    t.match(last, { position: { rank: 5, exact: true }, why: /; 4 tasks are ahead$/ })
    const { p50, p90 } = last.estimatedRemainingSeconds!
    t.ok(p50 > 200 && p50 < 400, `four and a half minutes of waiting and one of its own: ${p50} s`)
    t.ok(p90 > p50, `and at most ${p90} s`)

    await api.claim({ types: [type], max: 5 })
    const begun = await api.task(ids[4]!)
    t.match(begun, { status: 'PROCESSING', position: null })
    t.ok(Math.abs(begun.estimatedRemainingSeconds!.p50 - 60) < 5, 'a minute of its own')
    await finish(ids)
    t.match(await api.task(ids[4]!), { status: 'SUCCESS', estimatedRemainingSeconds: null })
    const { text } = await api.get('/metrics')
    for (const quantile of ['p50', 'p90'])
      t.match(text, `\nrollcall_estimates_total{quantile="${quantile}",held="true"} 1\n`)
    await service.stop()
  },
)

const LONG = { timeouts: { queueMs: 1e9, executionMs: 1e9, leaseMs: 1e9, totalMs: 1e9 } }
const running = given(submitted(0, LONG), started(0))

/** Attempts took 10 to 19 s. */
const STATISTICS = typeStatistics({
  takenAt: T0,
  succeeded: Array.from({ length: 10 }, (_, index) => ({
    readyAt: T0 - 100_000,
    startedAt: T0 - 50_000,
    finishedAt: T0 - 40_000 + index * 1_000,
    attempt: 1,
  })),
  waiting: 0,
  waitingSince: null,
})

function anEstimates(most = 2_000) {
  const settled: string[] = []
  const asked: string[] = []
  const estimates = new Estimates({
    statistics: async (type): Promise<TypeStatistics | null> => {
      asked.push(type)
      return STATISTICS
    },
    onSettled: (quantile, held) => settled.push(`${quantile} ${held}`),
    most,
  })
  return { estimates, settled, asked }
}

t.test('what was said first is held against the end, once', async t => {
  for (const [endsAt, held] of [
    [12_000, ['p50 true', 'p90 true']],
    [18_000, ['p50 false', 'p90 true']],
    [60_000, ['p50 false', 'p90 false']],
  ] as const) {
    const { estimates, settled } = anEstimates()
    await estimates.of(running.task!, NO_SIGNALS, T0)
    await estimates.of(running.task!, NO_SIGNALS, T0 + 11_000)
    const ended = running.and(succeeded(endsAt)).task!
    estimates.ended(ended)
    estimates.ended(ended)
    t.strictSame(settled, held, `ended after ${endsAt} ms`)
  }
})

t.test(
  'a task that failed counts, one that was cancelled does not; final ones are not asked for',
  async t => {
    const { estimates, settled, asked } = anEstimates()
    await estimates.of(running.task!, NO_SIGNALS, T0)
    t.equal(await estimates.of(running.and(cancelled(99_000)).task!, NO_SIGNALS, T0 + 99_000), null)
    t.strictSame(settled, [])
    await estimates.of(running.task!, NO_SIGNALS, T0)
    t.equal(await estimates.of(running.and(failed(99_000)).task!, NO_SIGNALS, T0 + 99_000), null)
    t.strictSame(settled, ['p50 false', 'p90 false'], 'the read of its end settles it')
    t.equal(asked.length, 2)
  },
)

t.test('no more than so many are remembered, until one of them ends or is long over', async t => {
  const { estimates, settled } = anEstimates(2)
  const named = (taskId: string) => ({ ...running.task!, taskId })
  const end = (taskId: string) => estimates.ended({ ...running.and(succeeded(1_000)).task!, taskId })
  for (const id of ['one', 'two', 'three']) await estimates.of(named(id), NO_SIGNALS, T0)
  end('three')
  t.strictSame(settled, [], 'there was no room for it')
  end('one')
  t.equal(settled.length, 2)
  await estimates.of(named('three'), NO_SIGNALS, T0)
  for (const id of ['four', 'five']) await estimates.of(named(id), NO_SIGNALS, T0 + 3_600_000)
  end('two')
  end('three')
  t.equal(settled.length, 2, 'they are forgotten')
  end('four')
  end('five')
  t.equal(settled.length, 6)
})

t.test('a waiting task with nothing known is not remembered', async t => {
  const { estimates, settled } = anEstimates()
  const waiting = given(submitted(0, LONG))
  t.equal(await estimates.of(waiting.task!, { ...NO_SIGNALS, position: positionBehind(5_000) }, T0), null)
  estimates.ended(waiting.and(started(1), succeeded(2)).task!)
  t.strictSame(settled, [])
})
