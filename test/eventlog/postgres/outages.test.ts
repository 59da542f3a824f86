/** The database goes away, is killed, loses an answer, or comes back as another: nothing is lost or doubled. */
import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { EventLog, StoredEvent } from '../../../src/eventlog/event-log.ts'
import { openPostgresEventLog } from '../../../src/eventlog/postgres/postgres-event-log.ts'
import { followUntil } from '../../conformance/event-log-following.ts'
import { anAppend, appendUntilAnswered, someEvents, wholeStream } from '../../support/events.ts'
import { execute, testDatabase, testServer } from '../../support/postgres.ts'
import { startTcpProxy } from '../../support/tcp-proxy.ts'

const UNAVAILABLE = { code: 'log_unavailable' }

async function open(t: Test, url: string, options: { appendTimeoutMs?: number } = {}): Promise<EventLog> {
  const log = await openPostgresEventLog({ connectionString: url, ...options })
  t.teardown(() => log.close())
  return log
}

/** Kills a server at once: its first process and every one that it started. */
function killAll(pid: number): void {
  const children = readdirSync('/proc').filter(entry => {
    if (!/^\d+$/.test(entry)) return false
    try {
      return readFileSync(`/proc/${entry}/stat`, 'utf8').split(') ').at(-1)!.split(' ')[1] === String(pid)
    } catch {
      return false
    }
  })
  for (const each of [pid, ...children.map(Number)]) {
    try {
      process.kill(each, 'SIGKILL')
    } catch {
      // It has ended by itself.
    }
  }
}

t.test('the server is killed under load: nothing acknowledged is lost, nothing doubled', async t => {
  const server = await testServer(t)
  const log = await open(t, server.url, { appendTimeoutMs: 1_000 })
  const followed: StoredEvent[] = []
  const done = new AbortController()
  const following = log.follow(
    null,
    async batch => {
      followed.push(...batch)
    },
    done.signal,
  )
  const acknowledged: string[] = []
  let writing = true
  const writers = Array.from({ length: 4 }, async () => {
    while (writing) acknowledged.push(await appendUntilAnswered(log))
  })
  for (let round = 0; round < 2; round++) {
    const before = acknowledged.length
    while (acknowledged.length < before + 300) await sleep(5)
    killAll(server.pid)
    await server.exited
    await server.restart()
  }
  const before = acknowledged.length
  while (acknowledged.length < before + 100) await sleep(5)
  writing = false
  await Promise.all(writers)
  const stored = (await execute(server.url, 'SELECT id FROM rollcall_log.events')).map(
    ({ id }) => id as string,
  )
  t.same(
    acknowledged.filter(id => !new Set(stored).has(id)),
    [],
    `${acknowledged.length} acknowledged are there`,
  )
  t.equal(new Set(stored).size, stored.length, 'each once')
  while (followed.length < stored.length) await sleep(5)
  done.abort()
  await following
  t.equal(followed.length, stored.length, 'the follower got each')
  t.ok(followed.every(({ position }, index) => position === String(index + 1)))
})

t.test('the server is stopped for a while: appends answer in time and work again', async t => {
  const server = await testServer(t)
  const log = await open(t, server.url, { appendTimeoutMs: 1_000 })
  const next = followUntil(log, await log.head(), 2)
  await appendUntilAnswered(log)
  await server.stop()
  const append = anAppend()
  for (let attempt = 0; attempt < 5; attempt++) {
    const startedAt = performance.now()
    await t.rejects(log.appendMany([append]), UNAVAILABLE)
    t.ok(performance.now() - startedAt < 1_500)
  }
  await t.rejects(log.readStream(append.stream, 0, 1), UNAVAILABLE)
  await t.rejects(log.head(), UNAVAILABLE)
  await t.rejects(openPostgresEventLog({ connectionString: server.url }), UNAVAILABLE)
  await sleep(1_000)
  await server.restart()
  await appendUntilAnswered(log, append)
  t.match(await log.appendMany([append]), [{ kind: 'appended', revision: 0 }], 'the same bytes again')
  t.equal((await wholeStream(log, append.stream)).length, 1)
  t.equal((await next).at(-1)?.id, append.events[0]!.id, 'the follower goes on')
})

async function behindProxy(t: Test) {
  const { url } = await testDatabase(t)
  const address = new URL(url)
  const proxy = await startTcpProxy(t, Number(address.port))
  address.hostname = '127.0.0.1'
  address.port = String(proxy.port)
  return { url, proxy, log: await open(t, address.href, { appendTimeoutMs: 500 }) }
}

t.test('S14 the answer to an append is lost: the same bytes again are one event', async t => {
  const { proxy, log, url } = await behindProxy(t)
  await log.appendMany([anAppend()])
  const append = anAppend({ events: someEvents(2) })
  proxy.loseAnswers()
  await t.rejects(log.appendMany([append]), UNAVAILABLE)
  t.equal(await countOf(url, append.stream), 2, 'it was stored')
  proxy.restore()
  t.match(await log.appendMany([append]), [{ kind: 'appended', revision: 1 }])
  t.equal(await countOf(url, append.stream), 2)
})

const countOf = async (url: string, stream: string): Promise<number> =>
  Number(
    (await execute(url, 'SELECT count(*) FROM rollcall_log.events WHERE stream = $1', [stream]))[0]!.count,
  )

t.test('the network hangs: an append answers in time, and a follower goes on when it is back', async t => {
  const { proxy, log } = await behindProxy(t)
  await log.appendMany([anAppend()])
  proxy.hold()
  const append = anAppend()
  const startedAt = performance.now()
  await t.rejects(log.appendMany([append]), UNAVAILABLE)
  const tookMs = performance.now() - startedAt
  t.ok(tookMs < 1_500, `${Math.round(tookMs)} ms`)
  const followed = followUntil(log, null, 2)
  proxy.restore()
  await appendUntilAnswered(log, append)
  t.equal((await followed).length, 2)
})

t.test('a log behind a network that hangs can be closed', async t => {
  const { proxy, log } = await behindProxy(t)
  const followed = log.follow(null, async () => {}, new AbortController().signal)
  await appendUntilAnswered(log)
  proxy.hold()
  const startedAt = performance.now()
  await log.close()
  await followed
  t.ok(performance.now() - startedAt < 4_000)
})

t.test('a log that went backwards while it was followed is noticed', async t => {
  const cases: [string, string][] = [
    ['emptied', 'TRUNCATE rollcall_log.events'],
    ['cut off at its end', 'DELETE FROM rollcall_log.events WHERE position > 3'],
    ['rewritten at its end', 'UPDATE rollcall_log.events SET id = gen_random_uuid() WHERE position = 5'],
  ]
  for (const [title, sql] of cases) {
    const { url } = await testDatabase(t)
    const log = await open(t, url)
    await log.appendMany([anAppend({ events: someEvents(5) })])
    let changed = false
    const onBatch = async (batch: readonly StoredEvent[]) => {
      if (batch.length > 0 || changed) return
      changed = true
      await execute(url, sql)
    }
    const followed = log.follow(null, onBatch, new AbortController().signal)
    await t.rejects(followed, { code: 'log_went_backwards' }, title)
  }
})

t.test('another log at the same address is noticed by a follower that waits for its first event', async t => {
  const { url } = await testDatabase(t)
  const log = await open(t, url)
  const onBatch = async () => {
    await execute(url, 'UPDATE rollcall_log.log_identity SET id = gen_random_uuid()')
  }
  await t.rejects(log.follow(null, onBatch, new AbortController().signal), { code: 'log_went_backwards' })
})

t.test('the connections of a log are ended one by one: it recovers by itself', async t => {
  const { url } = await testDatabase(t)
  const log = await open(t, url)
  const followed = followUntil(log, null, 40)
  for (let round = 0; round < 20; round++) {
    await appendUntilAnswered(log)
    const others = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE datname = current_database() AND pid <> pg_backend_pid()`
    const ended = execute(url, others)
    await appendUntilAnswered(log)
    await ended
  }
  t.equal((await followed).length, 40)
})

t.test('a database that is not migrated says so', async t => {
  const { url } = await testDatabase(t, { migrated: false })
  await t.rejects(openPostgresEventLog({ connectionString: url }), { code: '42P01' })
})
