import { randomUUID } from 'node:crypto'
import t from 'tap'
import { ENGINE_LIMITS } from '../../src/engine/engine.ts'
import { Lifecycles } from '../../src/engine/lifecycles.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { cancel, fail, note, start, succeed, TOKEN_B, timeout } from '../domain/specification.ts'
import {
  ask,
  history,
  ManualClock,
  mustBe,
  recordingLogger,
  said,
  signalled,
  startEngine,
  submitTasks,
  submitting,
  typesOf,
  wrapLog,
} from '../support/service-parts.ts'

async function setUp() {
  const log = createMemoryEventLog()
  const clock = new ManualClock()
  const { logger, lines } = recordingLogger()
  const engine = await startEngine(log, { clock, logger })
  const [taskId] = (await submitTasks(engine, 1)) as [string]
  return { log, clock, engine, lines, taskId }
}

t.test('an accepted command is in the log, and the answer is the folded task', async t => {
  const { log, engine, taskId } = await setUp()
  const { task, event } = mustBe('accepted', await engine.execute(ask(taskId, start())))
  t.strictSame((await history(log, taskId))[1], event)
  t.match(task, { status: 'PROCESSING', attempt: 1, revision: 1, hash: event.hash })
  t.strictSame(await engine.read(taskId), { kind: 'task', task })
})

t.test('a command asked again is repeated: the same task, and no event', async t => {
  const { log, engine, taskId } = await setUp()
  const asked = ask(taskId, start())
  const { task } = mustBe('accepted', await engine.execute(asked))
  t.strictSame(mustBe('repeated', await engine.execute(asked)).task, task, 'the same command')
  const other = ask(taskId, start())
  t.strictSame(mustBe('repeated', await engine.execute(other)).task, task, 'the same token')
  t.equal((await history(log, taskId)).length, 2)
})

t.test('a refusal names its code and the state it was refused in, and stores nothing', async t => {
  const { log, engine, taskId } = await setUp()
  await engine.execute(ask(taskId, start()))
  const answer = await engine.execute(ask(taskId, start({ leaseTokenHash: TOKEN_B, worker: 'other' })))
  t.match(answer, { kind: 'refused', code: 'already_started', task: { status: 'PROCESSING', revision: 1 } })
  t.equal((await history(log, taskId)).length, 2)
})

t.test('a task that was never submitted is not found, and asking makes no stream', async t => {
  const { log, engine } = await setUp()
  const taskId = randomUUID()
  t.match(await engine.execute(ask(taskId, cancel())), { kind: 'refused', code: 'not_found', task: null })
  t.strictSame(await history(log, taskId), [])
})

t.test('S03 S19 a late result is refused as superseded, kept once, and changes nothing', async t => {
  const { log, clock, engine, taskId } = await setUp()
  await engine.execute(ask(taskId, start()))
  clock.pass(2_000)
  mustBe('accepted', await engine.execute(ask(taskId, timeout('lease'))))
  const late = ask(taskId, succeed())
  t.match(await engine.execute(late), { code: 'superseded', task: { status: 'RETRYING', revision: 3 } })
  t.match(await engine.execute(late), { code: 'superseded', task: { status: 'RETRYING', revision: 3 } })
  t.strictSame(await typesOf(log, taskId), [
    'TaskSubmitted',
    'TaskStarted',
    'TaskAttemptTimedOut',
    'LateResultRecorded',
  ])
})

t.test('the time of an event never goes back when the clock does', async t => {
  const { log, clock, engine, taskId } = await setUp()
  const before = clock.now()
  clock.pass(-60_000)
  mustBe('accepted', await engine.execute(ask(taskId, start())))
  clock.pass(-60_000)
  mustBe('accepted', await engine.execute(ask(taskId, note())))
  clock.pass(300_000)
  mustBe('accepted', await engine.execute(ask(taskId, succeed())))
  t.strictSame(
    (await history(log, taskId)).map(({ metadata }) => metadata.at - before),
    [0, 0, 0, 180_000],
  )
})

t.test('transitions are logged at info, illegal ones at warn with task, status and trigger', async t => {
  const { engine, lines, taskId } = await setUp()
  await engine.execute(ask(taskId, start()))
  await engine.execute(ask(taskId, succeed()))
  await engine.execute(ask(taskId, fail()))
  t.match(lines.slice(-3), [
    { level: 30, taskId, trigger: 'START', status: 'PROCESSING' },
    { level: 30, taskId, trigger: 'SUCCEED', status: 'SUCCESS' },
    { level: 40, taskId, trigger: 'FAIL', status: 'SUCCESS', code: 'superseded' },
  ])
})

/** An engine whose log answers no read and no append before it is let. */
async function heldUp() {
  const log = createMemoryEventLog()
  const passes = signalled()
  const engine = await startEngine(
    wrapLog(log, {
      readStreams: async streams => {
        await passes.promise
        return log.readStreams(streams)
      },
      appendMany: async appends => {
        await passes.promise
        return log.appendMany(appends)
      },
    }),
    { lifecycles: await Lifecycles.open(log) },
  )
  return { log, engine, letPass: () => passes.resolve() }
}

t.test('more commands than may wait are refused as overloaded; those that wait are answered', async t => {
  const { engine, letPass } = await heldUp()
  const waiting = engine.executeMany(
    Array.from({ length: ENGINE_LIMITS.waiting }, () => ask(randomUUID(), cancel())),
  )
  t.match(await engine.execute(ask(randomUUID(), cancel())), { kind: 'refused', code: 'overloaded' })
  letPass()
  t.ok((await waiting).every(answer => said(answer) === 'not_found'))
  t.equal(said(await engine.execute(ask(randomUUID(), cancel()))), 'not_found', 'there is room again')
})

t.test('a command that waited too long for its turn is refused as overloaded and not stored', async t => {
  const { log, engine, letPass } = await heldUp()
  const [first, second] = [randomUUID(), randomUUID()]
  const accepted = engine.execute(ask(first, submitting()))
  // The first flight has left when a turn of the event loop is over.
  await new Promise(setImmediate)
  const overdue = engine.execute(ask(second, submitting()))
  const now = performance.now.bind(performance)
  t.teardown(() => {
    performance.now = now
  })
  performance.now = () => now() + ENGINE_LIMITS.waitMs + 1
  letPass()
  t.equal(said(await accepted), 'accepted')
  t.equal(said(await overdue), 'overloaded')
  t.strictSame(await history(log, second), [])
})

t.test('stop answers what is under way, refuses what comes after, and may be called twice', async t => {
  const { log, engine, letPass } = await heldUp()
  const [first, second] = [randomUUID(), randomUUID()]
  const accepted = engine.execute(ask(first, submitting()))
  await new Promise(setImmediate)
  const waiting = engine.execute(ask(second, submitting()))
  let stopped = false
  const stopping = Promise.all([engine.stop(), engine.stop()]).then(() => {
    stopped = true
  })
  t.equal(said(await engine.execute(ask(randomUUID(), submitting()))), 'shutting_down')
  t.notOk(stopped, 'it waits')
  letPass()
  t.strictSame([said(await accepted), said(await waiting)], ['accepted', 'accepted'])
  await stopping
  await engine.stop()
  t.equal((await history(log, second)).length, 1)
})
