/** Who waits for tasks is told all that happens to them, once, in order, whatever becomes of the log meanwhile. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { Task } from '../../src/domain/task.ts'
import {
  type Change,
  type EndReason,
  TaskChanges,
  type TaskChangesOptions,
} from '../../src/engine/changes.ts'
import type { Engine } from '../../src/engine/engine.ts'
import { type EventLog, LogUnavailableError, LogWentBackwardsError } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { cancel, note, start } from '../domain/specification.ts'
import { ask, SILENT, signalled, startEngine, submitting, until, wrapLog } from '../support/service-parts.ts'

async function setup(
  t: Test,
  over: (log: EventLog) => Partial<EventLog> = () => ({}),
  options: Partial<TaskChangesOptions> = {},
) {
  const log = createMemoryEventLog()
  const engine = await startEngine(log)
  const changes = new TaskChanges({
    log: wrapLog(log, over(log)),
    definitionOf: task => engine.definitionOf(task),
    logger: SILENT,
    ...options,
  })
  t.teardown(() => changes.stop())
  return { log, engine, changes }
}

/** Keeps what it is told. */
class Told {
  readonly changes: Change[] = []
  readonly ends: EndReason[] = []
  moves = 0

  changed(change: Change): void {
    this.changes.push(change)
  }
  moved(): void {
    this.moves++
  }
  ended(reason: EndReason): void {
    this.ends.push(reason)
  }
  get lines(): string[] {
    return this.changes.map(({ recorded, task }) => `${recorded.event.type} ${task.status} ${task.revision}`)
  }
}

async function submitted(engine: Engine): Promise<string> {
  const taskId = randomUUID()
  await engine.execute(ask(taskId, submitting()))
  return taskId
}
const everything = { key: 'all', matches: () => true }

t.test('each event of a task is told, with the task as it was right after it', async t => {
  const { engine, changes } = await setup(t)
  const taskId = await submitted(engine)
  const [told, all] = [new Told(), new Told()]
  const { place } = await changes.subscribe(taskId, told)
  await changes.subscribeTo(everything, all)
  t.equal(changes.mode, 'following')
  t.ok(place, 'it stands at the head')
  await engine.execute(ask(taskId, start()))
  await engine.execute(ask(taskId, note()))
  const other = await submitted(engine)
  await engine.execute(ask(taskId, cancel()))
  await until('all is told', () => all.changes.length === 4)
  t.strictSame(told.lines, [
    'TaskStarted PROCESSING 1',
    'TaskNoted PROCESSING 2',
    'TaskCancelled CANCELLED 3',
  ])
  t.strictSame(
    all.changes.map(({ task }) => task.taskId),
    [taskId, taskId, other, taskId],
    'in the order of the log',
  )
  t.ok(all.changes.every(({ definition }) => definition !== null))
  t.equal(all.changes[0], told.changes[0], 'it is one change, whoever is told')
})

t.test('a filter is asked of the task after the event, once for all with its key', async t => {
  const { engine, changes } = await setup(t)
  let asked = 0
  const filter = {
    key: 'cancelled',
    matches: (task: Task) => {
      asked++
      return task.status === 'CANCELLED'
    },
  }
  const many = Array.from({ length: 50 }, () => new Told())
  for (const one of many) await changes.subscribeTo(filter, one)
  const taskId = await submitted(engine)
  await engine.execute(ask(taskId, cancel()))
  await until('all are told', () => many.every(one => one.changes.length === 1))
  t.equal(asked, 2)
})

t.test('tasks that nobody waits for are not folded, and a watcher has nothing folded', async t => {
  let reads = 0
  const { engine, changes } = await setup(t, log => ({
    readStreams: streams => {
      reads++
      return log.readStreams(streams)
    },
  }))
  const foreign = await submitted(engine)
  const watched = await submitted(engine)
  const watchers = Array.from({ length: 5_000 }, () => new Told())
  for (const one of watchers) await changes.watch(randomUUID(), one)
  const told = new Told()
  await changes.watch(watched, told)
  for (let n = 0; n < 20; n++) await engine.execute(ask(foreign, note()))
  await engine.execute(ask(watched, cancel()))
  await until('it is told', () => told.moves === 1)
  t.equal(reads, 0)
  t.equal(
    watchers.reduce((sum, { moves }) => sum + moves, 0),
    0,
  )
})

t.test('whoever subscribes while the head is read misses nothing', async t => {
  const asked = signalled()
  const answer = signalled()
  const { engine, changes } = await setup(t, log => ({
    head: async () => {
      const head = await log.head()
      asked.resolve()
      await answer.promise
      return head
    },
  }))
  const taskId = await submitted(engine)
  const told = new Told()
  const subscribing = changes.subscribe(taskId, told)
  await asked.promise
  await engine.execute(ask(taskId, note()))
  answer.resolve()
  await subscribing
  await engine.execute(ask(taskId, cancel()))
  await until('both are told', () => told.changes.length === 2)
  t.strictSame(told.lines, ['TaskNoted PENDING 1', 'TaskCancelled CANCELLED 2'])
})

t.test('whoever subscribes while a batch is folded is told all of it', async t => {
  const folding = signalled()
  const fold = signalled()
  const { engine, changes } = await setup(t, log => ({
    readStreams: async streams => {
      folding.resolve()
      await fold.promise
      return log.readStreams(streams)
    },
  }))
  const [first, second] = [await submitted(engine), await submitted(engine)]
  const [early, late, all] = [new Told(), new Told(), new Told()]
  await changes.subscribe(first, early)
  await engine.executeMany([ask(first, note()), ask(second, note())])
  await folding.promise
  const { place } = await changes.subscribe(second, late)
  await changes.subscribeTo(everything, all)
  fold.resolve()
  await until('all are told', () => all.changes.length === 2)
  t.strictSame(late.lines, ['TaskNoted PENDING 1'])
  t.strictSame(early.lines, ['TaskNoted PENDING 1'])
  t.ok(place && place.position < changes.place!.position, 'its place was before the batch')
})

t.test('a log that is away is waited for: nothing is left out, nothing told twice', async t => {
  let away = false
  let failures = 0
  const whileAway = () => {
    if (!away) return
    failures++
    throw new LogUnavailableError('away')
  }
  const { engine, changes } = await setup(t, log => ({
    head: async () => {
      whileAway()
      return log.head()
    },
    readStreams: async streams => {
      whileAway()
      return log.readStreams(streams)
    },
  }))
  const taskId = await submitted(engine)
  away = true
  await t.rejects(changes.subscribe(taskId, new Told()), { code: 'log_unavailable' })
  t.equal(changes.size, 0, 'who could not begin is not there')
  t.equal(changes.mode, 'off')
  away = false
  const told = new Told()
  await changes.subscribe(taskId, told)
  await engine.execute(ask(taskId, note('1')))
  await until('it is told', () => told.changes.length === 1)
  away = true
  // Its fold is not at hand.
  const other = new Told()
  const otherId = await submitted(engine)
  await engine.execute(ask(otherId, note()))
  await changes.subscribe(otherId, other)
  for (const text of ['2', '3']) await engine.execute(ask(taskId, note(text)))
  await engine.execute(ask(otherId, cancel()))
  const before = failures
  await until('it was tried again', () => failures > before + 2)
  away = false
  await until('all is told', () => other.changes.at(-1)?.task.status === 'CANCELLED')
  t.strictSame(told.lines, ['TaskNoted PENDING 1', 'TaskNoted PENDING 2', 'TaskNoted PENDING 3'])
  t.strictSame(told.ends, [])
})

t.test('a log that went backwards ends all, and the next begins at its head', async t => {
  let follows = 0
  const backwards = signalled()
  const { engine, changes } = await setup(t, log => ({
    follow: async (from, onBatch, signal) => {
      if (++follows > 1) return log.follow(from, onBatch, signal)
      await backwards.promise
      throw new LogWentBackwardsError('it went back')
    },
  }))
  const taskId = await submitted(engine)
  const told = [new Told(), new Told(), new Told()] as const
  await changes.subscribe(taskId, told[0])
  await changes.subscribeTo(everything, told[1])
  await changes.watch(taskId, told[2])
  backwards.resolve()
  await until('all are ended', () => told.every(one => one.ends.length > 0))
  t.strictSame(
    told.map(({ ends }) => ends),
    [['log_went_backwards'], ['log_went_backwards'], ['log_went_backwards']],
  )
  t.equal(changes.size, 0)
  const again = new Told()
  await changes.subscribe(taskId, again)
  await engine.execute(ask(taskId, cancel()))
  await until('it is told', () => again.changes.length === 1)
})

t.test('it follows while somebody waits, and a while longer', async t => {
  const { engine, changes } = await setup(t, undefined, { lingerMs: 20 })
  const taskId = await submitted(engine)
  t.equal(changes.mode, 'off')
  const one = await changes.subscribe(taskId, new Told())
  const two = await changes.subscribe(taskId, new Told())
  one.end()
  one.end()
  t.equal(changes.size, 1)
  two.end()
  t.equal(changes.mode, 'following')
  await until('it is off', () => changes.mode === 'off')
  // What happens now is told to nobody, not even to those who come later.
  await engine.execute(ask(taskId, note()))
  const told = new Told()
  await changes.subscribe(taskId, told)
  await engine.execute(ask(taskId, cancel()))
  await until('it is told', () => told.changes.length === 1)
  t.strictSame(told.lines, ['TaskCancelled CANCELLED 2'])
})

t.test('a task whose stream cannot be read is passed over, and the others are told', async t => {
  const { log, engine, changes } = await setup(t)
  const [bad, good] = [await submitted(engine), await submitted(engine)]
  const [ofBad, ofGood] = [new Told(), new Told()]
  await changes.subscribe(bad, ofBad)
  await changes.subscribe(good, ofGood)
  const event = { id: randomUUID(), type: 'TaskVanished', version: 1, data: '{}', metadata: '{}' }
  await log.appendMany([{ stream: `task-${bad}`, expected: 0, events: [event] }])
  await engine.execute(ask(good, cancel()))
  await until('it is told', () => ofGood.changes.length === 1)
  t.strictSame(ofBad.changes, [])
})

t.test('a stop ends all, and nobody begins any more', async t => {
  const { engine, changes } = await setup(t)
  const taskId = await submitted(engine)
  const told = new Told()
  const { end } = await changes.subscribe(taskId, told)
  await Promise.all([changes.stop(), changes.stop()])
  end()
  t.strictSame(told.ends, ['shutting_down'])
  t.equal(changes.mode, 'off')
  await t.rejects(changes.watch(taskId, told), { code: 'log_unavailable' })
})
