import { randomUUID } from 'node:crypto'
import t from 'tap'
import { streamOf } from '../../src/eventlog/codec.ts'
import {
  type Append,
  EVENT_BYTES_MAX,
  type EventLog,
  LogUnavailableError,
} from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { cancel, note, start, succeed } from '../domain/specification.ts'
import {
  ask,
  history,
  mustBe,
  said,
  startEngine,
  submitTasks,
  submitting,
  typesOf,
  wrapLog,
} from '../support/service-parts.ts'

const MIB = 1024 * 1024

/** An engine and the calls that its log gets, each with the streams it names. */
async function counted(log: EventLog = createMemoryEventLog()) {
  const calls: string[][] = []
  const engine = await startEngine(
    wrapLog(log, {
      appendMany: (appends: readonly Append[]) => {
        calls.push(appends.map(({ stream }) => stream))
        return log.appendMany(appends)
      },
    }),
  )
  calls.length = 0
  return { log, engine, calls }
}

t.test('commands asked together travel in one append', async t => {
  const { engine, calls } = await counted()
  await submitTasks(engine, 300)
  t.equal(calls.length, 1)
  t.equal(calls[0]!.length, 300)
})

t.test('what is asked while an append is under way goes in the next one, all of it', async t => {
  const { engine, calls } = await counted()
  const [first] = await Promise.all([
    submitTasks(engine, 1),
    // Asked once the first flight has left.
    new Promise(setImmediate).then(() =>
      Promise.all([submitTasks(engine, 20), submitTasks(engine, 30), submitTasks(engine, 50)]),
    ),
  ])
  t.strictSame(
    calls.map(streams => streams.length),
    [1, 100],
  )
  t.strictSame(calls[0], first.map(streamOf))
})

t.test('commands of one task keep their order, with one append per stream in a call', async t => {
  const { log, engine, calls } = await counted()
  const ids = Array.from({ length: 20 }, () => randomUUID())
  const commands = [submitting(), start(), note('one'), note('two'), succeed(), note('three')]
  const answers = await engine.executeMany(ids.flatMap(id => commands.map(command => ask(id, command))))
  t.ok(answers.every(({ kind }) => kind === 'accepted'))
  t.equal(calls.length, commands.length)
  for (const streams of calls) t.equal(new Set(streams).size, streams.length)
  for (const id of ids)
    t.strictSame(await typesOf(log, id), [
      'TaskSubmitted',
      'TaskStarted',
      'TaskNoted',
      'TaskNoted',
      'TaskSucceeded',
      'TaskNoted',
    ])
})

t.test('a long queue of one task does not hold up the others', async t => {
  const { engine, calls } = await counted()
  const [busy] = (await submitTasks(engine, 1)) as [string]
  const notes = engine.executeMany(Array.from({ length: 50 }, () => ask(busy, note())))
  await submitTasks(engine, 1)
  t.ok(calls.length <= 4, `it was answered after ${calls.length - 1} appends`)
  t.ok((await notes).every(({ kind }) => kind === 'accepted'))
})

t.test('an event larger than the log takes is refused alone as too_large', async t => {
  const { log, engine, calls } = await counted()
  const ids = Array.from({ length: 9 }, () => randomUUID())
  const answers = await engine.executeMany(
    ids.map((id, index) => ask(id, submitting(index === 4 ? { payload: 'x'.repeat(EVENT_BYTES_MAX) } : {}))),
  )
  t.strictSame(
    answers.map(said),
    ids.map((_, index) => (index === 4 ? 'too_large' : 'accepted')),
  )
  t.strictSame(await history(log, ids[4]!), [])
  t.equal(calls.length, 1)
  t.equal(said(await engine.execute(ask(ids[4]!, submitting()))), 'accepted', 'a smaller one passes')
})

t.test('a command that cannot be decided is refused alone as internal_error', async t => {
  const { log, engine } = await counted()
  const ids = await submitTasks(engine, 3)
  // Deeper than JSON.stringify goes: the edges refuse it, and the engine must survive it.
  let deep: unknown[] = []
  for (let level = 0; level < 20_000; level++) deep = [deep]
  const answers = await engine.executeMany([
    ask(ids[0]!, note()),
    ask(randomUUID(), submitting({ payload: deep as never })),
    ask(ids[1]!, cancel()),
    ask(ids[2]!, note()),
  ])
  t.strictSame(answers.map(said), ['accepted', 'internal_error', 'accepted', 'accepted'])
  t.equal((await history(log, ids[1]!)).length, 2)
})

t.test('what the log refuses for another reason than size is no matter of size', async t => {
  const log = createMemoryEventLog()
  const engine = await startEngine(
    wrapLog(log, {
      appendMany: async appends =>
        appends.some(({ stream }) => stream.startsWith('task-'))
          ? appends.map(() => ({ kind: 'rejected', reason: 'invalid_event', message: 'the log says no' }))
          : log.appendMany(appends),
    }),
  )
  t.equal(said(await engine.execute(ask(randomUUID(), submitting()))), 'internal_error')
})

t.test('a call that fails as a whole is split until the member at fault stands alone', async t => {
  const log = createMemoryEventLog()
  const ids = Array.from({ length: 16 }, () => randomUUID())
  const engine = await startEngine(
    wrapLog(log, {
      appendMany: async appends => {
        if (appends.some(({ stream }) => stream === streamOf(ids[11]!)))
          throw new Error('it cannot be stored')
        return log.appendMany(appends)
      },
    }),
  )
  const answers = await engine.executeMany(ids.map(id => ask(id, submitting())))
  t.strictSame(
    answers.map(said),
    ids.map((_, index) => (index === 11 ? 'internal_error' : 'accepted')),
  )
})

t.test('more bytes than one call takes go in several, each command once', async t => {
  const { log, engine, calls } = await counted()
  // Three bytes each: what counts is what the log counts.
  const ids = await submitTasks(engine, 30, () => ({ payload: '€'.repeat(MIB / 4) }))
  t.ok(calls.length > 3, `${calls.length} calls`)
  t.strictSame(calls.flat().sort(), ids.map(streamOf).sort(), 'no call is made twice')
  for (const id of ids) t.equal((await history(log, id)).length, 1)
})

t.test(
  'the log fails while commands are left for the next call: each is answered, and the engine goes on',
  async t => {
    const log = createMemoryEventLog()
    let away = false
    const engine = await startEngine(
      wrapLog(log, {
        appendMany: async appends => {
          if (away) throw new LogUnavailableError('the log is away')
          return log.appendMany(appends)
        },
      }),
      { appendDeadlineMs: 1 },
    )
    away = true
    const ids = Array.from({ length: 30 }, () => randomUUID())
    const large = submitting({ payload: 'x'.repeat(MIB / 2) })
    const answers = await engine.executeMany(
      ids.flatMap(id => [ask(id, large), ask(id, large, { commandId: 'again' })]),
    )
    t.ok(answers.every(answer => said(answer) === 'log_unavailable'))
    away = false
    for (const id of ids) mustBe('accepted', await engine.execute(ask(id, submitting())))
    await engine.stop()
  },
)
