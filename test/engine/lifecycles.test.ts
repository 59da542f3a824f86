import { randomUUID } from 'node:crypto'
import t from 'tap'
import { STANDARD_LIFECYCLE } from '../../src/domain/lifecycle.ts'
import { Lifecycles, lifecycleRef } from '../../src/engine/lifecycles.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { note, STEPPED_LIFECYCLE, start, step } from '../domain/specification.ts'
import { anEvent, wholeStream } from '../support/events.ts'
import {
  ask,
  history,
  mustBe,
  recordingLogger,
  said,
  startEngine,
  submitTasks,
  submitting,
  wrapLog,
} from '../support/service-parts.ts'

const STEPPED = lifecycleRef(STEPPED_LIFECYCLE)
const streamOfStepped = `lifecycle-${STEPPED.hash}`

t.test('a configured definition is kept in the log, once however often it is opened', async t => {
  const log = createMemoryEventLog()
  for (let time = 0; time < 3; time++) {
    const lifecycles = await Lifecycles.open(log, [STEPPED_LIFECYCLE])
    t.strictSame(lifecycles.named('stepped'), STEPPED)
    t.strictSame(lifecycles.named('standard'), lifecycleRef(STANDARD_LIFECYCLE))
    t.equal(lifecycles.named('other'), null)
  }
  const stored = await wholeStream(log, streamOfStepped)
  t.equal(stored.length, 1)
  t.strictSame(JSON.parse(stored[0]!.data), { definition: STEPPED_LIFECYCLE })
})

t.test('the identity of a definition does not hang on the order of its keys', async t => {
  const { states, ...rest } = STEPPED_LIFECYCLE
  t.strictSame(lifecycleRef({ states: { ...states }, ...rest }), STEPPED)
  t.not(lifecycleRef({ ...STEPPED_LIFECYCLE, version: 2 }).hash, STEPPED.hash)
})

t.test('a task is decided by its own definition after that has left the configuration', async t => {
  const log = createMemoryEventLog()
  const before = await startEngine(log, { lifecycles: await Lifecycles.open(log, [STEPPED_LIFECYCLE]) })
  const [taskId] = (await submitTasks(before, 1, () => ({ lifecycle: STEPPED }))) as [string]
  let reads = 0
  const counting = wrapLog(log, {
    readStream: (...call) => {
      reads++
      return log.readStream(...call)
    },
  })
  const engine = await startEngine(counting, { lifecycles: await Lifecycles.open(counting) })
  mustBe('accepted', await engine.execute(ask(taskId, start())))
  t.equal(said(await engine.execute(ask(taskId, step('UPLOADING')))), 'step_not_allowed')
  mustBe('accepted', await engine.execute(ask(taskId, step('DOWNLOADING'))))
  t.equal(reads, 1, 'it is read once')
})

t.test('a definition that is not in the log sets its task aside, and nobody else', async t => {
  const log = createMemoryEventLog()
  const engine = await startEngine(log)
  const unknown = { name: 'gone', version: 1, hash: 'd'.repeat(64) }
  const [other] = (await submitTasks(engine, 1)) as [string]
  const answers = await engine.executeMany([
    ask(randomUUID(), submitting({ lifecycle: unknown })),
    ask(other, note()),
  ])
  t.strictSame(answers.map(said), ['set_aside', 'accepted'])
  // One that was accepted when it was known.
  const lifecycles = await Lifecycles.open(log)
  lifecycles.known = () => STANDARD_LIFECYCLE
  const knowing = await startEngine(log, { lifecycles })
  const [taskId] = (await submitTasks(knowing, 1, () => ({ lifecycle: unknown }))) as [string]
  t.match(await engine.execute(ask(taskId, start())), {
    kind: 'refused',
    code: 'set_aside',
    message: /is not in the log/,
    task: { taskId, status: 'PENDING' },
  })
  t.equal((await history(log, taskId)).length, 1)
})

t.test('a definition in the log that is not what its hash says is not believed', async t => {
  for (const data of [
    { definition: STANDARD_LIFECYCLE },
    { definition: { name: 'stepped' } },
    {},
    { definition: null },
  ]) {
    const log = createMemoryEventLog()
    await log.appendMany([
      { stream: streamOfStepped, expected: 'no_stream', events: [anEvent({ data: JSON.stringify(data) })] },
    ])
    const engine = await startEngine(log)
    const taskId = randomUUID()
    t.match(await engine.execute(ask(taskId, submitting({ lifecycle: STEPPED }))), {
      code: 'set_aside',
      message: /is not what its hash says/,
    })
  }
})

t.test('a definition that cannot be read at the moment is no reason to set a task aside', async t => {
  const log = createMemoryEventLog()
  const before = await startEngine(log, { lifecycles: await Lifecycles.open(log, [STEPPED_LIFECYCLE]) })
  const [taskId] = (await submitTasks(before, 1, () => ({ lifecycle: STEPPED }))) as [string]
  let away = true
  const { logger } = recordingLogger()
  const other = createMemoryEventLog()
  await other.close()
  const flaky = wrapLog(log, {
    readStream: (...call) => (away ? other.readStream(...call) : log.readStream(...call)),
  })
  const engine = await startEngine(flaky, { lifecycles: await Lifecycles.open(flaky), logger })
  t.equal(said(await engine.execute(ask(taskId, start()))), 'log_unavailable')
  away = false
  t.equal(said(await engine.execute(ask(taskId, start()))), 'accepted')
})
