/** The short form of the nightly fault runs (test/long). ROLLCALL_SEED repeats the plan of one that failed. */
import t from 'tap'
import { faultRun } from './harness/fault-run.ts'

const SECONDS = 60
const LIMIT_MS = 420_000

const given = process.env.ROLLCALL_SEED
/** The plan is the same each time; the machine sees to it that no two runs are. */
const seed = given ? Number(given) : 1

t.setTimeout(LIMIT_MS)
t.test(
  `faults: kills, stops, cuts and restarts for ${SECONDS} s leave no task lost, doubled or stuck (seed ${seed})`,
  { timeout: LIMIT_MS },
  async t => {
    const report = await faultRun(seed, SECONDS, { log: line => t.comment(line) })
    t.comment(report)
    t.strictSame(report.found, [], `what was found; data and logs: ${report.folder}`)
    t.equal(report.verdict, 'ok')
    t.ok(report.tasks > 500, 'there was a load')
    t.ok(report.leasesLost > 0, 'the faults did strike')
  },
)
