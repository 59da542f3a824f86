import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { TaskEvent } from '../../src/domain/events.ts'
import { auditLog } from '../../src/engine/audit.ts'
import { encodeEvent, streamOf } from '../../src/eventlog/codec.ts'
import type { EncodedEvent, EventLog } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import {
  cancel,
  type Fact,
  failed,
  requeued,
  start,
  started,
  submitted,
  succeed,
  succeeded,
  T0,
} from '../domain/specification.ts'
import { anAppend, anEvent } from '../support/events.ts'
import { ask, startEngine, submitTasks, wrapLog } from '../support/service-parts.ts'

interface Stream {
  taskId: string
  events: EncodedEvent[]
}

/** A stream as somebody wrote it, chained by hash but for what `forge` says. */
function aStream(facts: readonly Fact[], forge: { prevHashAt?: number } = {}): Stream {
  const taskId = randomUUID()
  let prevHash: string | null = null
  const events = facts.map(({ at, event, actor }, revision) => {
    const { encoded, recorded } = encodeEvent(streamOf(taskId), revision, randomUUID(), event as TaskEvent, {
      at: T0 + at,
      actor,
      source: 'http',
      commandId: `command-${revision}`,
      correlationId: null,
      causationId: null,
      trace: null,
      prevHash: forge.prevHashAt === revision ? '9'.repeat(64) : prevHash,
    })
    prevHash = recorded.hash
    return encoded
  })
  return { taskId, events }
}

async function logOf(t: Test, ...streams: Stream[]): Promise<EventLog> {
  const log = createMemoryEventLog()
  t.teardown(() => log.close())
  // Event by event in turn, so that streams are mixed as in real life.
  for (let revision = 0; streams.some(({ events }) => events[revision]); revision++)
    for (const { taskId, events } of streams)
      if (events[revision])
        await log.appendMany([
          anAppend({ stream: streamOf(taskId), expected: 'any', events: [events[revision]!] }),
        ])
  return log
}

t.test('a log in order: every task with its outcome, none missing, doubled or broken', async t => {
  const done = aStream([submitted(), started(1), succeeded(2)])
  const twoRuns = aStream([
    submitted(),
    started(1),
    failed(2),
    requeued(3, { run: 2, cause: 'asked' }),
    started(4, { run: 2, attempt: 2 }),
    succeeded(5, { run: 2, attempt: 2 }),
  ])
  const log = await logOf(t, done, twoRuns)
  const audit = await auditLog(log, [done.taskId, twoRuns.taskId])
  t.strictSame([audit.missing, audit.doubled, audit.broken], [[], [], []])
  t.strictSame([...audit.tasks.keys()], [done.taskId, twoRuns.taskId])
  t.match(audit.tasks.get(twoRuns.taskId), { task: { status: 'SUCCESS', run: 2 }, events: 6 })
  t.strictSame(
    [...audit.tasks.get(twoRuns.taskId)!.outcomesByRun],
    [
      [1, 1],
      [2, 1],
    ],
  )
})

t.test('missing: an accepted task without a stream, and one that is still open', async t => {
  const open = aStream([submitted(), started(1)])
  const done = aStream([submitted(), started(1), succeeded(2)])
  const lost = randomUUID()
  const log = await logOf(t, open, done)
  t.strictSame((await auditLog(log, [lost, open.taskId, done.taskId])).missing, [lost, open.taskId])
  t.strictSame((await auditLog(log, [done.taskId])).missing, [], 'who is not expected is not missed')
  t.strictSame((await auditLog(log, null)).missing, [open.taskId], 'null expects all that are in the log')
})

t.test('doubled: a run with a second outcome', async t => {
  const doubled = aStream([submitted(), started(1), succeeded(2), failed(3)])
  const sound = aStream([submitted(), started(1), succeeded(2)])
  const log = await logOf(t, doubled, sound)
  const audit = await auditLog(log, null)
  t.strictSame(audit.doubled, [doubled.taskId])
  t.strictSame(audit.broken, [doubled.taskId], 'no fold takes it')
  t.strictSame([...audit.tasks.get(doubled.taskId)!.outcomesByRun], [[1, 2]])
  t.strictSame(audit.missing, [doubled.taskId], 'what cannot be folded has no known outcome')
})

t.test('broken: a chain of hashes with a gap, an event that cannot be read, one out of order', async t => {
  const forged = aStream([submitted(), started(1), succeeded(2)], { prevHashAt: 2 })
  const rewritten = aStream([submitted(), started(1), succeeded(2)])
  rewritten.events[1] = {
    ...rewritten.events[1]!,
    data: rewritten.events[1]!.data.replace('worker-1', 'worker-2'),
  }
  const unreadable = aStream([submitted()])
  unreadable.events.push(anEvent({ type: 'TaskStarted' }))
  const outOfOrder = aStream([submitted(), succeeded(1)])
  const headless = aStream([started(1)])
  const sound = aStream([submitted()])
  const all = [forged, rewritten, unreadable, outOfOrder, headless]
  const log = await logOf(t, ...all, sound)
  const audit = await auditLog(log, null)
  t.strictSame(audit.broken.sort(), all.map(({ taskId }) => taskId).sort())
  t.match(audit.tasks.get(forged.taskId), { task: null, broken: /hash chain/ })
  t.match(audit.tasks.get(unreadable.taskId), { task: null, broken: /cannot be read/ })
})

t.test('streams that are no tasks are passed over, and an empty log has none', async t => {
  const log = createMemoryEventLog()
  t.equal((await auditLog(log, null)).tasks.size, 0)
  await log.appendMany([anAppend(), anAppend({ stream: 'lifecycle-of-a-kind' })])
  const audit = await auditLog(log, null)
  t.equal(audit.tasks.size, 0)
})

t.test('what the engine writes is sound: the audit of a log it wrote finds nothing', async t => {
  const log = createMemoryEventLog()
  const engine = await startEngine(log)
  const ids = await submitTasks(engine, 1_500)
  await engine.executeMany(ids.map(id => ask(id, start())))
  await engine.executeMany(ids.map((id, index) => ask(id, index % 3 ? succeed() : cancel())))
  const audit = await auditLog(log, ids)
  t.strictSame([audit.missing, audit.doubled, audit.broken], [[], [], []])
  t.equal(audit.tasks.size, ids.length)
})

t.test('an audit that ends before the head of the log is none', async t => {
  const log = await logOf(t, aStream([submitted(), started(1), succeeded(2)]))
  await t.rejects(auditLog(log, null, AbortSignal.abort()), 'it was aborted')
  const aborted = new AbortController()
  const early = wrapLog(log, {
    follow: (from, _, signal) => {
      aborted.abort()
      return log.follow(from, async () => {}, signal)
    },
  })
  await t.rejects(auditLog(early, null, aborted.signal), 'it was aborted on the way')
  const closing = wrapLog(log, { follow: async () => {} })
  await t.rejects(auditLog(closing, null), 'the log was closed')
})
