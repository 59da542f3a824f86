/** The short form of the nightly crash runs (test/long). */
import t from 'tap'
import { crashRun } from '../long/crash-runs.ts'

const RUNS = ['postgres', 'eventstoredb'] as const
const LIMIT_MS = 240_000

t.setTimeout(RUNS.length * LIMIT_MS)
for (const on of RUNS) {
  const seed = Math.floor(Math.random() * 2 ** 31)
  t.test(
    `after SIGKILL of the service and of a worker every accepted task has one outcome, the log in ${on} (seed ${seed})`,
    {
      timeout: LIMIT_MS,
    },
    async t => {
      const report = await crashRun(seed, { on, log: line => t.comment(line) })
      t.comment(report)
      t.pass('every accepted task is final, with one outcome; rows are the fold, chains are whole')
    },
  )
}
