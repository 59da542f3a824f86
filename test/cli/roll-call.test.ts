import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { callTheRoll, isComplete } from '../../src/cli/demo/roll-call.ts'
import type { TaskEvent } from '../../src/domain/events.ts'
import { encodeEvent, streamOf } from '../../src/eventlog/codec.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import {
  attemptTimedOut,
  cancelled,
  type Fact,
  failed,
  requeued,
  started,
  submitted,
  succeeded,
  T0,
} from '../domain/specification.ts'

function memoryLog(t: Test): EventLog {
  const log = createMemoryEventLog()
  t.teardown(() => log.close())
  return log
}

/** Writes a stream as somebody might have; `gapAt` breaks its chain of hashes there. */
async function write(log: EventLog, facts: readonly Fact[], gapAt = -1): Promise<string> {
  const taskId = randomUUID()
  const stream = streamOf(taskId)
  let prevHash: string | null = null
  const events = facts.map(({ at, event, actor }, revision) => {
    const { encoded, recorded } = encodeEvent(stream, revision, randomUUID(), event as TaskEvent, {
      at: T0 + at,
      actor,
      source: 'http',
      commandId: `command-${revision}`,
      correlationId: null,
      causationId: null,
      trace: null,
      prevHash: revision === gapAt ? '0'.repeat(64) : prevHash,
    })
    prevHash = recorded.hash
    return encoded
  })
  await log.appendMany([{ stream, expected: 'no_stream', events }])
  return taskId
}

const DONE = [submitted(), started(1), succeeded(2)]

t.test('every outcome is counted, and what adds up is complete', async t => {
  const log = memoryLog(t)
  const second = { attempt: 2 }
  const retried = [
    ...[submitted(), started(1), attemptTimedOut(2_001)],
    ...[requeued(3_001), started(3_002, second), succeeded(3_003, second)],
  ]
  const ids = [
    await write(log, DONE),
    await write(log, retried),
    await write(log, [submitted(), started(1), failed(2)]),
    await write(log, [submitted(), cancelled(1)]),
  ]
  const { rollCall, tasks } = await callTheRoll(log, ids)
  t.match(rollCall, {
    accepted: 4,
    succeeded: 2,
    succeededAfterRetry: 1,
    failed: 1,
    failedBecause: { out_of_memory: 1 },
    cancelled: 1,
    attemptsLostToLeases: 1,
    lateResults: 0,
    events: 14,
  })
  t.same([rollCall.missing, rollCall.doubled, rollCall.broken], [[], [], []])
  t.ok(isComplete(rollCall))
  t.equal(tasks.size, 4)
})

t.test('a task without a stream is missing', async t => {
  const log = memoryLog(t)
  const lost = randomUUID()
  const { rollCall } = await callTheRoll(log, [await write(log, DONE), lost])
  t.same(rollCall.missing, [lost])
  t.notOk(isComplete(rollCall))
})

t.test('a task that is still open is missing', async t => {
  const log = memoryLog(t)
  const open = await write(log, [submitted(), started(1)])
  const { rollCall } = await callTheRoll(log, [await write(log, DONE), open])
  t.same(rollCall.missing, [open])
  t.notOk(isComplete(rollCall))
})

t.test('two outcomes in one run are doubled', async t => {
  const log = memoryLog(t)
  const twice = await write(log, [...DONE, succeeded(3)])
  const { rollCall } = await callTheRoll(log, [await write(log, DONE), twice])
  t.same(rollCall.doubled, [twice])
  t.notOk(isComplete(rollCall))
})

t.test('a gap in the chain of hashes is a broken chain', async t => {
  const log = memoryLog(t)
  const forged = await write(log, DONE, 2)
  const { rollCall } = await callTheRoll(log, [forged])
  t.same(rollCall.broken, [forged])
  t.notOk(isComplete(rollCall))
})

t.test('tasks of others are not called', async t => {
  const log = memoryLog(t)
  await write(log, [submitted()])
  await write(log, [...DONE, succeeded(3)])
  const { rollCall } = await callTheRoll(log, [await write(log, DONE)])
  t.match(rollCall, { accepted: 1, succeeded: 1 })
  t.ok(isComplete(rollCall))
})
