/** Nightly: `npm run test:long`. ROLLCALL_SEED repeats the rounds of one seed. */
import t from 'tap'
import { race } from '../faults/races/run.ts'

const ROUNDS = 20_000
const LIMIT_MS = 1_800_000

const given = process.env.ROLLCALL_SEED
const seed = given ? Number(given) : Math.floor(Math.random() * 1_000_000)

t.setTimeout(LIMIT_MS)
t.test(
  `${ROUNDS} rounds of five commands released by one barrier from 3 processes (seed ${seed})`,
  { timeout: LIMIT_MS },
  async t => {
    const { found, ...figures } = await race(t, { seed, rounds: ROUNDS })
    t.comment(figures)
    t.strictSame(found, [])
    for (const [trigger, times] of Object.entries(figures.won))
      t.ok(times > 0, `${trigger} won ${times} times`)
  },
)
