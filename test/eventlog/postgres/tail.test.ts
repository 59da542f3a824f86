import t from 'tap'
import { READ_LIMITS, type StoredEvent } from '../../../src/eventlog/event-log.ts'
import { openPostgresEventLog } from '../../../src/eventlog/postgres/postgres-event-log.ts'
import { Tail } from '../../../src/eventlog/postgres/tail.ts'
import { followUntil } from '../../conformance/event-log-following.ts'
import { anAppend, anEvent } from '../../support/events.ts'
import { execute, testDatabase } from '../../support/postgres.ts'

const LOG_ID = '0b5d7c3e-5a06-4d7e-9c64-8c5a7f1a3b11'

function storedAt(first: number, count: number, data = '{}'): StoredEvent[] {
  return Array.from({ length: count }, (_, index) => ({
    ...anEvent(),
    data,
    stream: 'a',
    revision: first + index,
    position: String(first + index),
  }))
}

const at = (event: StoredEvent | undefined) => ({
  logId: LOG_ID,
  position: event!.position,
  eventId: event!.id,
})

function followedTail(): Tail {
  const tail = new Tail()
  tail.follow()
  return tail
}

t.test('nothing is kept while nobody follows', async t => {
  const tail = new Tail()
  const events = storedAt(1, 3)
  tail.add(events)
  t.equal(tail.after(at(events[0])), null)
  const unfollow = tail.follow()
  tail.add(events)
  t.strictSame(tail.after(at(events[0])), events.slice(1))
  unfollow()
  t.equal(tail.after(at(events[0])), null)
})

t.test('it answers from a position it holds, of the same event, and never with nothing', async t => {
  const tail = followedTail()
  const events = storedAt(5, 4)
  tail.add(events.slice(0, 2))
  tail.add(events.slice(2))
  t.strictSame(tail.after(at(events[1])), events.slice(2))
  t.equal(tail.after(at(events[3])), null, 'at its end the log is asked')
  t.equal(tail.after(at(storedAt(4, 1)[0])), null, 'before its begin too')
  t.equal(tail.after(at(storedAt(6, 1)[0])), null, 'and where another event stands')
})

t.test('a gap begins it anew, and so does what comes out of order', async t => {
  const tail = followedTail()
  const [first, later, between] = [storedAt(1, 2), storedAt(5, 2), storedAt(3, 2)]
  tail.add(first)
  tail.add(later)
  t.equal(tail.after(at(first[0])), null)
  t.strictSame(tail.after(at(later[0])), later.slice(1))
  tail.add(between)
  t.equal(tail.after(at(later[0])), null)
})

t.test('it is bounded, and so are its pages', async t => {
  const tail = followedTail()
  const many = storedAt(1, 4 * READ_LIMITS.events + 1)
  tail.add(many)
  t.equal(tail.after(at(many[0])), null, 'the oldest went')
  const page = tail.after(at(many[many.length - READ_LIMITS.events - 10]))
  t.equal(page!.length, READ_LIMITS.events)
  const large = storedAt(many.length + 1, 20, `"${'x'.repeat(READ_LIMITS.bytes / 5)}"`)
  tail.add(large)
  t.equal(tail.after(at(large[0])), null, 'by bytes as well')
  t.equal(tail.after(at(large.at(-4)))!.length, 3)
})

t.test('a follower sees each event once and in order while two processes append', async t => {
  const { url } = await testDatabase(t)
  const logs = await Promise.all([1, 2].map(() => openPostgresEventLog({ connectionString: url })))
  for (const log of logs) t.teardown(() => log.close())
  const followed = logs.map(log => followUntil(log, null, 600))
  const write = async (index: number) => {
    for (let call = 0; call < 30; call++)
      await logs[index]!.appendMany(Array.from({ length: 1 + (call % 19) }, () => anAppend()))
  }
  await Promise.all([write(0), write(1), write(0)])
  await logs[0]!.appendMany(Array.from({ length: 100 }, () => anAppend()))
  for (const seen of await Promise.all(followed)) {
    t.strictSame(
      seen.map(({ position }) => position),
      Array.from({ length: seen.length }, (_, index) => String(index + 1)),
    )
    const stored = await logs[0]!.readStream(seen[300]!.stream, 0, 1)
    t.strictSame(stored.events[0], seen[300], 'as it stands in the log')
  }
})

t.test('a log that went backwards under a follower is noticed at the next append', async t => {
  const { url } = await testDatabase(t)
  const log = await openPostgresEventLog({ connectionString: url })
  t.teardown(() => log.close())
  await log.appendMany([anAppend(), anAppend(), anAppend()])
  let seen = 0
  const following = log.follow(
    null,
    async batch => {
      seen += batch.length
    },
    new AbortController().signal,
  )
  const rejected = t.rejects(following, { code: 'log_went_backwards' })
  while (seen < 3) await new Promise(resolve => setTimeout(resolve, 5))
  await execute(url, 'DELETE FROM rollcall_log.events WHERE position > 1')
  await log.appendMany([anAppend()])
  await rejected
})
