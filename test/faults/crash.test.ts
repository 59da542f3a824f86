/** The short form of the nightly crash runs (test/long). */
import t from 'tap'
import { crashRun } from '../long/crash-runs.ts'

const RUNS = 2
const LIMIT_MS = 240_000

t.setTimeout(RUNS * LIMIT_MS)
for (let run = 0; run < RUNS; run++) {
  const seed = Math.floor(Math.random() * 2 ** 31)
  t.test(
    `after SIGKILL of the service and of a worker every accepted task has one outcome (seed ${seed})`,
    {
      timeout: LIMIT_MS,
    },
    async t => {
      const report = await crashRun(seed, { log: line => t.comment(line) })
      t.comment(report)
      t.pass('every accepted task is final, with one outcome; rows are the fold, chains are whole')
    },
  )
}
