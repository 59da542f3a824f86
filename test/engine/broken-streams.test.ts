import { randomUUID } from 'node:crypto'
import t from 'tap'
import { encodeEvent, streamOf } from '../../src/eventlog/codec.ts'
import type { EncodedEvent, EventLog } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { note, start, succeed, WORKER } from '../domain/specification.ts'
import { anEvent } from '../support/events.ts'
import {
  ask,
  history,
  mustBe,
  recordingLogger,
  said,
  startEngine,
  submitTasks,
  submitting,
} from '../support/service-parts.ts'

/** Events that a stream cannot go on with, whatever its task is. */
const BAD: Record<string, (taskId: string, revision: number) => EncodedEvent> = {
  'an event of an unknown type': () => anEvent(),
  'an event of an unknown version': () => anEvent({ type: 'TaskNoted', version: 9 }),
  'an event that its schema does not take': () => anEvent({ type: 'TaskNoted', data: '{"content":{}}' }),
  'an event that breaks the chain of hashes': (taskId, revision) =>
    encodeEvent(
      streamOf(taskId),
      revision,
      randomUUID(),
      { type: 'TaskNoted', version: 1, data: { content: { note: 'forged' } } },
      {
        at: 0,
        actor: WORKER,
        source: 'http',
        commandId: 'forged',
        correlationId: null,
        causationId: null,
        trace: null,
        prevHash: 'e'.repeat(64),
      },
    ).encoded,
}

async function spoil(
  log: EventLog,
  taskId: string,
  make: (taskId: string, revision: number) => EncodedEvent,
) {
  const { events } = await log.readStream(streamOf(taskId), 0, 1_000)
  const append = {
    stream: streamOf(taskId),
    expected: 'any' as const,
    events: [make(taskId, events.length)],
  }
  const [result] = await log.appendMany([append])
  if (result?.kind !== 'appended') throw new Error(`the stream could not be spoilt: ${result?.kind}`)
}

for (const [title, make] of Object.entries(BAD))
  t.test(`S37 ${title} sets its task aside, and that task alone`, async t => {
    const log = createMemoryEventLog()
    const { logger, lines } = recordingLogger()
    const engine = await startEngine(log, { logger })
    const [broken, sound] = (await submitTasks(engine, 2)) as [string, string]
    await spoil(log, broken, make)
    // The engine still has the fold from before in its cache.
    for (const command of [start(), succeed(), note(), submitting()]) {
      const answers = await engine.executeMany([ask(broken, command), ask(sound, command)])
      t.equal(said(answers[0]!), 'set_aside', command.trigger)
      t.not(said(answers[1]!), 'set_aside', command.trigger)
    }
    t.ok(lines.some(({ level, msg }) => level === 50 && msg === 'stream cannot be folded'))
    t.match(await engine.read(broken), { kind: 'broken' })
    t.match(await engine.read(sound), { kind: 'task' })
    t.match([...(await engine.readMany([broken, sound])).values()], [{ kind: 'broken' }, { kind: 'task' }])
  })

t.test('S37 a submit to a stream that was broken from its start is set aside', async t => {
  const log = createMemoryEventLog()
  const engine = await startEngine(log)
  const taskId = randomUUID()
  await spoil(log, taskId, () => anEvent())
  t.equal(said(await engine.execute(ask(taskId, submitting()))), 'set_aside')
})

t.test('commands behind the one that found the stream broken are answered too', async t => {
  const log = createMemoryEventLog()
  const engine = await startEngine(log)
  const [taskId] = (await submitTasks(engine, 1)) as [string]
  await spoil(log, taskId, BAD['an event of an unknown type']!)
  const answers = await engine.executeMany([start(), note(), succeed()].map(command => ask(taskId, command)))
  t.strictSame(answers.map(said), ['set_aside', 'set_aside', 'set_aside'])
})

t.test('many reads of one task at once are one round trip and one answer', async t => {
  const log = createMemoryEventLog()
  const engine = await startEngine(log)
  const [taskId] = (await submitTasks(engine, 1)) as [string]
  mustBe('accepted', await (await startEngine(log)).execute(ask(taskId, start())))
  const tasks = await Promise.all(Array.from({ length: 10 }, () => engine.read(taskId)))
  t.ok(tasks.every(loaded => loaded.kind === 'task' && loaded.task.status === 'PROCESSING'))
  t.equal((await history(log, taskId)).length, 2)
})
