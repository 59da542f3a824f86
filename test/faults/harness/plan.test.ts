/** The plan of a fault run: the same seed gives the same one, and it holds what it should. */
import t from 'tap'
import { AT_ONCE_MAX, countKinds, kindsOf, LOGS, makePlan, PROGRAMS } from './plan.ts'

const SEEDS = Array.from({ length: 200 }, (_, seed) => seed * 7_919)

t.test('the same seed gives the same plan, another seed another one', async t => {
  t.strictSame(makePlan(42, 60), makePlan(42, 60))
  t.strictNotSame(makePlan(42, 60).faults, makePlan(43, 60).faults)
  t.strictNotSame(makePlan(42, 60).submits[0], makePlan(43, 60).submits[0])
})

t.test('within a minute every kind of fault strikes, and every program is submitted', async t => {
  for (const seed of SEEDS) {
    const { faults, submits } = makePlan(seed, 60)
    t.strictSame(
      Object.keys(countKinds(faults)).sort(),
      Object.keys(kindsOf('postgres')).sort(),
      `seed ${seed}: kinds`,
    )
    // A log server of its own has kinds of its own: it takes longer until every one had its turn.
    const elsewhere = Object.keys(countKinds(makePlan(seed, 100, 'eventstoredb').faults)).sort()
    t.strictSame(
      elsewhere,
      Object.keys(kindsOf('eventstoredb')).sort(),
      `seed ${seed}: kinds with a log server`,
    )
    const programs = new Set(submits.flatMap(({ tasks }) => tasks.map(({ payload }) => payload.program)))
    t.equal(programs.size, Object.keys(PROGRAMS).length, `seed ${seed}: programs`)
  }
})

t.test('faults keep to their bounds, and strike two targets at most at a time', async t => {
  const within = (value: number, [from, to]: readonly [number, number]): boolean =>
    from <= value && value <= to
  for (const [seed, log] of SEEDS.flatMap(seed => LOGS.map(log => [seed, log] as const))) {
    const { faults } = makePlan(seed, 90, log)
    const wrong = faults.filter(({ kind, target, atMs, forMs, amount }) => {
      const bounds = kindsOf(log)[kind]!
      const others = faults.filter(other => other.atMs <= atMs && atMs <= other.atMs + other.forMs)
      return !(
        bounds.targets.includes(target) &&
        within(forMs, bounds.forMs) &&
        within(amount, bounds.amount ?? [0, 0]) &&
        atMs + forMs <= 90_000 &&
        others.length <= AT_ONCE_MAX &&
        others.filter(other => other.target === target).length === 1
      )
    })
    t.strictSame(wrong, [], `seed ${seed}, log in ${log}`)
  }
})

t.test('keys and command ids are given once, and tasks that are to succeed have attempts enough', async t => {
  const tasks = makePlan(7, 120).submits.flatMap(submit => submit.tasks)
  t.ok(tasks.length > 1_000, `${tasks.length} tasks`)
  t.equal(new Set(tasks.map(({ key }) => key)).size, tasks.length)
  const commands = tasks.flatMap(({ acts }) => acts.map(({ commandId }) => commandId))
  t.equal(new Set(commands).size, commands.length)
  for (const { payload, retry } of tasks)
    if (PROGRAMS[payload.program].ends.join() === 'SUCCESS') t.ok(retry.maxAttempts >= 50, payload.program)
})

t.test('a run that is too short for faults is refused', async t => {
  t.throws(() => makePlan(1, 5), { message: 'a fault run takes 10 seconds at least, not 5' })
})
