/** Nightly: 100,000 tasks fall due in the same second; and the plans of finding due work among 1,000,000 open tasks. */
import t from 'tap'
import { comparePlans } from '../workers/look-plans.ts'
import { dueAtOnce } from './due-drill.ts'

const TASKS = 100_000
const WITHIN_MS = 90_000
const SLOWER_AT_MOST = 5
const LIMIT_MS = 20 * 60_000

t.test(
  '100,000 tasks due in the same second time out while submits go on',
  { timeout: LIMIT_MS },
  async t => {
    const drilled = await dueAtOnce({
      tasks: TASKS,
      leadMs: 150_000,
      quietMs: 30_000,
      patienceMs: 2 * WITHIN_MS,
    })
    const { quiet, busy, lastMs, firstMs } = drilled
    t.strictSame(drilled.outcomes, [{ status: 'FAILED', timer: 'timeout_queue', n: TASKS }])
    t.equal(drilled.notOnce, 0, 'each has one outcome')
    t.ok(firstMs >= 0, `the first ended ${firstMs} ms after it fell due`)
    t.ok(lastMs <= WITHIN_MS, `the last ended ${lastMs} ms after it fell due`)
    const ratio = busy.p99 / quiet.p99
    t.ok(ratio < SLOWER_AT_MOST, `submits took ${ratio.toFixed(1)} times as long at their p99`)
    const inWords = ({ count, p50, p99, most }: typeof quiet) =>
      `${count} submits p50 ${p50.toFixed(1)} ms, p99 ${p99.toFixed(1)} ms, most ${most.toFixed(1)} ms`
    t.comment(`quiet: ${inWords(quiet)}; busy: ${inWords(busy)}`)
    t.comment(
      `at most ${drilled.mostInASecond} ended in a second; ` +
        `${((drilled.busyCpuSeconds * 1_000_000) / TASKS).toFixed(0)} us of CPU for each, submits included`,
    )
  },
)

t.test('among 1,000,000 open tasks the plans are the reviewed ones', { timeout: LIMIT_MS }, async t => {
  await t.test('of one type', t => comparePlans(t, 1_000_000, 1))
  await t.test('of 1,000 types', t => comparePlans(t, 1_000_000, 1_000))
})
