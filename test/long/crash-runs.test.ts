/** Nightly: `npm run test:long`. ROLLCALL_SEED runs one seed again. */
import t from 'tap'
import { crashRun } from './crash-runs.ts'

const RUNS = 20
const LIMIT_MS = 300_000

const given = process.env.ROLLCALL_SEED
const seeds = given
  ? [Number(given)]
  : Array.from({ length: RUNS }, () => Math.floor(Math.random() * 2 ** 31))

t.setTimeout(seeds.length * LIMIT_MS)
for (const seed of seeds)
  t.test(`every accepted task has one outcome (seed ${seed})`, { timeout: LIMIT_MS }, async t => {
    t.comment(await crashRun(seed))
    t.pass()
  })
