/** docs/lifecycle.md says what the code does: its table, diagram, example, numbers and codes. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { GUARDS, lifecycleSchema, STANDARD_LIFECYCLE } from '../../src/domain/lifecycle.ts'
import { DEFAULT_TIMEOUTS, LIMITS } from '../../src/domain/limits.ts'
import { REFUSALS } from '../../src/domain/refusals.ts'
import { DEFAULT_RETRY_POLICY } from '../../src/domain/retry-policy.ts'
import { given, STEPPED_LIFECYCLE, start, step, submitted, TIMEOUTS, timeout } from './specification.ts'

const doc = readFileSync(new URL('../../docs/lifecycle.md', import.meta.url), 'utf8')

/** Rows of the table whose first headings are these. */
function tableUnder(...headings: string[]): string[][] {
  const cellsOf = (line: string) =>
    line
      .split('|')
      .slice(1, -1)
      .map(cell => cell.trim().replaceAll('`', ''))
  const lines = doc.split('\n').map(line => (line.startsWith('|') ? cellsOf(line) : null))
  const head = lines.findIndex(cells => cells && headings.every((heading, index) => cells[index] === heading))
  const end = lines.findIndex((cells, index) => index > head && cells === null)
  return lines.slice(head + 2, end).flatMap(cells => (cells ? [cells] : []))
}
const block = (language: string): string =>
  doc.match(new RegExp(`\`\`\`${language}\n([\\s\\S]*?)\`\`\``))?.[1] ?? ''

const transitions = Object.entries(STANDARD_LIFECYCLE.states).flatMap(([status, state]) =>
  Object.entries(state?.on ?? {}).flatMap(([trigger, targets]) =>
    (targets ?? []).map(({ to, event, guard }) => ({ status, trigger, guard: guard ?? '', event, to })),
  ),
)

t.test('the table is the standard lifecycle', async t => {
  t.strictSame(
    tableUnder('status', 'trigger', 'guard'),
    transitions.map(({ status, trigger, guard, event, to }) => [status, trigger, guard, event, to]),
  )
})

t.test('the table of statuses names their timers', async t => {
  const timers = Object.entries(STANDARD_LIFECYCLE.states).map(([status, state]) => [
    status,
    [...(state?.timers ?? [])].sort().join(', '),
  ])
  t.strictSame(
    tableUnder('status', 'meaning').map(([status, , named]) => [
      status,
      named?.split(', ').sort().join(', '),
    ]),
    timers,
  )
})

t.test('the diagram has the arrows of the standard lifecycle, but for notes', async t => {
  const drawn = [...block('mermaid').matchAll(/^ +(\w+) --> (\w+):/gm)].map(([, from, to]) => `${from} ${to}`)
  const arrows = transitions
    .filter(({ trigger }) => trigger !== 'NOTE')
    .map(({ status, to }) => `${status} ${to}`)
  t.strictSame(drawn.toSorted(), [...new Set(arrows)].sort())
})

t.test('the guards are all explained', async t => {
  t.strictSame(
    tableUnder('guard', 'holds when').map(([guard]) => guard),
    Object.keys(GUARDS),
  )
})

t.test('codes that are named exist', async t => {
  for (const [code] of tableUnder('refused as', 'because')) t.ok(code! in REFUSALS, code!)
  for (const code of [
    'not_due',
    'superseded',
    'already_started',
    'release_limit',
    'idempotency_key_reused',
  ]) {
    t.ok(code in REFUSALS, code)
    t.match(doc, `\`${code}\``)
  }
})

t.test('numbers that are named are those of the code', async t => {
  const defaults = new Map(tableUnder('timer', 'armed in').map(row => [row[0], row[3]]))
  const minute = 60_000
  t.equal(defaults.get('queue'), `${DEFAULT_TIMEOUTS.queueMs / minute / 60} h`)
  t.equal(defaults.get('lease'), `${DEFAULT_TIMEOUTS.leaseMs / 1_000} s`)
  t.equal(defaults.get('execution'), `${DEFAULT_TIMEOUTS.executionMs / minute} min`)
  t.equal(defaults.get('total'), `${DEFAULT_TIMEOUTS.totalMs / minute / 60 / 24} d`)
  t.strictSame(
    [DEFAULT_RETRY_POLICY.initialDelayMs, DEFAULT_RETRY_POLICY.factor, DEFAULT_RETRY_POLICY.maxDelayMs],
    [1_000, 2, 5 * minute],
    '1 s, doubled, at most 5 min',
  )
  t.equal(LIMITS.rememberedCommands, 16)
  t.equal(LIMITS.releasesPerRun, 10)
  t.equal(LIMITS.silentLeasesPerRun, 3)
  t.equal(LIMITS.lateResultsPerTask, 5)
  t.equal(LIMITS.rememberedAttempts, 5)
  t.equal(LIMITS.contextBytes, 16 * 1024)
})

t.test('the example is a definition that is accepted, and does what is said of it', async t => {
  const picture = lifecycleSchema.parse(JSON.parse(block('json')))
  const running = given(submitted()).under(picture).when(0, start()).thenAccepted(t, 'TaskStarted')
  running.when(1, step('UPLOADING')).thenRefused(t, 'step_not_allowed')
  running
    .when(1, step('GENERATING'))
    .thenAccepted(t, 'TaskStepEntered')
    .when(2, step('UPLOADING'))
    .thenAccepted(t, 'TaskStepEntered')
    .when(30_002, timeout('step'))
    .thenAccepted(t, 'TaskTimedOut')
    .thenTask(t, { status: 'FAILED', timer: 'step', attemptsCharged: 1 })
  running
    .when(TIMEOUTS.leaseMs, timeout('lease'))
    .thenAccepted(t, 'TaskAttemptTimedOut')
    .thenTask(t, { status: 'RETRYING' })
  t.not(picture.name, STEPPED_LIFECYCLE.name)
})
