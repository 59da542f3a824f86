import { randomUUID } from 'node:crypto'
import t from 'tap'
import { STANDARD_LIFECYCLE } from '../../src/domain/lifecycle.ts'
import { Lifecycles, lifecycleRef } from '../../src/engine/lifecycles.ts'
import { LogUnavailableError } from '../../src/eventlog/event-log.ts'
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
  until,
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

/** A log that is away until it is told otherwise, and counts who asks. */
function awayLog() {
  const log = createMemoryEventLog()
  const state = { away: true, asked: 0, underWay: 0, most: 0 }
  const away = wrapLog(log, {
    appendMany: async appends => {
      state.asked++
      state.most = Math.max(state.most, ++state.underWay)
      try {
        await new Promise(resolve => setTimeout(resolve, 5))
        if (state.away) throw new LogUnavailableError('it is away')
        return await log.appendMany(appends)
      } finally {
        state.underWay--
      }
    },
  })
  return { log, away, state }
}

t.test('a service starts before its log: submits are refused, and accepted once it is there', async t => {
  const { log, away, state } = awayLog()
  const lifecycles = new Lifecycles(away, [STEPPED_LIFECYCLE])
  t.strictSame(lifecycles.named('stepped'), STEPPED, 'known at once')
  const engine = await startEngine(away, { lifecycles, appendDeadlineMs: 50 })
  const ids = [randomUUID(), randomUUID()]
  const submit = () => Promise.all(ids.map(id => engine.execute(ask(id, submitting({ lifecycle: STEPPED })))))
  t.strictSame((await submit()).map(said), ['log_unavailable', 'log_unavailable'])
  t.equal(lifecycles.stored, false)
  t.equal(await log.head(), null)
  state.away = false
  t.strictSame((await submit()).map(said), ['accepted', 'accepted'])
  t.equal(lifecycles.stored, true)
  const streams: string[] = []
  const end = new AbortController()
  await log.follow(
    null,
    async batch => {
      streams.push(...batch.map(({ stream }) => stream))
      if (batch.length === 0) end.abort()
    },
    end.signal,
  )
  t.strictSame(
    streams.map(stream => stream.startsWith('lifecycle-')),
    [true, true, false, false],
    'the definitions come first',
  )
  const before = state.asked
  mustBe('accepted', await engine.execute(ask(randomUUID(), submitting())))
  t.equal(state.asked - before, 1, 'from then on nothing but the task is appended')
})

t.test('other commands do not wait for the definitions', async t => {
  const log = createMemoryEventLog()
  const [taskId] = (await submitTasks(await startEngine(log), 1)) as [string]
  const refusing = wrapLog(log, {
    appendMany: appends =>
      appends.some(({ stream }) => stream.startsWith('lifecycle-'))
        ? Promise.reject(new LogUnavailableError('not now'))
        : log.appendMany(appends),
  })
  const engine = await startEngine(refusing, { lifecycles: new Lifecycles(refusing) })
  const answers = await engine.executeMany([ask(taskId, note()), ask(randomUUID(), submitting())])
  t.strictSame(answers.map(said), ['accepted', 'log_unavailable'])
})

t.test('a definition that the log refuses for good is a bug that costs its submits alone', async t => {
  const log = createMemoryEventLog()
  const [taskId] = (await submitTasks(await startEngine(log), 1)) as [string]
  const refusing = wrapLog(log, {
    appendMany: async appends =>
      appends.some(({ stream }) => stream.startsWith('lifecycle-'))
        ? [{ kind: 'rejected', reason: 'too_large', message: 'too large' }]
        : log.appendMany(appends),
  })
  const { logger, lines } = recordingLogger()
  const engine = await startEngine(refusing, { lifecycles: new Lifecycles(refusing), logger })
  const answers = await engine.executeMany([ask(taskId, note()), ask(randomUUID(), submitting())])
  t.strictSame(answers.map(said), ['accepted', 'internal_error'])
  t.match(lines, [{ level: 50, msg: 'the lifecycles cannot be stored' }])
})

t.test('in the background it is tried again, one at a time, until it is done', async t => {
  const { log, away, state } = awayLog()
  const { logger, lines } = recordingLogger()
  const lifecycles = new Lifecycles(away, [STEPPED_LIFECYCLE])
  const engine = await startEngine(away, { lifecycles, appendDeadlineMs: 10 })
  lifecycles.start(logger)
  lifecycles.start(logger)
  await Promise.all(Array.from({ length: 20 }, () => engine.execute(ask(randomUUID(), submitting()))))
  await until('it is tried again', () => state.asked > 2)
  t.equal(state.most, 1)
  state.away = false
  await until('it is done', () => lifecycles.stored)
  t.equal((await wholeStream(log, streamOfStepped)).length, 1)
  await until('it is said', () => lines.length === 2)
  t.match(lines, [
    { level: 40, msg: /no task is accepted until/ },
    { level: 30, logId: log.id },
  ])
  lifecycles.stop()
})

t.test('nothing is tried any more once it is stopped', async t => {
  const { away, state } = awayLog()
  const lifecycles = new Lifecycles(away)
  lifecycles.stop()
  lifecycles.start(recordingLogger().logger)
  await until('it was tried', () => state.asked === 1 && state.underWay === 0)
  lifecycles.stop()
  lifecycles.stop()
  await new Promise(resolve => setTimeout(resolve, 300))
  t.equal(state.asked, 1)
})
