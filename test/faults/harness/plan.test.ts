/** The plan of a fault run: the same seed gives the same one, and it holds what it should. */
import { hash } from 'node:crypto'
import t from 'tap'
import { BROKERS, kindsOf, LOGS } from './kinds.ts'
import { AT_ONCE_MAX, countKinds, type Fault, makePlan, PROGRAMS } from './plan.ts'

const SEEDS = Array.from({ length: 200 }, (_, seed) => seed * 7_919)
/** Of plan.json. Seeds stand in the documentation and in tests: what they mean is not to change by an addition. */
const KNOWN = [
  ['postgres', 1, 60, 'c435ec2e83a2d5222ff21fda92c1fc824178fc5774aefd4782bcddf18510251a'],
  ['postgres', 7, 40, '7cb25ce635a427a56d56b9e2207f8e775437c1dec5920d012fb64daa4e00ee61'],
  ['postgres', 864_146, 600, '529d91a0c7e459491e5f698e2d7bcac576825340ca4df21416a52d508fb29851'],
  ['eventstoredb', 1, 60, '5c01e27553b0d50b8c0ce69836edeebe334c398ff011485dfa9db4b69f335be9'],
  ['eventstoredb', 7, 40, 'c9c5e925df65991c66364f0ef64dac9fc6ac9d55809135f80db3cd99b374aff1'],
  ['eventstoredb', 864_146, 600, 'dc0316441d69d125eb4c45a23a7185618def19037788bcd9196b3c5eb4e75aa6'],
] as const
const OTHER_SEEDS = SEEDS.slice(0, 40)
const RUNS = LOGS.flatMap(log => BROKERS.map(broker => ({ log, broker })))

const kindsIn = (faults: readonly Fault[]): string[] => Object.keys(countKinds(faults)).sort()

t.test('the same seed gives the same plan, another seed another one', async t => {
  t.strictSame(makePlan(42, 60), makePlan(42, 60))
  t.strictNotSame(makePlan(42, 60).faults, makePlan(43, 60).faults)
  t.strictNotSame(makePlan(42, 60).submits[0], makePlan(43, 60).submits[0])
})

t.test('the plans without a broker are what they were before there was one, byte for byte', async t => {
  for (const [log, seed, seconds, known] of KNOWN)
    t.equal(
      hash('sha256', JSON.stringify(makePlan(seed, seconds, log), null, 1)),
      known,
      `${log}, seed ${seed}`,
    )
})

t.test('a broker changes the faults and nothing of the load', async t => {
  const [without, at] = [makePlan(3, 60), makePlan(3, 60, 'postgres', 'kafka')]
  t.strictSame(at.submits, without.submits)
  t.equal(at.broker, 'kafka')
  t.ok(at.faults.some(({ target }) => target === 'kafka'))
  t.notOk(without.faults.some(({ target }) => target.startsWith('kafka')))
})

t.test('within a minute every kind of fault strikes, and every program is submitted', async t => {
  for (const seed of SEEDS) {
    const { faults, submits } = makePlan(seed, 60)
    t.strictSame(kindsIn(faults), Object.keys(kindsOf('postgres', 'none')).sort(), `seed ${seed}: kinds`)
    const programs = new Set(submits.flatMap(({ tasks }) => tasks.map(({ payload }) => payload.program)))
    t.equal(programs.size, Object.keys(PROGRAMS).length, `seed ${seed}: programs`)
  }
})

t.test('with a log server and a broker, which have kinds of their own, it takes two minutes', async t => {
  for (const seed of OTHER_SEEDS)
    for (const { log, broker } of RUNS)
      t.strictSame(
        kindsIn(makePlan(seed, 120, log, broker).faults),
        Object.keys(kindsOf(log, broker)).sort(),
        `seed ${seed}, log in ${log}, broker ${broker}`,
      )
})

t.test('faults keep to their bounds, and strike two targets at most at a time', async t => {
  const within = (value: number, [from, to]: readonly [number, number]): boolean =>
    from <= value && value <= to
  for (const { seed, log, broker } of OTHER_SEEDS.flatMap(seed => RUNS.map(run => ({ seed, ...run })))) {
    const { faults } = makePlan(seed, 90, log, broker)
    const wrong = faults.filter(({ kind, target, atMs, forMs, amount }) => {
      const bounds = kindsOf(log, broker)[kind]!
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
    t.strictSame(wrong, [], `seed ${seed}, log in ${log}, broker ${broker}`)
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
