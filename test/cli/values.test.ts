import t from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import { chainFault } from '../../src/cli/commands/history.ts'
import { ordinal, printable, relative, roughly, spell } from '../../src/cli/format.ts'
import { aheadLine } from '../../src/cli/task-text.ts'
import { collectLabels, parseDuration, parseTime, wholeNumber } from '../../src/cli/values.ts'

t.test('durations are a number and a unit', async t => {
  const good: [text: string, ms: number][] = [
    ['0ms', 0],
    ['500ms', 500],
    ['10s', 10_000],
    ['1.5s', 1_500],
    ['0.001s', 1],
    ['5m', 300_000],
    ['2h', 7_200_000],
    ['366d', 366 * 86_400_000],
  ]
  for (const [text, ms] of good) t.equal(parseDuration(text), ms, text)
  for (const text of ['', '10', '10 s', '-1s', '1e3s', '0x10s', '1s2', 's', '1.5ms', '367d', '１s', '1S'])
    t.throws(() => parseDuration(text), { code: 'commander.invalidArgument' }, JSON.stringify(text))
})

t.test('whole numbers, times and labels are strict too', async t => {
  const parse = wholeNumber(-5, 100)
  t.same([parse('-5'), parse('0'), parse('100')], [-5, 0, 100])
  for (const text of ['', '101', '-6', '1.0', '1e1', ' 1', '0x1'])
    t.throws(() => parse(text), { code: 'commander.invalidArgument' }, JSON.stringify(text))
  t.equal(parseTime('2030-01-31T09:00:00+02:00'), '2030-01-31T07:00:00.000Z')
  for (const text of ['2030-01-31', '2030-01-31T09:00:00', '2030-13-01T00:00:00Z', 'tomorrow'])
    t.throws(() => parseTime(text), { code: 'commander.invalidArgument' }, text)
  t.same(collectLabels('c=d=e', collectLabels('a=')), { a: '', c: 'd=e' })
  t.throws(() => collectLabels('=x'))
})

t.test('places and estimates are told roughly', async t => {
  t.same([0.2, 59.1, 89, 119, 300, 7_000, 100_000, 200_000].map(roughly), [
    ...['1 s', '60 s', '89 s', '2 min', '5 min', '2 h', '28 h', '2 d'],
  ])
  t.same([1, 2, 3, 4, 11, 12, 13, 21, 22, 111, 1_001].map(ordinal), [
    ...['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '22nd', '111th', '1,001st'],
  ])
  const task = { position: null, estimatedRemainingSeconds: null } as TaskView
  t.equal(aheadLine(task), null)
  const left = { p50: 118, p90: 300 }
  t.equal(
    aheadLine({ ...task, position: { rank: 12, exact: true }, estimatedRemainingSeconds: left }),
    '12th in the queue, about 2 min (up to 5 min)',
  )
  t.equal(aheadLine({ ...task, estimatedRemainingSeconds: { p50: 3, p90: 3 } }), 'about 3 s')
  t.equal(aheadLine({ ...task, position: { rank: 1_001, exact: false } }), 'more than 1,000 are ahead')
})

t.test('times are spelled for people', async t => {
  const cases: [ms: number, text: string][] = [
    [0, '0 ms'],
    [999, '999 ms'],
    [1_000, '1.0 s'],
    [59_600, '1 min'],
    [61_000, '1 min 1 s'],
    [7_500_000, '2 h 5 min'],
    [50 * 3_600_000, '2 d 2 h'],
  ]
  for (const [ms, text] of cases) t.equal(spell(ms), text)
  const now = Date.UTC(2030, 0, 1)
  t.equal(relative('2029-12-31T23:59:00Z', now), '1 min ago')
  t.equal(relative('2030-01-01T00:00:30Z', now), 'in 30 s')
  t.equal(relative('2030-01-01T00:00:00.500Z', now), 'now')
})

t.test('what others wrote cannot steer a terminal', async t => {
  t.equal(printable('a\u001b[2Jb\u009bc\u202ed\ne\tf'), 'a\\u001b[2Jb\\u009bc\\u202ed e f')
  t.equal(printable('ünï 👩‍👩‍👧 雪'), 'ünï 👩‍👩‍👧 雪')
})

t.test('a chain of hashes with a gap is found', async t => {
  const events = [
    { revision: 0, hash: 'a', prevHash: null },
    { revision: 1, hash: 'b', prevHash: 'a' },
    { revision: 2, hash: 'c', prevHash: 'b' },
  ]
  t.equal(chainFault(events), null)
  t.match(chainFault([events[0]!, events[2]!]), /event 1 is missing/)
  t.match(chainFault([events[0]!, { ...events[1]!, prevHash: 'x' }]), /event 1 does not name/)
})
