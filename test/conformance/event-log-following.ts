/** Conformance of followers: every event once and in order, from where they stand, as long as they want. */
import type { Test } from 'tap'
import {
  type Checkpoint,
  type EventLog,
  FOLLOW_IDLE_MS,
  READ_LIMITS,
  type StoredEvent,
} from '../../src/eventlog/event-log.ts'
import { anAppend, anEvent, someEvents } from '../support/events.ts'
import type { MakeLog } from './event-log.ts'

export async function following(t: Test, makeLog: MakeLog): Promise<void> {
  await t.test('from the start, every event comes once and in order', t => fromTheStart(t, makeLog))
  await t.test('what is appended meanwhile comes soon', t => live(t, makeLog))
  await t.test('from a checkpoint, what comes after it', t => fromACheckpoint(t, makeLog))
  await t.test('a checkpoint that is not what it was is refused', t => wentBackwards(t, makeLog))
  await t.test('batches come one at a time and are bounded', t => oneAtATime(t, makeLog))
  await t.test('batches are bounded by bytes', t => boundedByBytes(t, makeLog))
  await t.test('a batch that cannot be handled ends it', async t => {
    const log = await makeLog(t)
    await log.appendMany([anAppend()])
    const refuse = () => Promise.reject(new Error('cannot handle it'))
    await t.rejects(log.follow(null, refuse, new AbortController().signal), { message: 'cannot handle it' })
  })
  await t.test('an aborted signal ends it', t => aborted(t, makeLog))
  await t.test('at the end it calls with an empty batch now and then', t => idle(t, makeLog))
  await t.test('closing the log ends it', async t => {
    const log = await makeLog(t)
    const batch = async () => {
      void log.close()
    }
    await log.follow(null, batch, new AbortController().signal)
  })
}

/** Follows until so many events have come. */
export async function followUntil(
  log: EventLog,
  from: Checkpoint | null,
  count: number,
): Promise<StoredEvent[]> {
  const seen: StoredEvent[] = []
  const done = new AbortController()
  const onBatch = async (batch: readonly StoredEvent[]) => {
    seen.push(...batch)
    if (seen.length >= count) done.abort()
  }
  await log.follow(from, onBatch, done.signal)
  return seen
}

const ids = (events: readonly { id: string }[]): string[] => events.map(({ id }) => id)
/** A position is one number, or EventStoreDB's two, of which the first rises. */
const placeOf = ({ position }: StoredEvent): bigint => BigInt(position.split('/')[0]!)
const positionsRise = (events: readonly StoredEvent[]): boolean =>
  events.every((event, index) => index === 0 || placeOf(event) > placeOf(events[index - 1]!))

async function fromTheStart(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  const appends = Array.from({ length: 900 }, () => anAppend({ events: someEvents(4) }))
  await log.appendMany(appends)
  const seen = await followUntil(log, null, 3_600)
  t.same(ids(seen), ids(appends.flatMap(({ events }) => events)))
  t.ok(positionsRise(seen))
  t.match(seen[5], { ...appends[1]!.events[1], stream: appends[1]!.stream, revision: 1 })
}

async function live(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  const sent: string[] = []
  const seen: string[] = []
  const done = new AbortController()
  const startedAt = performance.now()
  const onBatch = async (batch: readonly StoredEvent[]) => {
    seen.push(...ids(batch))
    if (seen.length < sent.length) return
    if (sent.length === 40) return done.abort()
    const append = anAppend({ events: someEvents(2) })
    sent.push(...ids(append.events))
    void log.appendMany([append])
  }
  await log.follow(null, onBatch, done.signal)
  t.same(seen, sent)
  const tookMs = performance.now() - startedAt
  t.ok(
    tookMs < 20 * FOLLOW_IDLE_MS * 0.7,
    `20 rounds in ${Math.round(tookMs)} ms: it does not wait for a poll`,
  )
}

const checkpointOf = (log: EventLog, { position, id }: StoredEvent): Checkpoint => ({
  logId: log.id,
  position,
  eventId: id,
})

async function fromACheckpoint(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  const { events } = anAppend({ events: someEvents(10) })
  await log.appendMany([anAppend({ events })])
  const all = await followUntil(log, null, 10)
  for (const index of [0, 4, 8]) {
    const rest = await followUntil(log, checkpointOf(log, all[index]!), 9 - index)
    t.same(ids(rest), ids(events.slice(index + 1)), `after event ${index}`)
  }
  const head = await log.head()
  t.same(head, checkpointOf(log, all[9]!))
  const next = followUntil(log, head, 1)
  const later = anAppend()
  await log.appendMany([later])
  t.same(ids(await next), ids(later.events), 'from the head, what comes later')
}

async function wentBackwards(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  const other = await makeLog(t)
  await log.appendMany([anAppend({ events: someEvents(3) })])
  await other.appendMany([anAppend({ events: someEvents(9) })])
  const [first, second] = (await followUntil(log, null, 3)) as [StoredEvent, StoredEvent]
  const beyond = (await other.head())!.position
  const rows: [string, Checkpoint][] = [
    ['of another log', { ...checkpointOf(log, first), logId: other.id }],
    ['with another event at its position', { ...checkpointOf(log, first), eventId: second.id }],
    ['at a position that is gone', { ...checkpointOf(log, first), position: beyond }],
    ['at a position that never was one', { ...checkpointOf(log, first), position: 'x' }],
  ]
  for (const [title, checkpoint] of rows)
    await t.rejects(followUntil(log, checkpoint, 1), { code: 'log_went_backwards' }, title)
}

async function oneAtATime(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  for (let count = 0; count < 3; count++) await log.appendMany(Array.from({ length: 900 }, () => anAppend()))
  let running = 0
  let events = 0
  const done = new AbortController()
  const onBatch = async (batch: readonly StoredEvent[]) => {
    if (++running > 1) t.fail('a batch came while another was being handled')
    if (batch.length > READ_LIMITS.events) t.fail(`a batch of ${batch.length}`)
    await new Promise(resolve => setImmediate(resolve))
    events += batch.length
    if (events === 2_700) done.abort()
    running--
  }
  await log.follow(null, onBatch, done.signal)
  t.equal(events, 2_700)
}

async function boundedByBytes(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  const data = JSON.stringify('x'.repeat(800 * 1024))
  for (let count = 0; count < 4; count++)
    await log.appendMany(Array.from({ length: 9 }, () => anAppend({ events: someEvents(1, { data }) })))
  const sizes: number[] = []
  let events = 0
  const done = new AbortController()
  const onBatch = async (batch: readonly StoredEvent[]) => {
    sizes.push(batch.length)
    events += batch.length
    if (events === 36) done.abort()
  }
  await log.follow(null, onBatch, done.signal)
  t.equal(events, 36)
  t.ok(Math.max(...sizes) <= READ_LIMITS.bytes / data.length + 1, `batches of ${sizes}`)
}

async function aborted(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  await log.follow(null, () => t.fail('it was aborted before') as never, AbortSignal.abort())
  await log.appendMany([anAppend({ events: [anEvent()] })])
  const waiting = new AbortController()
  const followed = log.follow(
    null,
    async batch => {
      if (batch.length === 0) waiting.abort()
    },
    waiting.signal,
  )
  await followed
  t.pass('while it waited')
  const handling = new AbortController()
  let handled = false
  await log.follow(
    null,
    async () => {
      handling.abort()
      await new Promise(resolve => setImmediate(resolve))
      handled = true
    },
    handling.signal,
  )
  t.ok(handled, 'the batch at hand is finished first')
}

async function idle(t: Test, makeLog: MakeLog): Promise<void> {
  const log = await makeLog(t)
  await log.appendMany([anAppend()])
  const calls: number[] = []
  const done = new AbortController()
  const onBatch = async (batch: readonly StoredEvent[]) => {
    if (batch.length > 0 !== (calls.length === 0)) t.fail('the event comes first and once')
    calls.push(performance.now())
    if (calls.length === 5) done.abort()
  }
  await log.follow(null, onBatch, done.signal)
  const waits = calls.slice(1).map((at, index) => at - calls[index]!)
  t.ok(
    waits.every(wait => wait > FOLLOW_IDLE_MS / 4 && wait < FOLLOW_IDLE_MS * 1.5),
    `waits of ${waits.map(Math.round)} ms`,
  )
}
