/** Nightly: `npm run test:long`. ROLLCALL_SEED repeats the plan of one seed. */
import t from 'tap'
import { faultRun } from '../faults/harness/fault-run.ts'

const RUNS = 3
const SECONDS = 600
const LIMIT_MS = 1_200_000

const given = process.env.ROLLCALL_SEED
const seeds = given
  ? [Number(given)]
  : Array.from({ length: RUNS }, () => Math.floor(Math.random() * 1_000_000))

t.setTimeout(seeds.length * LIMIT_MS)
for (const seed of seeds)
  t.test(
    `faults: kills, stops, cuts and restarts for ${SECONDS / 60} minutes (seed ${seed})`,
    { timeout: LIMIT_MS },
    async t => {
      const report = await faultRun(seed, SECONDS)
      t.comment(report)
      t.strictSame(report.found, [], `what was found; data and logs: ${report.folder}`)
      t.equal(report.verdict, 'ok')
    },
  )
