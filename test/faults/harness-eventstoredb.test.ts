/** The short fault run with the log on a server of its own, which is among the victims. */
import t from 'tap'
import { faultRun } from './harness/fault-run.ts'

const SECONDS = 60
const LIMIT_MS = 420_000

const given = process.env.ROLLCALL_SEED
const seed = given ? Number(given) : 1

t.setTimeout(LIMIT_MS)
t.test(
  `faults: with the log in EventStoreDB ${SECONDS} s of them leave no task lost, doubled or stuck (seed ${seed})`,
  { timeout: LIMIT_MS },
  async t => {
    const report = await faultRun(seed, SECONDS, { on: 'eventstoredb', log: line => t.comment(line) })
    t.comment(report)
    t.strictSame(report.found, [], `what was found; data and logs: ${report.folder}`)
    t.equal(report.verdict, 'ok')
    t.ok(report.tasks > 500, 'there was a load')
    t.ok(report.leasesLost > 0, 'the faults did strike')
  },
)
