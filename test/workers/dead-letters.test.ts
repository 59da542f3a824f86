import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { IncomingRecord } from '../../src/broker/broker.ts'
import {
  type DeadLetter,
  type DeadLetterReason,
  type LetterQuery,
  LISTED_BYTES,
  letterIdOf,
} from '../../src/workers/dead-letters.ts'
import { PostgresDeadLetters } from '../../src/workers/postgres/dead-letters.ts'
import { signalled, startParts, until } from '../support/service-parts.ts'
import { aRecord } from './worker-event-records.ts'

async function starting(t: Test) {
  const parts = await startParts(t)
  const deadLetters = new PostgresDeadLetters(parts.pool)
  return {
    ...parts,
    deadLetters,
    keep: async (
      records: readonly IncomingRecord[],
      { code = 'invalid_json' as DeadLetterReason, message = 'wrong', taskId = null as string | null } = {},
    ) => {
      await deadLetters.keep(records.map(record => ({ record, fault: { code, message, taskId } })))
      return records.map(letterIdOf)
    },
    list: (query: Partial<LetterQuery> = {}) =>
      deadLetters.list({ status: 'waiting', reason: null, taskId: null, before: null, limit: 50, ...query }),
    one: async (letterId: string): Promise<DeadLetter> => (await deadLetters.read([letterId]))[0]!,
    /** Statements that wait for the lock of another. */
    waitingForLock: async () =>
      Number(
        (
          await parts.rows<{ count: string }>(
            `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
          )
        )[0]!.count,
      ),
  }
}

const some = (count: number): IncomingRecord[] =>
  Array.from({ length: count }, (_, index) => aRecord({ value: Buffer.from(`{${index}`) }))
const idsOf = (letters: readonly DeadLetter[]): string[] => letters.map(({ letterId }) => letterId)

t.test('a list has the newest first, by status, reason and task', async t => {
  const { keep, list, deadLetters } = await starting(t)
  const taskId = randomUUID()
  const json = await keep(some(3))
  const lost = await keep(some(2), { code: 'not_found', taskId })
  const event = await keep(some(1), { code: 'invalid_event', taskId })
  const all = [...json, ...lost, ...event].reverse()
  t.strictSame(idsOf((await list()).letters), all)
  t.strictSame(idsOf((await list({ reason: 'not_found' })).letters), lost.toReversed())
  t.strictSame(idsOf((await list({ taskId })).letters), [...lost, ...event].reverse())
  t.strictSame(idsOf((await list({ taskId, reason: 'invalid_event' })).letters), event)
  t.strictSame(await list({ taskId: randomUUID() }), { letters: [], next: null })
  t.equal(await deadLetters.waiting(), 6)
  await deadLetters.discard([json[0]!], 'ada', 'a test')
  t.equal(await deadLetters.waiting(), 5)
  t.strictSame(idsOf((await list({ status: 'discarded' })).letters), [json[0]])
  t.strictSame(idsOf((await list()).letters), all.slice(0, -1))
})

t.test('a page of a list is bounded whatever the records hold', async t => {
  const { keep, list, one } = await starting(t)
  const record = aRecord({
    key: Buffer.alloc(3_000, 1),
    value: Buffer.alloc(2_000_000, 2),
    headers: [['large', Buffer.alloc(100_000)]],
  })
  const [letterId] = await keep([record], { message: `\0\ud800${'x'.repeat(5_000)}` })
  const [listed] = (await list()).letters
  t.strictSame(listed?.record.key, record.key?.subarray(0, LISTED_BYTES))
  t.strictSame(listed?.record.value, record.value?.subarray(0, LISTED_BYTES))
  t.match(listed, { valueBytes: 2_000_000, record: { headers: [] } })
  t.ok(Buffer.byteLength(listed?.fault.message ?? '') <= 1_000)
  t.strictSame((await one(letterId!)).record, record, 'one letter has all of it')
})

t.test('paging neither skips nor repeats while letters come and go', async t => {
  const { keep, list, deadLetters } = await starting(t)
  const there = await keep(some(60))
  const seen: string[] = []
  let come = 0
  for (let before: string | null | undefined; before !== null; ) {
    const page = await list({ before: before ?? null, limit: 7 })
    seen.push(...idsOf(page.letters))
    before = page.next
    await keep(some(5))
    come += 5
    // One that was seen, and one that was not.
    await deadLetters.discard([seen.at(-2)!, there[0]!], 'ada', 'x')
  }
  t.strictSame(seen, there.slice(1).reverse(), 'all that were there and stayed, once')
  t.ok(come > 40)
  t.strictSame(await list({ before: '0' }), { letters: [], next: null })
  t.match(await list({ limit: 1_000 }), { next: null })
})

t.test('a redrive keeps what was said of each letter, and only of those that wait', async t => {
  const { keep, one, deadLetters } = await starting(t)
  const records = some(4)
  const ids = await keep(records)
  await deadLetters.discard([ids[3]!], 'ada', 'x')
  let handed: readonly DeadLetter[] = []
  await deadLetters.redrive([...ids.toReversed(), randomUUID()], 'bob', async letters => {
    handed = letters
    return [
      { kind: 'settled', because: 'accepted' },
      { kind: 'remains', fault: { code: 'not_found', message: 'No task\0.', taskId: randomUUID() } },
      { kind: 'untried' },
    ]
  })
  t.strictSame(
    handed.map(({ record }) => record),
    records.slice(0, 3),
    'whole, the oldest first',
  )
  t.match(await one(ids[0]!), {
    status: 'redriven',
    redrives: 1,
    redrivenAt: Date,
    settled: { at: Date, by: 'bob', because: 'accepted' },
  })
  t.match(await one(ids[1]!), {
    status: 'waiting',
    redrives: 1,
    redrivenAt: Date,
    settled: null,
    fault: { code: 'not_found', message: 'No task�.', taskId: String },
  })
  t.match(await one(ids[2]!), { status: 'waiting', redrives: 0, redrivenAt: null })
  t.match(await one(ids[3]!), { status: 'discarded', redrives: 0 })
  await t.rejects(
    deadLetters.redrive(ids, 'bob', () => Promise.reject(new Error('away'))),
    /away/,
  )
  t.match(await one(ids[1]!), { status: 'waiting', redrives: 1 }, 'nothing was tried')
  await deadLetters.redrive([], 'bob', async letters => {
    t.strictSame(letters, [])
    return []
  })
})

t.test('who discards during a redrive waits for it, and the other way round: one of them has it', async t => {
  const { keep, one, deadLetters, waitingForLock } = await starting(t)
  const [first, second] = (await keep(some(2))) as [string, string]
  const handled = signalled()
  const redriving = deadLetters.redrive([first, second], 'bob', async () => {
    await handled.promise
    return [{ kind: 'settled', because: 'accepted' }, { kind: 'untried' }]
  })
  let locked = 0
  const discarding = deadLetters.discard([second, first], 'ada', 'x')
  const again = deadLetters.redrive([first], 'eve', async letters => {
    t.strictSame(letters, [], 'it does not wait any more')
    return []
  })
  await until('both wait', async () => {
    locked = Math.max(locked, await waitingForLock())
    return locked === 2
  })
  handled.resolve()
  await redriving
  t.strictSame(await discarding, [second])
  await again
  t.match(await one(first), { status: 'redriven', redrives: 1, settled: { by: 'bob' } })
  t.match(await one(second), { status: 'discarded', settled: { by: 'ada' } })
})

t.test('redrives and discards of many at once, in any order: no deadlock, one outcome each', async t => {
  const { keep, deadLetters, list } = await starting(t)
  const ids = await keep(some(40))
  const redriven: string[] = []
  const discarded: string[] = []
  await Promise.all(
    Array.from({ length: 12 }, async (_, nth) => {
      const mine = nth % 2 === 0 ? ids : ids.toReversed()
      for (let from = 0; from < 40; from += 10) {
        const some = mine.slice(from, from + 10)
        if (nth % 3 === 0) discarded.push(...(await deadLetters.discard(some, 'ada', 'x')))
        else
          await deadLetters.redrive(some, 'bob', async letters => {
            redriven.push(...idsOf(letters))
            return letters.map(() => ({ kind: 'settled', because: 'accepted' }))
          })
      }
    }),
  )
  t.strictSame([...redriven, ...discarded].sort(), ids.toSorted())
  const settled = async (status: LetterQuery['status']) => idsOf((await list({ status })).letters).sort()
  t.strictSame(await settled('redriven'), redriven.toSorted())
  t.strictSame(await settled('discarded'), discarded.toSorted())
})

t.test('texts of people are made storable', async t => {
  const { keep, one, deadLetters } = await starting(t)
  const [id] = (await keep(some(1))) as [string]
  t.strictSame(await deadLetters.discard([id], 'a\0', `because\0\ud800${'y'.repeat(3_000)}`), [id])
  t.match(await one(id), { settled: { by: 'a�', because: /^because��y{3000}$/ } })
  t.strictSame(await deadLetters.discard([id], 'ada', 'again'), [])
  t.strictSame(await deadLetters.statuses([id, randomUUID()]), [{ letterId: id, status: 'discarded' }])
  t.strictSame(await deadLetters.statuses([]), [])
})
