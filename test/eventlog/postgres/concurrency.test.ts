/** What only several sessions and processes can show: the lock orders positions, followers miss nothing. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import t, { type Test } from 'tap'
import type { EventLog, StoredEvent } from '../../../src/eventlog/event-log.ts'
import { openPostgresEventLog } from '../../../src/eventlog/postgres/postgres-event-log.ts'
import { followUntil } from '../../conformance/event-log-following.ts'
import { anAppend, anEvent, aStream, someEvents, wholeStream } from '../../support/events.ts'
import { execute, testDatabase } from '../../support/postgres.ts'

async function setup(t: Test, options: { appendTimeoutMs?: number } = {}) {
  const { url } = await testDatabase(t)
  const log = await openPostgresEventLog({ connectionString: url, ...options })
  t.teardown(() => log.close())
  const session = async () => {
    const client = new pg.Client(url)
    client.on('error', () => {})
    await client.connect()
    t.teardown(() => client.end())
    return client
  }
  return { url, log, session }
}

const APPEND_ONE = `SELECT * FROM rollcall_log.append_many(
  ARRAY['slow'], ARRAY[-1], ARRAY[1], ARRAY[1], ARRAY['slow'], ARRAY[$1::uuid], ARRAY['Slow'], ARRAY[1::smallint],
  '{}', '{}')`

/** Waits until another session stands in the queue for the append lock. */
async function someoneWaits(client: pg.Client): Promise<void> {
  const waiting = `SELECT count(*) AS count FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
    WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted`
  while (Number((await client.query(waiting)).rows[0].count) === 0);
}

t.test('S16 a slow commit before a fast one: both are followed, in the order of positions', async t => {
  const { log, session } = await setup(t)
  const slow = await session()
  const slowEvent = anEvent()
  await slow.query('BEGIN')
  await slow.query(APPEND_ONE, [slowEvent.id])
  const followed = followUntil(log, null, 2)
  const fast = anAppend()
  const appended = log.appendMany([fast])
  await someoneWaits(await session())
  t.equal(await log.head(), null, 'the fast one waits and is not seen')
  await slow.query('COMMIT')
  t.match(await appended, [{ kind: 'appended', position: '2' }])
  const seen = await followed
  t.same(
    seen.map(({ id }) => id),
    [slowEvent.id, fast.events[0]!.id],
  )
})

t.test('an append that was rolled back leaves no gap', async t => {
  const { log, session } = await setup(t)
  const slow = await session()
  await slow.query('BEGIN')
  await slow.query(APPEND_ONE, [anEvent().id])
  await slow.query('ROLLBACK')
  t.match(await log.appendMany([anAppend()]), [{ position: '1' }])
})

t.test('an append waits for the lock no longer than its timeout, and may be repeated', async t => {
  const { log, session } = await setup(t, { appendTimeoutMs: 300 })
  const holder = await session()
  await holder.query('BEGIN')
  await holder.query(APPEND_ONE, [anEvent().id])
  const append = anAppend()
  const startedAt = performance.now()
  await t.rejects(log.appendMany([append]), { code: 'log_unavailable' })
  const tookMs = performance.now() - startedAt
  t.ok(tookMs > 200 && tookMs < 1_500, `${Math.round(tookMs)} ms`)
  await holder.query('COMMIT')
  t.match(await log.appendMany([append]), [{ kind: 'appended', revision: 0 }])
  t.match(await log.appendMany([append]), [{ kind: 'appended', revision: 0 }])
  t.equal((await wholeStream(log, append.stream)).length, 1)
})

t.test('the append function refuses another isolation level', async t => {
  const { session } = await setup(t)
  const client = await session()
  await client.query('BEGIN ISOLATION LEVEL REPEATABLE READ')
  await t.rejects(client.query(APPEND_ONE, [anEvent().id]), { code: '25000' })
})

t.test('a database that defaults to another isolation level is no obstacle', async t => {
  const { url, log } = await setup(t)
  await execute(
    url,
    `ALTER ROLE CURRENT_USER IN DATABASE ${new URL(url).pathname.slice(1)}
    SET default_transaction_isolation = 'serializable'`,
  )
  const other = await openPostgresEventLog({ connectionString: url })
  t.teardown(() => other.close())
  const stream = aStream()
  await log.appendMany([anAppend({ stream })])
  const results = await Promise.all(
    [1, 2, 3].map(() => other.appendMany([anAppend({ stream, expected: 0 })])),
  )
  t.equal(results.flat().filter(({ kind }) => kind === 'appended').length, 1)
})

t.test('what Postgres alone refuses fails alone', async t => {
  const { url, log } = await setup(t)
  await execute(url, `ALTER TABLE rollcall_log.events ADD CONSTRAINT refuse CHECK (data <> '"refused"')`)
  const appends = Array.from({ length: 9 }, () => anAppend())
  appends[4] = anAppend({ events: [anEvent(), anEvent({ data: '"refused"' })] })
  const results = await log.appendMany(appends)
  t.same(
    results.map(({ kind }) => kind),
    appends.map((_, index) => (index === 4 ? 'rejected' : 'appended')),
  )
  t.equal((await followUntil(log, null, 8)).length, 8)
})

t.test('many members in one call that all are repeated or in conflict are answered soon', async t => {
  const { log } = await setup(t)
  const appends = Array.from({ length: 1_000 }, () => anAppend({ events: someEvents(4) }))
  const first = await log.appendMany(appends)
  const startedAt = performance.now()
  t.same(await log.appendMany(appends), first)
  const others = appends.map(append => ({ ...append, events: someEvents(4) }))
  t.ok((await log.appendMany(others)).every(({ kind }) => kind === 'conflict'))
  t.ok(performance.now() - startedAt < 4_000, `${Math.round(performance.now() - startedAt)} ms`)
})

t.test('followers of other processes are told of an append before they would poll', async t => {
  const { url, log } = await setup(t)
  const other = await openPostgresEventLog({ connectionString: url })
  t.teardown(() => other.close())
  const delays: number[] = []
  const done = new AbortController()
  let sentAt = 0
  const onBatch = async (batch: readonly StoredEvent[]) => {
    if (batch.length > 0) delays.push(performance.now() - sentAt)
    else if (delays.length === 0 && sentAt > 0) return
    if (delays.length === 6) return done.abort()
    sentAt = performance.now()
    void log.appendMany([anAppend()])
  }
  await other.follow(null, onBatch, done.signal)
  const median = delays.sort((one, another) => one - another)[3]!
  t.ok(median < 200, `delays of ${delays.map(Math.round)} ms`)
})

const WRITER = fileURLToPath(new URL('../../support/append-writer.ts', import.meta.url))

/** Runs a writer to its end; the ids it had acknowledged. */
async function runWriter(url: string, count: number): Promise<string[]> {
  const child = spawn(process.execPath, ['--import=tsx', WRITER, url, String(count)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let output = ''
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    output += chunk
  })
  const [code] = await once(child, 'close')
  if (code !== 0) throw new Error(`the writer ended with ${code}`)
  return output.split('\n').filter(Boolean)
}

t.test('several processes append: followers get each event once, in the order of positions', async t => {
  const { url, log } = await setup(t)
  const followers = [followAll(log, 4_500), followAll(log, 4_500)]
  const written = (await Promise.all([1, 2, 3].map(() => runWriter(url, 1_500)))).flat()
  t.equal(new Set(written).size, 4_500)
  for (const seen of await Promise.all(followers)) {
    t.equal(seen.length, 4_500, 'as many as were written')
    t.same(seen.map(({ id }) => id).sort(), [...written].sort(), 'each once')
    t.ok(
      seen.every(({ position }, index) => position === String(index + 1)),
      'positions rise without a gap',
    )
  }
})

/** Follows to the count and then one idle call further, so that a doubled event would show. */
async function followAll(log: EventLog, count: number): Promise<StoredEvent[]> {
  const seen: StoredEvent[] = []
  const done = new AbortController()
  const onBatch = async (batch: readonly StoredEvent[]) => {
    seen.push(...batch)
    if (batch.length === 0 && seen.length >= count) done.abort()
  }
  await log.follow(null, onBatch, done.signal)
  return seen
}
