/** Nightly: `npm run test:long`. ROLLCALL_SEED repeats the plan of one seed. */
import t from 'tap'
import { faultRun } from '../faults/harness/fault-run.ts'
import { canStartKafka } from '../support/kafka.ts'

const RUNS = 3
const RUNS_ELSEWHERE = 1
const SECONDS = 600
const LIMIT_MS = 1_200_000

const given = process.env.ROLLCALL_SEED
const seedsOf = (runs: number): number[] =>
  given ? [Number(given)] : Array.from({ length: runs }, () => Math.floor(Math.random() * 1_000_000))
const runs = [
  ...seedsOf(RUNS).map(seed => ({ seed, on: 'postgres', broker: 'none' }) as const),
  ...seedsOf(RUNS_ELSEWHERE).map(seed => ({ seed, on: 'eventstoredb', broker: 'none' }) as const),
  ...seedsOf(RUNS_ELSEWHERE).map(seed => ({ seed, on: 'postgres', broker: 'kafka' }) as const),
]

t.setTimeout(runs.length * LIMIT_MS)
for (const { seed, on, broker } of runs)
  t.test(
    `faults: kills, stops, cuts and restarts for ${SECONDS / 60} minutes, the log in ${on}, broker ${broker} (seed ${seed})`,
    { timeout: LIMIT_MS },
    async t => {
      if (broker === 'kafka' && !(await canStartKafka(t))) return
      const report = await faultRun(seed, SECONDS, { on, broker })
      t.comment(report)
      t.strictSame(report.found, [], `what was found; data and logs: ${report.folder}`)
      t.equal(report.verdict, 'ok')
    },
  )
