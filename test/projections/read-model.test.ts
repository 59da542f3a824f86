import fc from 'fast-check'
import t, { type Test } from 'tap'
import { Lifecycles } from '../../src/engine/lifecycles.ts'
import { streamOf } from '../../src/eventlog/codec.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { readLag } from '../../src/projections/lag.ts'
import { PostgresReadModel } from '../../src/projections/postgres/postgres-read-model.ts'
import { refold } from '../../src/projections/projection.ts'
import { Projector } from '../../src/projections/projector.ts'
import { Claims } from '../../src/workers/claims.ts'
import { cancel, fail, note, release, retry, start, succeed, TOKEN_B } from '../domain/specification.ts'
import { differences } from '../support/compare.ts'
import { anAppend } from '../support/events.ts'
import {
  aClaim,
  ask,
  ManualClock,
  mustBe,
  NEVER,
  type Parts,
  recordingLogger,
  SILENT,
  signalled,
  startEngine,
  startParts,
  submitTasks,
  until,
  wrapLog,
} from '../support/service-parts.ts'
import { doubling } from './doubling.ts'
import { live, lives } from './histories.ts'

const TABLES = ['tasks', 'deadlines', 'ready', 'offers', 'leases'] as const

/** All rows with the transactions that wrote them: a row that was written again with the same values shows. */
async function snapshot({ rows }: Parts): Promise<Record<string, unknown[]>> {
  const tables = await Promise.all(
    TABLES.map(async table => [
      table,
      await rows(`SELECT *, xmin::text AS written_by FROM rollcall.${table} ORDER BY task_id`),
    ]),
  )
  return Object.fromEntries(tables)
}

/** Tasks in every state that a row can stand in, some of them offered. */
async function allKinds(parts: Parts): Promise<void> {
  const { engine, log } = parts
  const run = async (ids: readonly string[], ...commands: Parameters<typeof ask>[1][]) => {
    for (const command of commands)
      for (const answer of await engine.executeMany(ids.map(id => ask(id, command))))
        mustBe('accepted', answer)
  }
  await submitTasks(engine, 3)
  await submitTasks(engine, 2, () => ({ delayMs: 60_000 }))
  await run(await submitTasks(engine, 3), start())
  await run(await submitTasks(engine, 2), start(), note())
  await run(await submitTasks(engine, 2), start(), fail())
  await run(await submitTasks(engine, 2), start(), release())
  await run(await submitTasks(engine, 2), start(), release(), start({ attempt: 2, leaseTokenHash: TOKEN_B }))
  await run(await submitTasks(engine, 2), start(), fail({ retryable: false }), retry())
  await run(await submitTasks(engine, 2), start(), succeed())
  await run(await submitTasks(engine, 2), cancel())
  await submitTasks(engine, 2, () => ({ type: 'report' }))
  parts.projector.start()
  await parts.projected()
  // Taken, and the claimer's engine stops before it starts them.
  const stopped = await startEngine(log)
  await stopped.stop()
  const broken = new Claims(parts.workState, stopped, parts.signal).claim(
    aClaim({ types: ['report'] }),
    NEVER,
  )
  await broken.then(
    () => Promise.reject(new Error('a stopped engine started a task')),
    error => {
      if (error.code !== 'shutting_down') throw error
    },
  )
  const counts = await parts.rows<{ n: number }>(
    TABLES.map(table => `SELECT count(*)::int AS n FROM rollcall.${table}`).join(' UNION ALL '),
  )
  if (counts.some(({ n }) => n === 0)) throw new Error('the test leaves a table empty')
}

const FROM_THE_START = 'UPDATE rollcall.projectors SET log_id = NULL, position = NULL, event_id = NULL'

/** Another projector, of a process without an engine, from where the last one stood. */
async function projectWith(t: Test, parts: Parts, log: EventLog): Promise<void> {
  const projector = new Projector({ log, readModel: new PostgresReadModel(parts.pool), logger: SILENT })
  t.teardown(() => projector.stop())
  projector.start()
  await parts.projected()
  await projector.stop()
}

t.test('every event delivered twice: the rows are those of events delivered once', async t => {
  const parts = await startParts(t, { log: doubling })
  await allKinds(parts)
  t.strictSame(await differences(parts.pool, parts.log), [])
  await parts.projector.stop()
  const before = await snapshot(parts)
  for (const [title, log] of [
    ['the whole log again from the start', parts.log],
    ['and again, each event twice', doubling(parts.log)],
  ] as const)
    await t.test(title, async t => {
      await parts.rows(FROM_THE_START)
      await projectWith(t, parts, log)
      const after = await snapshot(parts)
      for (const table of TABLES) t.strictSame(after[table], before[table], `${table} did not change`)
    })
})

t.test('the read model is the fold, whatever happened (promise 4)', async t => {
  const clock = new ManualClock()
  const parts = await startParts(t, { clock })
  parts.projector.start()
  const { engine, pool, log, projected } = parts
  let rounds = 0
  const property = fc.asyncProperty(lives, fc.nat(3), async (those, every) => {
    // Sometimes the projector sees every round, sometimes many events of a task at once.
    await live(engine, clock, those, async () => {
      if (every > 0 && rounds++ % every === 0) await projected()
    })
    await projected()
    const found = await differences(pool, log)
    if (found.length > 0) throw new Error(found.join('\n'))
  })
  await fc.assert(property, { numRuns: 15, interruptAfterTimeLimit: 60_000 })
  t.pass('15 groups of lives')

  await t.test('work state agrees with it: what waits can be claimed, what runs has a lease', async t => {
    t.strictSame(
      await parts.rows(`
        SELECT t.task_id, t.status FROM rollcall.tasks t
          LEFT JOIN rollcall.ready r USING (task_id)
          LEFT JOIN rollcall.leases l USING (task_id)
          LEFT JOIN rollcall.deadlines d USING (task_id)
         WHERE (t.status = 'PENDING' AND d.timer <> 'not_before') IS DISTINCT FROM (r.task_id IS NOT NULL)
            OR (t.status = 'PROCESSING') <> (l.task_id IS NOT NULL) OR r.attempt <> t.attempt OR l.attempt <> t.attempt`),
      [],
    )
  })

  await t.test('rebuilt from nothing it is the same', async t => {
    await parts.projector.stop()
    const rows = () => parts.rows('SELECT * FROM rollcall.tasks ORDER BY task_id')
    const before = await rows()
    await parts.rows(`TRUNCATE ${TABLES.map(table => `rollcall.${table}`).join()}, rollcall.projectors`)
    await projectWith(t, parts, log)
    t.strictSame(await rows(), before)
    t.strictSame(await differences(pool, log), [])
  })
})

t.test('rows that are damaged or missing are folded again in place, while the projector runs', async t => {
  const parts = await startParts(t)
  const { pool, log, engine, rows } = parts
  const ids = await submitTasks(engine, 8)
  await engine.executeMany(ids.slice(4).map(id => ask(id, start())))
  parts.projector.start()
  await parts.projected()
  const damages = [
    `UPDATE rollcall.tasks SET status = 'SUCCESS', finished_at = now()`,
    'UPDATE rollcall.tasks SET revision = 99',
    `UPDATE rollcall.tasks SET type = 'other', priority = 7, max_attempts = 9, tenant = 'x', created_at = now()`,
    'DELETE FROM rollcall.tasks',
    `UPDATE rollcall.deadlines SET due_at = due_at + interval '1 year'`,
    'DELETE FROM rollcall.deadlines',
  ]
  for (const damage of damages)
    for (const taskId of [ids[0]!, ids[4]!]) {
      await rows(`${damage} WHERE task_id = $1`, [taskId])
      t.not((await differences(pool, log)).length, 0, damage)
      t.strictSame(await refold(pool, asked => engine.readMany(asked), [taskId]), [])
      t.strictSame(await differences(pool, log), [], `${damage}: it is right again`)
    }
  await engine.executeMany(ids.map(id => ask(id, cancel())))
  await parts.projected()
  t.strictSame(await differences(pool, log), [], 'and goes on from there')
})

t.test('a row that the projector moves while it is folded again does not go back', async t => {
  const parts = await startParts(t)
  const { pool, log, engine } = parts
  const [there, missing] = (await submitTasks(engine, 2)) as [string, string]
  parts.projector.start()
  await parts.projected()
  await parts.rows('DELETE FROM rollcall.tasks WHERE task_id = $1', [missing])
  const read = signalled()
  const goOn = signalled()
  const repaired = refold(
    pool,
    async ids => {
      const loaded = await engine.readMany(ids)
      read.resolve()
      await goOn.promise
      return loaded
    },
    [there, missing],
  )
  await read.promise
  for (const answer of await engine.executeMany([there, missing].map(id => ask(id, start()))))
    mustBe('accepted', answer)
  await until('the projector waits, or was let pass', async () => {
    const [row] = await parts.rows<{ n: number }>(
      `SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    )
    return row!.n > 0 || (await readLag(pool, log)).caughtUp
  })
  goOn.resolve()
  await repaired
  await parts.projected()
  t.strictSame(await differences(pool, log), [])
})

t.test('a projector that missed events folds the task from its stream', async t => {
  const parts = await startParts(t)
  const { pool, log, engine } = parts
  const [taskId] = (await submitTasks(engine, 1)) as [string]
  await engine.execute(ask(taskId, start()))
  await engine.execute(ask(taskId, note()))
  const lossy = wrapLog(log, {
    follow: (from, onBatch, signal) =>
      log.follow(
        from,
        batch =>
          onBatch(batch.filter(({ stream, revision }) => stream !== streamOf(taskId) || revision !== 1)),
        signal,
      ),
  })
  await projectWith(t, parts, lossy)
  t.strictSame(await differences(pool, log), [])
})

t.test('streams that are no tasks move the checkpoint and nothing else', async t => {
  const { logger, lines } = recordingLogger()
  const parts = await startParts(t, { logger })
  await Lifecycles.open(parts.log)
  // Of another hand, with an id that is none.
  const foreign = ['task-not-a-uuid', 'task-1'].map(stream => anAppend({ stream }))
  t.match(await parts.log.appendMany(foreign), [{ kind: 'appended' }, { kind: 'appended' }])
  parts.projector.start()
  await parts.projected()
  t.strictSame(await parts.rows('SELECT * FROM rollcall.tasks'), [])
  t.match(await parts.rows('SELECT position FROM rollcall.projectors'), [{ position: /^\d+$/ }])
  t.strictSame(await parts.rows('SELECT * FROM rollcall.set_aside'), [])
  t.equal(lines.filter(({ level, msg }) => level === 40 && /is no task/.test(msg)).length, 1, 'said once')
})
