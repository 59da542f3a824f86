/**
 * Whether estimates come true: queues in virtual time, their tasks told what the service would tell them. Over many tasks
 * the p50 holds for about half and the p90 for about nine tenths, however many workers there are and however long they
 * take.
 */
import t, { type Test } from 'tap'
import { held, type Load, logNormal, simulateQueue, type Told } from './queue-simulation.ts'

const SEEDS = [1, 2, 3]
const MEDIAN_MS = 10_000
const STEADY = logNormal(MEDIAN_MS, 0.5)

function all(load: Omit<Load, 'seed'>): { waiting: Told[]; running: Told[] } {
  const runs = SEEDS.map(seed => simulateQueue({ ...load, seed }))
  return {
    waiting: runs.flatMap(run => run.waiting),
    running: runs.flatMap(run => run.running),
  }
}

function holds(t: Test, told: readonly Told[], what: string, p50 = [0.4, 0.6], p90 = [0.85, 0.95]): void {
  const shares = held(told)
  const said = `${what}: of ${shares.count} the p50 held for ${percent(shares.p50)}, the p90 for ${percent(shares.p90)}`
  t.comment(said)
  t.ok(shares.count > 1_000, `${what}: enough were told`)
  t.ok(shares.p50 >= p50[0]! && shares.p50 <= p50[1]!, said)
  t.ok(shares.p90 >= p90[0]! && shares.p90 <= p90[1]!, said)
}

const percent = (share: number): string => `${(100 * share).toFixed(1)} %`

for (const workers of [1, 4, 16])
  t.test(
    `a steady queue of ${workers} workers on log-normal work: from the 20th place on it holds`,
    async t => {
      const { waiting, running } = all({ workers, tasks: 2_000, queued: 60, duration: STEADY })
      holds(
        t,
        waiting.filter(({ rank }) => rank >= 20),
        'waiting',
      )
      holds(t, running, 'running')
    },
  )

t.test('short queues, where an attempt of its own counts most', async t => {
  holds(t, all({ workers: 4, tasks: 2_000, queued: 4, duration: STEADY }).waiting, 'waiting')
})

t.test('work of two kinds, a second or a minute', async t => {
  const duration = (random: () => number) => (random() < 0.5 ? 1_000 : 60_000)
  holds(t, all({ workers: 4, tasks: 2_000, queued: 60, duration }).waiting, 'waiting')
})

t.test('one attempt in five fails, and the task goes back behind the others', async t => {
  const { waiting } = all({ workers: 4, tasks: 2_000, queued: 60, duration: STEADY, failing: 0.2 })
  holds(t, waiting, 'waiting', [0.4, 0.6], [0.8, 0.95])
})
