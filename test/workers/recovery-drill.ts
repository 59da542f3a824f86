/**
 * S68: the timers were down for an hour, everything that runs is overdue, and the workers report late. Measures
 * what submits take meanwhile.
 */
import type { Test } from 'tap'
import { auditLog } from '../../src/engine/audit.ts'
import { FIRES_PER_LOOK } from '../../src/workers/timers.ts'
import { start, succeed } from '../domain/specification.ts'
import { ask, mustBe, openParts, said, startParts, submitTasks, until } from '../support/service-parts.ts'

const MINUTE_MS = 60_000
const CHUNK = 1_000
const INTERVAL_MS = 200

interface Drill {
  overdue: number
  /** How many of them report a success after the timers came back. */
  late: number
  /** The grace; all late reports are sent within it. */
  graceMs: number
}

const chunksOf = (ids: readonly string[], size: number): string[][] =>
  Array.from({ length: Math.ceil(ids.length / size) }, (_, at) => ids.slice(at * size, (at + 1) * size))

const percentile = (times: readonly number[], part: number): number =>
  [...times].sort((one, other) => one - other)[Math.floor(times.length * part)] ?? Number.NaN

export async function recover(t: Test, { overdue, late, graceMs }: Drill): Promise<void> {
  const parts = await startParts(t)
  const { engine } = parts
  parts.projector.start()
  const timeouts = {
    queueMs: 60 * MINUTE_MS,
    executionMs: 1,
    leaseMs: 60 * MINUTE_MS,
    totalMs: 600 * MINUTE_MS,
  }
  const ids: string[] = []
  for (let at = 0; at < overdue; at += CHUNK) {
    const some = await submitTasks(engine, Math.min(CHUNK, overdue - at), () => ({
      timeouts,
      retry: { maxAttempts: 1, initialDelayMs: 0, factor: 1, maxDelayMs: 0, jitter: 0 },
    }))
    for (const answer of await engine.executeMany(some.map(id => ask(id, start()))))
      mustBe('accepted', answer)
    ids.push(...some)
  }
  await parts.projected()
  await parts.rows(`UPDATE rollcall.timer_ticks SET ticked_at = clock_timestamp() - interval '1 hour'`)

  const submitOne = async (times: number[]): Promise<void> => {
    const since = performance.now()
    await submitTasks(engine, 1)
    times.push(performance.now() - since)
    await new Promise(resolve => setTimeout(resolve, 10))
  }
  const quiet: number[] = []
  while (quiet.length < 200) await submitOne(quiet)

  // Another process, as the timers usually are.
  const other = await openParts(t, parts.url, { timers: { graceMs, intervalMs: INTERVAL_MS } })
  const since = performance.now()
  other.timers.start()
  // The last ones due report first: without a grace the timers would be long past the others.
  const reporters = ids
    .filter((_, index) => index % Math.floor(overdue / late) === 0)
    .slice(0, late)
    .reverse()
  const answers: string[] = []
  const reporting = (async () => {
    const chunks = chunksOf(reporters, Math.ceil(late / 10))
    for (const [index, some] of chunks.entries()) {
      await until(
        'it is their turn',
        () => performance.now() - since > (graceMs * 0.7 * index) / chunks.length,
      )
      answers.push(...(await engine.executeMany(some.map(id => ask(id, succeed())))).map(said))
    }
  })()
  const busy: number[] = []
  let left = overdue
  const counting = (async () => {
    while (left > 0) {
      const [row] = await parts.rows<{ n: number }>(
        `SELECT count(*)::int AS n FROM rollcall.deadlines WHERE timer = 'execution'`,
      )
      left = row!.n
      await new Promise(resolve => setTimeout(resolve, 250))
    }
  })()
  const giveUpAt = performance.now() + graceMs + 30_000 + overdue * 4
  while (left > 0 && performance.now() < giveUpAt) await submitOne(busy)
  const tookMs = performance.now() - since
  await reporting
  t.equal(left, 0, 'nothing is overdue any more')
  left = 0
  await counting
  await parts.projected()

  t.strictSame(
    answers.filter(answer => answer !== 'accepted'),
    [],
    'workers that reported in the grace have won',
  )
  t.equal(answers.length, late)
  const outcomes = await parts.rows<{ status: string; n: number }>(
    `SELECT status, count(*)::int AS n FROM rollcall.tasks WHERE started_at IS NOT NULL GROUP BY status ORDER BY status`,
  )
  t.strictSame(outcomes, [
    { status: 'FAILED', n: overdue - late },
    { status: 'SUCCESS', n: late },
  ])
  const audit = await auditLog(parts.log, ids)
  t.strictSame([audit.missing, audit.doubled, audit.broken], [[], [], []], 'each has one outcome')
  const rates = await parts.rows<{ n: number }>(
    `SELECT count(*)::int AS n FROM rollcall.tasks WHERE status = 'FAILED' GROUP BY date_trunc('second', finished_at)`,
  )
  const most = Math.max(...rates.map(({ n }) => n))
  // A look that was planned for one second may have been late and stand in the next one.
  const bound = FIRES_PER_LOOK * Math.ceil(1_000 / (INTERVAL_MS * 0.8) + 1)
  t.ok(most <= bound, `at most ${most} timed out in a second, ${bound} may`)
  t.comment(
    `${overdue} overdue done in ${(tookMs / 1_000).toFixed(1)} s; submits p50 ${percentile(busy, 0.5).toFixed(1)} ms,` +
      ` p99 ${percentile(busy, 0.99).toFixed(1)} ms; quiet p50 ${percentile(quiet, 0.5).toFixed(1)} ms,` +
      ` p99 ${percentile(quiet, 0.99).toFixed(1)} ms: ` +
      `${(percentile(busy, 0.5) / percentile(quiet, 0.5)).toFixed(1)} and ` +
      `${(percentile(busy, 0.99) / percentile(quiet, 0.99)).toFixed(1)} times`,
  )
}
