/** Several processes ask different things of one task at the same moment: one outcome, and every answer is the truth. */
import t from 'tap'
import { race } from './races/run.ts'

const ROUNDS = 1_000
const BROKEN_ROUNDS = 60

const given = process.env.ROLLCALL_SEED
const seed = given ? Number(given) : Math.floor(Math.random() * 1_000_000)

t.test(
  `1,000 rounds of cancel, START, SUCCEED, FAIL and TIMEOUT released by one barrier from 3 processes: one outcome each, the answers agree with it (seed ${seed})`,
  { timeout: 180_000 },
  async t => {
    const began = performance.now()
    const { found, won, outcomes, answers, conflicts, spreadMs } = await race(t, { seed, rounds: ROUNDS })
    t.comment(
      `${ROUNDS} rounds in ${((performance.now() - began) / 1_000).toFixed(1)} s; released within` +
        ` ${spreadMs.median} ms (median), ${spreadMs.p99} ms (p99); ${conflicts} appends came second`,
    )
    t.comment(`won: ${JSON.stringify(won)}`)
    t.comment(`outcomes: ${JSON.stringify(outcomes)}`)
    t.comment(`answers: ${JSON.stringify(answers)}`)
    t.strictSame(found, [])
    t.equal(
      Object.values(outcomes).reduce((sum, count) => sum + count, 0),
      ROUNDS,
      'every round has its outcome',
    )
    // Where one of them never wins, or nobody ever comes second, the barrier is no race.
    for (const [trigger, times] of Object.entries(won)) t.ok(times > 0, `${trigger} won ${times} times`)
    t.ok(conflicts > ROUNDS / 10, 'processes did meet at the log')
    t.ok(answers.repeated ?? 0, 'a command that was sent twice was recognised')
  },
)

t.test('a process that appends without expecting a revision is found out', async t => {
  const { found } = await race(t, { seed, rounds: BROKEN_ROUNDS, fault: 'no expectation' })
  t.match(found.join('\n'), /the run has [2-9] outcomes/)
  t.match(found.join('\n'), /the chain has a gap/)
  t.match(found.join('\n'), /follows in \w+, where/)
})

t.test('a process that answers yes where it came second is found out', async t => {
  const { found } = await race(t, { seed, rounds: BROKEN_ROUNDS, fault: 'conflict is success' })
  t.match(found.join('\n'), /was accepted 1 times and stored 0/)
})
