import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import t, { type Test } from 'tap'
import type { TaskEvent } from '../../src/domain/events.ts'
import { encodeEvent, streamOf } from '../../src/eventlog/codec.ts'
import { readLag } from '../../src/projections/lag.ts'
import { PostgresReadModel } from '../../src/projections/postgres/postgres-read-model.ts'
import { refold } from '../../src/projections/projection.ts'
import { Projector } from '../../src/projections/projector.ts'
import { note, start, submitted, succeed } from '../domain/specification.ts'
import { differences } from '../support/compare.ts'
import { testDatabase } from '../support/postgres.ts'
import {
  ask,
  mustBe,
  openParts,
  type Parts,
  recordingLogger,
  SILENT,
  signalled,
  startParts,
  submitTasks,
  until,
  wrapLog,
} from '../support/service-parts.ts'

const SCRIPT = fileURLToPath(new URL('./projector-process.ts', import.meta.url))

/** A projector in a process of its own, and what it says. */
function startProcess(t: Test, url: string, leaseMs: number, what = '') {
  const child = spawn(process.execPath, ['--import=tsx', SCRIPT, url, String(leaseMs), what], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const said: string[] = []
  createInterface({ input: child.stdout! }).on('line', line => said.push(line))
  t.teardown(() => kill(child))
  /** Waits until a word was said so often. */
  const hears = (word: string, times = 1) =>
    until(`it says ${word}`, () => {
      if (child.exitCode !== null || child.signalCode !== null) throw new Error(`it ended before ${word}`)
      return said.filter(one => one === word).length >= times
    })
  return { child, said, hears }
}

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

const checkpoint = async ({ rows }: Parts) =>
  (await rows<{ holder: string | null; position: string }>('SELECT * FROM rollcall.projectors'))[0]!

t.test('of two projectors one is active; when it stops the other takes over at once', async t => {
  const parts = await startParts(t)
  const other = await openParts(t, parts.url)
  parts.projector.start()
  await until('one projects', () => parts.projector.mode === 'projecting')
  other.projector.start()
  await submitTasks(parts.engine, 10)
  await parts.projected()
  t.strictSame([parts.projector.mode, other.projector.mode], ['projecting', 'standing_by'])
  await parts.projector.stop()
  t.equal(parts.projector.mode, 'stopped')
  // Long before the lease of five seconds would have ended.
  const since = performance.now()
  await until('the other projects', () => other.projector.mode === 'projecting')
  t.ok(performance.now() - since < 4_000, 'the lease was given up')
  await submitTasks(parts.engine, 10)
  await parts.projected()
  t.strictSame(await differences(parts.pool, parts.log), [])
})

t.test('a projector may be started and stopped twice, and started again', async t => {
  const parts = await startParts(t)
  const { projector } = parts
  await projector.stop()
  for (let time = 0; time < 2; time++) {
    projector.start()
    projector.start()
    await submitTasks(parts.engine, 1)
    await parts.projected()
    await Promise.all([projector.stop(), projector.stop()])
    t.equal(projector.mode, 'stopped')
  }
  t.equal((await checkpoint(parts)).holder, null)
})

t.test('the lease is kept while nothing is new', async t => {
  const parts = await startParts(t, { projector: { leaseMs: 1_500 } })
  parts.projector.start()
  const other = new Projector({
    log: parts.log,
    readModel: new PostgresReadModel(parts.pool),
    logger: SILENT,
    standbyMs: 20,
    leaseMs: 1_500,
  })
  t.teardown(() => other.stop())
  await until('it projects', () => parts.projector.mode === 'projecting')
  other.start()
  const renewed = await parts.rows<{ at: Date }>('SELECT held_until AS at FROM rollcall.projectors')
  await until('two leases have passed', async () => {
    const [row] = await parts.rows<{ passed: boolean }>(
      `SELECT clock_timestamp() > $1::timestamptz + interval '1500 milliseconds' AS passed`,
      [renewed[0]!.at],
    )
    return row!.passed
  })
  t.strictSame([parts.projector.mode, other.mode], ['projecting', 'standing_by'])
})

t.test('a batch that outlasts the lease is kept where nobody else has taken it', async t => {
  const { logger, lines } = recordingLogger()
  const parts = await startParts(t, { logger, projector: { leaseMs: 200 } })
  await parts.rows(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
                    AS $$ BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END $$`)
  await parts.rows('CREATE TRIGGER slow AFTER INSERT ON rollcall.tasks EXECUTE FUNCTION slow()')
  parts.projector.start()
  await submitTasks(parts.engine, 20)
  await parts.projected()
  t.strictSame(
    lines.filter(({ msg }) => msg === 'standing by'),
    [],
  )
})

t.test(
  'a stopped projector (SIGSTOP) is replaced after its lease, and stands by when it comes back',
  async t => {
    const leaseMs = 700
    const parts = await startParts(t, { projector: { leaseMs } })
    const first = startProcess(t, parts.url, leaseMs)
    await first.hears('projecting')
    const ids = await submitTasks(parts.engine, 50)
    await first.hears('moved')
    first.child.kill('SIGSTOP')
    parts.projector.start()
    await engineWork(parts, ids)
    await parts.projected()
    t.equal(parts.projector.mode, 'projecting')
    const { holder } = await checkpoint(parts)
    first.child.kill('SIGCONT')
    // Fenced at its next step, or told by the server that its transaction was ended meanwhile.
    const steps = new Set(['projecting', 'standing_by'])
    await until('it stands by', () => first.said.findLast(word => steps.has(word)) === 'standing_by')
    await engineWork(parts, await submitTasks(parts.engine, 50))
    await parts.projected()
    t.equal((await checkpoint(parts)).holder, holder, 'it did not take the lease back')
    t.equal(parts.projector.mode, 'projecting')
    t.strictSame(await differences(parts.pool, parts.log), [], 'nothing is applied twice')
  },
)

async function engineWork({ engine }: Parts, ids: readonly string[]): Promise<void> {
  for (const command of [start(), succeed()])
    for (const answer of await engine.executeMany(ids.map(id => ask(id, command)))) mustBe('accepted', answer)
}

t.test(
  'a projector that is stopped in the middle of a transaction holds the others up no longer than its lease',
  async t => {
    const leaseMs = 700
    const parts = await startParts(t, { projector: { leaseMs } })
    const ids = await submitTasks(parts.engine, 30)
    const first = startProcess(t, parts.url, leaseMs, 'stop in a transaction')
    await first.hears('stopping')
    const since = performance.now()
    parts.projector.start()
    await parts.projected()
    t.ok(performance.now() - since < 10_000, `${Math.round(performance.now() - since)} ms`)
    first.child.kill('SIGCONT')
    await engineWork(parts, ids)
    await parts.projected()
    t.equal(parts.projector.mode, 'projecting')
    t.strictSame(await differences(parts.pool, parts.log), [])
  },
)

t.test('a read model that is emptied under an idle projector is rebuilt without a new event', async t => {
  const parts = await startParts(t, { projector: { leaseMs: 300 } })
  await submitTasks(parts.engine, 20)
  parts.projector.start()
  await parts.projected()
  await parts.rows('TRUNCATE rollcall.tasks, rollcall.deadlines, rollcall.ready, rollcall.projectors')
  await until('the rows are there again', async () => {
    const [row] = await parts.rows<{ tasks: number }>('SELECT count(*)::int AS tasks FROM rollcall.tasks')
    return row!.tasks === 20
  })
  t.strictSame(await differences(parts.pool, parts.log), [])
})

t.test(
  'S69 the connections of a projector are ended again and again: it goes on from its checkpoint',
  async t => {
    const parts = await startParts(t, { projector: { leaseMs: 300 } })
    const admin = new pg.Client(parts.url)
    await admin.connect()
    t.teardown(() => admin.end())
    parts.projector.start()
    let working = true
    const work = (async () => {
      while (working) await engineWork(parts, await submitTasks(parts.engine, 40))
    })()
    for (let time = 0; time < 10; time++) {
      await admin.query(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = ''`,
      )
      await new Promise(resolve => setTimeout(resolve, 10 + time * 7))
    }
    working = false
    await work
    await parts.projected()
    t.strictSame(await differences(parts.pool, parts.log), [])
  },
)

t.test('S37 an event that cannot be read sets its task aside, visibly, and the others go on', async t => {
  const { logger, lines } = recordingLogger()
  const parts = await startParts(t, { logger })
  const { engine, rows, pool, log } = parts
  const [sound, poisoned] = (await submitTasks(engine, 2)) as [string, string]
  await engine.executeMany([sound, poisoned].map(id => ask(id, start())))
  const [event] = await rows<{ data: string }>(
    'SELECT data FROM rollcall_log.events WHERE stream = $1 AND revision = 1',
    [streamOf(poisoned)],
  )
  await rows(`UPDATE rollcall_log.events SET data = '{"spoilt":true}' WHERE stream = $1 AND revision = 1`, [
    streamOf(poisoned),
  ])
  // As another process finds it: without a fold in its cache.
  const other = await openParts(t, parts.url, { logger })
  other.projector.start()
  await engine.executeMany([sound, poisoned].map(id => ask(id, note())))
  await other.projected()
  t.match(await rows('SELECT task_id, reason FROM rollcall.set_aside'), [
    { task_id: poisoned, reason: /cannot be read/ },
  ])
  t.match(await rows('SELECT task_id, revision FROM rollcall.tasks ORDER BY revision DESC'), [
    { task_id: sound, revision: 2 },
  ])
  t.ok(lines.some(({ level, msg }) => level === 50 && /set aside/.test(msg)))
  mustBe('accepted', await engine.execute(ask(sound, succeed())))
  await other.projected()
  t.strictSame(await differences(pool, log), [], 'the others are what they should be')

  await t.test('once it can be read again it is folded in place and set aside no longer', async t => {
    t.strictSame(await refold(pool, ids => other.engine.readMany(ids), [poisoned]), [poisoned], 'not yet')
    await rows('UPDATE rollcall_log.events SET data = $2 WHERE stream = $1 AND revision = 1', [
      streamOf(poisoned),
      event!.data,
    ])
    t.strictSame(await refold(pool, ids => other.engine.readMany(ids), [poisoned]), [])
    t.strictSame(await rows('SELECT * FROM rollcall.set_aside'), [])
    t.strictSame(await differences(pool, log), [])
  })
})

t.test('S37 a task whose row the database refuses is set aside, and stops nobody', async t => {
  const parts = await startParts(t)
  const { engine, rows, pool } = parts
  const bad = await submitTasks(engine, 3, index => ({
    // What the edges refuse: an integer too large, a year with five digits, a character that no text holds.
    priority: index === 0 ? 3_000_000_000 : 0,
    runAt: index === 1 ? 8_000_000_000_000_000 : null,
    tenant: null,
  }))
  await engine.execute(ask(bad[2]!, start({ worker: 'nul\u0000' })))
  const sound = await submitTasks(engine, 3)
  parts.projector.start()
  await parts.projected()
  await engineWork(parts, sound)
  await parts.projected()
  const aside = await rows<{ task_id: string }>('SELECT task_id FROM rollcall.set_aside')
  t.strictSame(aside.map(row => row.task_id).sort(), [...bad].sort())
  t.strictSame(await rows(`SELECT count(*)::int AS done FROM rollcall.tasks WHERE status = 'SUCCESS'`), [
    { done: 3 },
  ])
  t.not((await differences(pool, parts.log)).length, 0, 'it is no secret')
})

t.test('S16 an append that commits late does not get lost behind a later one', async t => {
  const { url } = await testDatabase(t)
  const parts = await openParts(t, url)
  parts.projector.start()
  const slow = new pg.Client(url)
  await slow.connect()
  t.teardown(() => slow.end())
  const taskId = '018f4e7a-0000-7000-8000-000000000016'
  const fact = submitted()
  const { encoded } = encodeEvent(
    streamOf(taskId),
    0,
    '018f4e7a-0000-7000-8000-0000000000e1',
    fact.event as TaskEvent,
    {
      at: Date.now(),
      actor: fact.actor,
      source: 'http',
      commandId: 'slow',
      correlationId: null,
      causationId: null,
      trace: null,
      prevHash: null,
    },
  )
  await slow.query('BEGIN')
  await slow.query('SELECT rollcall_log.append_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)', [
    [streamOf(taskId)],
    [-1],
    [1],
    [1],
    [streamOf(taskId)],
    [encoded.id],
    [encoded.type],
    [encoded.version],
    encoded.data,
    encoded.metadata,
  ])
  const fast = submitTasks(parts.engine, 5)
  await until('the fast one waits its turn', async () => {
    const [row] = await parts.rows<{ n: number }>(
      `SELECT count(*)::int AS n FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
    )
    return row!.n > 0
  })
  await slow.query('COMMIT')
  const ids = [taskId, ...(await fast)]
  await parts.projected()
  const found = await parts.rows<{ task_id: string }>('SELECT task_id FROM rollcall.tasks')
  t.strictSame(found.map(row => row.task_id).sort(), ids.sort())
})

t.test('the lag is for how long the oldest event waits, and nothing when all are projected', async t => {
  const parts = await startParts(t)
  const { pool, log } = parts
  parts.projector.start()
  await submitTasks(parts.engine, 1)
  await parts.projected()
  t.strictSame(await readLag(pool, log), { events: 0, seconds: 0, caughtUp: true })
  await parts.projector.stop()
  const after = await log.head()
  await submitTasks(parts.engine, 2)
  await parts.rows(`UPDATE rollcall.projectors SET event_at = event_at - interval '90 seconds'`)
  const quiet = await readLag(pool, log)
  t.match(quiet, { events: 2, caughtUp: false })
  t.ok(quiet.seconds < 60, `after a quiet time it begins anew: ${quiet.seconds} s`)
  await parts.rows(
    `UPDATE rollcall_log.events
        SET metadata = jsonb_set(metadata::jsonb, '{at}', to_jsonb((metadata::jsonb ->> 'at')::bigint - 70000))::text
      WHERE position > $1::bigint`,
    [after!.position],
  )
  const lag = await readLag(pool, log)
  t.ok(lag.seconds >= 70 && lag.seconds < 130, `${lag.seconds} s`)
})

t.test('the lag of a projector that never began counts from the first event', async t => {
  const parts = await startParts(t)
  // The definition of the lifecycle is in the log already, and has no time.
  await submitTasks(parts.engine, 1)
  await parts.rows(
    `UPDATE rollcall_log.events
        SET metadata = jsonb_set(metadata::jsonb, '{at}', to_jsonb((metadata::jsonb ->> 'at')::bigint - 70000))::text
      WHERE position = 2`,
  )
  const lag = await readLag(parts.pool, parts.log)
  t.match(lag, { events: 2, caughtUp: false })
  t.ok(lag.seconds >= 70 && lag.seconds < 130, `${lag.seconds} s`)
})

t.test('a log that went backwards halts the projector, as an alarm, until it is started again', async t => {
  const { logger, lines } = recordingLogger()
  const parts = await startParts(t, { logger })
  const { projector, engine, rows } = parts
  await submitTasks(engine, 3)
  projector.start()
  await parts.projected()
  const position = (await checkpoint(parts)).position
  await rows('DELETE FROM rollcall_log.events WHERE position > $1::bigint - 2', [position])
  await until('it halts', () => projector.mode === 'halted')
  t.ok(lines.some(({ level }) => level === 60))
  await projector.stop()
  t.equal(projector.mode, 'halted', 'stopped it still says so')
  t.equal((await checkpoint(parts)).position, position)
  projector.start()
  await until('it halts again', () => projector.mode === 'halted')
  t.equal((await rows('SELECT * FROM rollcall.tasks')).length, 3, 'its rows stand')
})

t.test('a projector that failed waits before it begins again, and says that it does not project', async t => {
  const parts = await startParts(t)
  const failing = wrapLog(parts.log, { follow: () => Promise.reject(new Error('it cannot be followed')) })
  const { logger, lines } = recordingLogger()
  const projector = new Projector({ log: failing, readModel: new PostgresReadModel(parts.pool), logger })
  t.teardown(() => projector.stop())
  projector.start()
  await until('it failed twice', () => lines.filter(({ level }) => level === 50).length >= 2)
  t.equal(projector.mode, 'standing_by')
})

t.test('those who wait for moved tasks hear of them after the commit', async t => {
  const parts = await startParts(t)
  const heard = signalled<{ rows: number; moved: number }>()
  const projector = new Projector({
    log: parts.log,
    readModel: new PostgresReadModel(parts.pool),
    logger: SILENT,
    onMoved: async tasks => {
      if (tasks.length === 0) return
      const found = await parts.rows('SELECT * FROM rollcall.ready')
      heard.resolve({ rows: found.length, moved: tasks.length })
    },
  })
  t.teardown(() => projector.stop())
  projector.start()
  await submitTasks(parts.engine, 4)
  t.strictSame(await heard.promise, { rows: 4, moved: 4 })
})
