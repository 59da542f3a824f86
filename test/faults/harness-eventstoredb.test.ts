/** The short fault run with the log on a server of its own, which is among the victims. */
import t from 'tap'
import { faultRun } from './harness/fault-run.ts'
import { kindsOf } from './harness/kinds.ts'

const SECONDS = 40
const LIMIT_MS = 420_000

const given = process.env.ROLLCALL_SEED
/** In this time its plan has every kind of fault, four of them on the links to the log server. */
const SEED = 7
const seed = given ? Number(given) : SEED

t.setTimeout(LIMIT_MS)
t.test(
  `faults: with the log in EventStoreDB ${SECONDS} s of them leave no task lost, doubled or stuck (seed ${seed})`,
  { timeout: LIMIT_MS },
  async t => {
    const report = await faultRun(seed, SECONDS, { on: 'eventstoredb', log: line => t.comment(line) })
    t.comment(report)
    t.strictSame(report.found, [], `what was found; data and logs: ${report.folder}`)
    t.equal(report.verdict, 'ok')
    t.ok(report.tasks > 400, 'there was a load')
    t.ok(report.leasesLost > 0, 'the faults did strike')
    if (seed === SEED)
      t.strictSame(
        Object.keys(report.faults).sort(),
        Object.keys(kindsOf('eventstoredb', 'none')).sort(),
        'every kind of them',
      )
  },
)
