/** Conformance of sealing: a log that another one takes the place of takes no appends, and is read as before. */
import { randomUUID } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import type { Test } from 'tap'
import { type EventLog, LogSealedError, LogUnavailableError } from '../../src/eventlog/event-log.ts'
import { anAppend, anEvent, someEvents, wholeStream } from '../support/events.ts'
import type { MakeLog, OpenAgain } from './event-log.ts'
import { followUntil } from './event-log-following.ts'

export async function sealing(t: Test, makeLog: MakeLog, openAgain: OpenAgain): Promise<void> {
  await t.test('a new log takes appends', async t => t.equal(await (await makeLog(t)).sealedFor(), null))
  await t.test('a sealed log takes no append and says where it was moved', t => refusal(t, makeLog))
  await t.test('a sealed log is read and followed, and its head stands', t => readingOn(t, makeLog))
  await t.test('every other handle sees the seal', t => otherHandles(t, makeLog, openAgain))
  await t.test('a seal may be set again, changed and taken away', t => sealingAgain(t, makeLog))
  await t.test('what was acknowledged before the seal is all that is stored', t =>
    racing(t, makeLog, openAgain),
  )
}

async function refusal(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  const stored = anAppend({ events: someEvents(2) })
  await log.appendMany([stored])
  const movedTo = randomUUID()
  await log.seal(movedTo)
  t.equal(await log.sealedFor(), movedTo)
  const fresh = anAppend()
  const calls = {
    'a new stream': [fresh],
    'the next revision': [{ ...stored, expected: 1, events: [anEvent()] }],
    'anything expected': [{ ...stored, expected: 'any' as const, events: [anEvent()] }],
    'a repeat': [stored],
    'a repeat, expecting anything': [{ ...stored, expected: 'any' as const }],
    'a conflict': [{ ...stored, events: [anEvent()] }],
    'a new stream beside a repeat': [anAppend(), stored],
  }
  for (const [title, call] of Object.entries(calls)) {
    const error = await log.appendMany(call).then(
      () => null,
      (thrown: unknown) => thrown,
    )
    t.match(error, { code: 'log_unavailable', movedTo }, title)
    t.ok(error instanceof LogSealedError && error instanceof LogUnavailableError, `${title}: its class`)
  }
  t.equal((await wholeStream(log, stored.stream)).length, 2)
  t.same(await wholeStream(log, fresh.stream), [])
  t.equal(await log.countAfter(null, 100), 2)
}

async function readingOn(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  const one = anAppend({ events: someEvents(3) })
  await log.appendMany([one, anAppend()])
  const head = await log.head()
  await log.seal(randomUUID())
  t.same(await log.head(), head)
  t.equal((await log.readStreams([{ stream: one.stream, fromRevision: 1 }])).get(one.stream)?.length, 2)
  t.equal((await followUntil(log, null, 4)).length, 4)
}

async function otherHandles(t: Test, makeLog: MakeLog, openAgain: OpenAgain): Promise<void> {
  const log = await makeLog(t)
  const other = await openAgain(t, log)
  await other.appendMany([anAppend()])
  await log.seal('the-next-log')
  t.equal(await other.sealedFor(), 'the-next-log')
  await t.rejects(other.appendMany([anAppend()]), { code: 'log_unavailable', movedTo: 'the-next-log' })
  const later = await openAgain(t, log)
  await t.rejects(later.appendMany([anAppend()]), { code: 'log_unavailable', movedTo: 'the-next-log' })
  t.equal(await log.countAfter(null, 100), 1)
}

async function sealingAgain(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  await log.seal('b')
  await log.seal('b')
  t.equal(await log.sealedFor(), 'b')
  await log.seal('c')
  await t.rejects(log.appendMany([anAppend()]), { code: 'log_unavailable', movedTo: 'c' })
  await log.seal(null)
  t.equal(await log.sealedFor(), null)
  t.match(await log.appendMany([anAppend()]), [{ kind: 'appended' }])
  await log.seal(null)
  t.match(await log.appendMany([anAppend()]), [{ kind: 'appended' }])
}

/** Writers append all the time while the log is sealed: its head then is its last, and nothing they were told is missing. */
async function racing(t: Test, makeLog: MakeLog, openAgain: OpenAgain): Promise<void> {
  const log = await makeLog(t)
  const acknowledged: string[] = []
  const write = async (handle: EventLog): Promise<void> => {
    for (;;) {
      const append = anAppend()
      await handle.appendMany([append])
      acknowledged.push(append.stream)
      // A log in memory answers without leaving the turn.
      await setImmediate()
    }
  }
  const writers = [log, log, await openAgain(t, log), await openAgain(t, log)].map(handle =>
    write(handle).catch((error: unknown) => error),
  )
  while (acknowledged.length < 50) await setImmediate()
  await log.seal('d')
  const count = await log.countAfter(null, 100_000)
  const head = await log.head()
  for (const error of await Promise.all(writers)) t.match(error, { movedTo: 'd' })
  t.same(await log.head(), head, 'nothing came after the seal')
  t.equal(await log.countAfter(null, 100_000), count)
  const found = await log.readStreams(acknowledged.map(stream => ({ stream, fromRevision: 0 })))
  t.equal(found.size, acknowledged.length, 'nothing that was acknowledged is missing')
}
