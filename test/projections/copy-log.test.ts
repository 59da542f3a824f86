/** Moving from one log to another: under load, stopped anywhere, into the wrong log, and back. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { auditLog } from '../../src/engine/audit.ts'
import type { EventLog, StoredEvent } from '../../src/eventlog/event-log.ts'
import { LogUnavailableError } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { type CopyLogOptions, type CopyStep, copyLog } from '../../src/projections/copy-log.ts'
import { examinePage } from '../../src/projections/examine.ts'
import { followUntil } from '../conformance/event-log-following.ts'
import { anAppend, anEvent, someEvents } from '../support/events.ts'
import { execute, testDatabase } from '../support/postgres.ts'
import {
  ask,
  openParts,
  type Parts,
  recordingLogger,
  startParts,
  submitTasks,
  submitting,
  until,
  wrapLog,
} from '../support/service-parts.ts'

interface Target {
  /** As a service opens it. */
  log: EventLog
  /** As the copy opens it. */
  pastSeal: EventLog
}

async function postgresTarget(t: Test, url?: string): Promise<Target> {
  const connectionString = url ?? (await testDatabase(t)).url
  const [log, pastSeal] = await Promise.all([
    openPostgresEventLog({ connectionString }),
    openPostgresEventLog({ connectionString, pastSeal: true }),
  ])
  t.teardown(() => Promise.all([log.close(), pastSeal.close()]))
  return { log, pastSeal }
}

/** One more service on the read model of `parts`, with its log elsewhere. */
const serviceOn = (t: Test, parts: Parts, log: EventLog) =>
  openParts(t, parts.url, {
    log: own => {
      void own.close()
      return wrapLog(log, { close: async () => {} })
    },
  })

async function everyEvent(log: EventLog): Promise<StoredEvent[]> {
  const count = await log.countAfter(null, 1_000_000)
  return count === 0 ? [] : followUntil(log, null, count)
}

const byPlace = (events: readonly StoredEvent[]) =>
  events
    .map(({ position: _, ...event }) => event)
    .sort((one, other) => one.stream.localeCompare(other.stream) || one.revision - other.revision)

async function sameEvents(t: Test, one: EventLog, other: EventLog): Promise<void> {
  t.strictSame(
    byPlace(await everyEvent(other)),
    byPlace(await everyEvent(one)),
    'the same streams, byte by byte',
  )
}

/** Clients that submit and cancel until they are told that the log was moved. */
function startWriters(parts: Parts, count: number) {
  const accepted: string[] = []
  const refusals: string[] = []
  const write = async () => {
    for (;;) {
      const taskId = randomUUID() as string
      for (const command of [submitting(), { trigger: 'CANCEL', reason: null } as const]) {
        const answer = await parts.engine.execute(ask(taskId, command))
        if (answer.kind !== 'accepted') {
          refusals.push(answer.kind === 'refused' ? `${answer.code}: ${answer.message}` : answer.kind)
          return
        }
        accepted.push(`${taskId} ${answer.task.revision}`)
      }
    }
  }
  return { accepted, refusals, ended: Promise.all(Array.from({ length: count }, write)) }
}

const copy = (parts: Parts, from: EventLog, to: EventLog, over: Partial<CopyLogOptions> = {}) =>
  copyLog({ from, to, pool: parts.pool, patienceMs: 10_000, ...over })

async function rowsAreTheFold(t: Test, parts: Parts, tasks: number): Promise<void> {
  await parts.projected()
  const { taskIds, findings } = await examinePage({ pool: parts.pool, log: parts.log }, null, 100_000)
  t.equal(taskIds.length, tasks)
  t.strictSame(findings, [])
}

/** Ends a copy at the nth report of a step. */
const stopAt = (step: CopyStep['step'], nth = 1) => {
  let seen = 0
  return (progress: CopyStep) => {
    if (progress.step === step && ++seen === nth) throw new Error(`stopped at ${step}`)
  }
}

t.test(
  'a running installation moves: nothing accepted is missing, and the old service says why it stops',
  async t => {
    const { logger, lines } = recordingLogger()
    const parts = await startParts(t, { logger })
    parts.projector.start()
    await submitTasks(parts.engine, 3_000)
    const target = await postgresTarget(t)
    const writers = startWriters(parts, 20)
    const steps: CopyStep['step'][] = []
    const copied = await copy(parts, parts.log, target.pastSeal, {
      onProgress: ({ step }) => void steps.push(step),
    })
    await writers.ended
    t.ok(writers.accepted.length > 100, 'they wrote meanwhile')
    for (const refusal of writers.refusals)
      t.match(
        refusal,
        new RegExp(`log_unavailable: log ${parts.log.id} is sealed: it was moved to log ${target.log.id}`),
      )
    await sameEvents(t, parts.log, target.log)
    t.match(copied, { events: 3_001 + writers.accepted.length, projectors: ['tasks'], already: false })
    t.match(copied.chains, { broken: 0, links: 3_000 + writers.accepted.length })
    t.strictSame(
      [...new Set(steps)],
      ['copying', 'comparing', 'sealing', 'sealed', 'moving', 'moved', 'opened'],
    )
    const stored = new Set(
      (await everyEvent(target.log)).map(({ stream, revision }) => `${stream} ${revision}`),
    )
    t.ok(
      writers.accepted.every(one => stored.has(`task-${one}`)),
      'every answer stands in the target',
    )

    await until('the old projector halts', () => parts.projector.mode === 'halted')
    t.match(parts.projector.haltedBecause, `was moved to log ${target.log.id}`)
    t.ok(
      lines.some(({ level, msg }) => level === 60 && msg.includes('start the services with the new --log')),
    )

    const next = await serviceOn(t, parts, target.log)
    next.projector.start()
    await submitTasks(next.engine, 10)
    const tasks = new Set(writers.accepted.map(one => one.split(' ')[0])).size
    await rowsAreTheFold(t, next, 3_010 + tasks)
    const { broken, doubled } = await auditLog(target.log, null)
    t.strictSame([broken, doubled], [[], []])
  },
)

t.test('a copy that is stopped at any step goes on from there', async t => {
  const stops: [CopyStep['step'], number][] = [
    ['copying', 1],
    ['copying', 2],
    ['copying', 3],
    ['comparing', 1],
    ['sealing', 1],
    ['sealed', 1],
    ['moving', 1],
    ['moved', 1],
    ['opened', 1],
  ]
  for (const [step, nth] of stops)
    await t.test(`${step} ${nth}`, async t => {
      const parts = await startParts(t)
      parts.projector.start()
      await submitTasks(parts.engine, 1_500)
      const target = await postgresTarget(t)
      const writers = startWriters(parts, 4)
      await t.rejects(copy(parts, parts.log, target.pastSeal, { onProgress: stopAt(step, nth) }), {
        message: `stopped at ${step}`,
      })
      const before = (await parts.rows<{ events: string }>('SELECT events::text FROM rollcall.log_copies'))[0]
      if (step !== 'copying' || nth > 1) t.ok(Number(before?.events) > 0, 'its progress is kept')
      const events: number[] = []
      const copied = await copy(parts, parts.log, target.pastSeal, {
        onProgress: progress => void events.push(progress.events),
      })
      if (before && events[0] !== undefined)
        t.ok(events[0] >= Number(before.events), 'it does not begin anew')
      t.equal(copied.already, step === 'moved' || step === 'opened')
      await writers.ended
      await sameEvents(t, parts.log, target.log)
      t.equal(await target.log.sealedFor(), null)
      t.equal(await parts.log.sealedFor(), target.log.id)
      const next = await serviceOn(t, parts, target.log)
      next.projector.start()
      await submitTasks(next.engine, 5)
      await rowsAreTheFold(t, next, 1_505 + new Set(writers.accepted.map(one => one.split(' ')[0])).size)
    })
})

t.test('an aborted signal ends the copy with its reason, and the source goes on', async t => {
  const parts = await startParts(t)
  await submitTasks(parts.engine, 2_500)
  const target = await postgresTarget(t)
  const abort = new AbortController()
  const copying = copy(parts, parts.log, target.pastSeal, {
    signal: abort.signal,
    onProgress: ({ events }) => {
      if (events > 0) abort.abort(new Error('by hand'))
    },
  })
  await t.rejects(copying, { message: 'by hand' })
  await submitTasks(parts.engine, 1)
  const copied = await copy(parts, parts.log, target.pastSeal)
  t.equal(copied.events, 2_502)
  await sameEvents(t, parts.log, target.log)
})

t.test('a copy that is given up after the seal: the swapped command opens the source again', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  await submitTasks(parts.engine, 10)
  await parts.projected()
  const target = await postgresTarget(t)
  await t.rejects(copy(parts, parts.log, target.pastSeal, { onProgress: stopAt('sealed') }), {
    message: 'stopped at sealed',
  })
  await t.rejects(submitTasks(parts.engine, 1), /log_unavailable/)
  const back = await copy(parts, target.log, parts.log)
  t.equal(back.already, true)
  await submitTasks(parts.engine, 1)
  t.equal(await target.log.sealedFor(), parts.log.id, 'nobody begins on half a copy')
  t.equal((await copy(parts, parts.log, target.pastSeal)).events, 12)
})

t.test('memory and Postgres are copied into each other', async t => {
  const parts = await startParts(t)
  const source = createMemoryEventLog()
  await source.appendMany([anAppend({ events: someEvents(3) }), anAppend()])
  const streams = Array.from({ length: 30 }, () => anAppend())
  await source.appendMany(streams)
  // Streams in turn, so that none of them stands once in a row.
  for (let revision = 0; revision < 20; revision++)
    for (const { stream } of streams)
      await source.appendMany([{ stream, expected: revision, events: [anEvent()] }])
  const middle = await postgresTarget(t)
  await copy(parts, source, middle.pastSeal)
  await sameEvents(t, source, middle.log)
  t.strictSame(
    (await everyEvent(middle.log)).map(({ id }) => id),
    (await everyEvent(source)).map(({ id }) => id),
    'in the same order',
  )
  const last = createMemoryEventLog({ pastSeal: true })
  await middle.log.appendMany([anAppend()])
  await copy(parts, middle.log, last)
  await sameEvents(t, middle.log, last)
  t.match(await copy(parts, last, createMemoryEventLog({ pastSeal: true })), { events: 635 })
})

t.test('an empty log is moved, too', async t => {
  const parts = await startParts(t)
  const source = createMemoryEventLog()
  const target = createMemoryEventLog({ pastSeal: true })
  t.match(await copy(parts, source, target), { events: 0, already: false })
  t.equal(await source.sealedFor(), target.id)
  t.match(await copy(parts, source, target), { events: 0, already: true })
})

t.test('back to the old log, and forth again', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  await submitTasks(parts.engine, 1_200)
  const target = await postgresTarget(t)
  await copy(parts, parts.log, target.pastSeal)
  const next = await serviceOn(t, parts, target.log)
  next.projector.start()
  await submitTasks(next.engine, 300)

  const writers = startWriters(next, 4)
  const old = await openPostgresEventLog({ connectionString: parts.url, pastSeal: true })
  t.teardown(() => old.close())
  // A service that was left on the old log accepts nothing before everything has come back.
  const left = await submitTasks(parts.engine, 1).catch((error: Error) => error.message)
  t.match(left, /log_unavailable/)
  let opened = false
  const back = await copy(parts, target.log, old, {
    onProgress: async ({ step }) => {
      opened ||= step === 'opened'
      if (!opened) t.not(await old.sealedFor(), null)
    },
  })
  await writers.ended
  t.equal(back.events, 300 + writers.accepted.length, 'only what came since is copied')
  await sameEvents(t, target.log, old)
  t.equal(await target.log.sealedFor(), old.id)
  const again = await openParts(t, parts.url)
  again.projector.start()
  await submitTasks(again.engine, 7)
  await rowsAreTheFold(t, again, 1_507 + new Set(writers.accepted.map(one => one.split(' ')[0])).size)

  const forth = await copy(parts, old, target.pastSeal)
  t.equal(forth.events, 7)
  await sameEvents(t, old, target.log)
})

t.test('a target that is not empty is left alone', async t => {
  const parts = await startParts(t)
  await submitTasks(parts.engine, 5)
  const target = await postgresTarget(t)
  const foreign = anAppend()
  await target.log.appendMany([foreign])
  await t.rejects(copy(parts, parts.log, target.pastSeal), {
    code: 'copy_refused',
    message: new RegExp(`event 0 of its stream ${foreign.stream} is not in the source`),
  })
  t.match(await target.log.appendMany([anAppend()]), [{ kind: 'appended' }], 'it was not sealed')
  t.equal(await parts.log.sealedFor(), null)
})

t.test('what somebody slips into the target ends the copy before the source is sealed', async t => {
  const slip = (target: Target, stream: () => string) => {
    let done = false
    return async ({ step, events }: CopyStep) => {
      if (done || step !== 'copying' || events === 0) return
      done = true
      await target.pastSeal.appendMany([anAppend({ stream: stream() })])
    }
  }
  const source = createMemoryEventLog()
  const appends = Array.from({ length: 2_500 }, () => anAppend())
  for (let at = 0; at < appends.length; at += 500) await source.appendMany(appends.slice(at, at + 500))
  const parts = await startParts(t)
  const taken = await postgresTarget(t)
  const stream = appends.at(-1)!.stream
  await t.rejects(copy(parts, source, taken.pastSeal, { onProgress: slip(taken, () => stream) }), {
    code: 'copy_conflict',
    message: new RegExp(`stream ${stream} has event .* at revision 0 in the target`),
  })
  const more = await postgresTarget(t)
  await t.rejects(copy(parts, source, more.pastSeal, { onProgress: slip(more, () => 'test-slipped') }), {
    code: 'copy_differs',
    message: /event 0 of stream test-slipped is in the target and not in the source/,
  })
  const changed = createMemoryEventLog({ pastSeal: true })
  const garbling = wrapLog(changed, {
    appendMany: appends =>
      changed.appendMany(
        appends.map(append =>
          append.stream === appends[1]?.stream && append.events[0]
            ? { ...append, events: [{ ...append.events[0], data: '{"some":"date"}' }] }
            : append,
        ),
      ),
  })
  await t.rejects(copy(parts, source, garbling), {
    code: 'copy_differs',
    message: new RegExp(`event 0 of stream ${appends[1]!.stream} has another data in the other log`),
  })
  const losing = createMemoryEventLog({ pastSeal: true })
  await t.rejects(
    copy(
      parts,
      source,
      wrapLog(losing, {
        appendMany: async appends => [
          ...(await losing.appendMany(appends.slice(1))),
          { kind: 'appended', revision: 0, position: '1' } as const,
        ],
      }),
    ),
    {
      code: 'copy_differs',
      message: new RegExp(`event 0 of stream ${appends[0]!.stream} is not in the target`),
    },
  )
  t.equal(await source.sealedFor(), null)
})

t.test('a target that is away for a while is waited for, and not for ever', async t => {
  const parts = await startParts(t)
  await submitTasks(parts.engine, 1_500)
  const { log, pastSeal } = await postgresTarget(t)
  let calls = 0
  const shaky = wrapLog(pastSeal, {
    appendMany: async appends => {
      const call = calls++
      if (call % 3 === 0) throw new LogUnavailableError('away')
      const results = await pastSeal.appendMany(appends)
      if (call % 3 === 1) throw new LogUnavailableError('its answer was lost')
      return results
    },
  })
  t.equal((await copy(parts, parts.log, shaky)).events, 1_501)
  await sameEvents(t, parts.log, log)
  const gone = wrapLog(createMemoryEventLog(), {
    appendMany: async () => {
      throw new LogUnavailableError('away')
    },
  })
  await t.rejects(copy(parts, log, gone, { patienceMs: 300 }), { code: 'log_unavailable' })
  t.equal(await log.sealedFor(), null)
})

t.test(
  'a projector that has not finished goes on before its first unhandled event, in whatever order they lie',
  async t => {
    const parts = await startParts(t)
    parts.projector.start()
    const early = await submitTasks(parts.engine, 400)
    await parts.projected()
    await parts.projector.stop()
    await submitTasks(parts.engine, 600)
    await parts.engine.executeMany(
      early.slice(0, 50).map(taskId => ask(taskId, { trigger: 'CANCEL', reason: null })),
    )
    const { log, pastSeal } = await postgresTarget(t)
    // One member after the other, the last first.
    const shuffling = wrapLog(pastSeal, {
      appendMany: async appends => {
        const results = []
        for (const append of appends.toReversed()) results.unshift((await pastSeal.appendMany([append]))[0]!)
        return results
      },
    })
    await copy(parts, parts.log, shuffling)
    await sameEvents(t, parts.log, log)
    t.notSame(
      (await everyEvent(log)).map(({ id }) => id),
      (await everyEvent(parts.log)).map(({ id }) => id),
    )
    const next = await serviceOn(t, parts, log)
    t.ok((await log.countAfter(null, 10_000)) > 1_000)
    next.projector.start()
    await rowsAreTheFold(t, next, 1_000)
  },
)

t.test('a projector that stands still while it holds its lease is stopped where it is', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  await submitTasks(parts.engine, 20)
  await parts.projected()
  await parts.projector.stop()
  await submitTasks(parts.engine, 20)
  await parts.pool.query(
    `UPDATE rollcall.projectors SET holder = gen_random_uuid(), held_until = now() + interval '1 hour'`,
  )
  const target = await postgresTarget(t)
  await copy(parts, parts.log, target.pastSeal)
  const next = await serviceOn(t, parts, target.log)
  next.projector.start()
  await rowsAreTheFold(t, next, 40)
})

t.test('logs that cannot be copied into each other are told apart', async t => {
  const parts = await startParts(t)
  parts.projector.start()
  await submitTasks(parts.engine, 5)
  await parts.projected()
  const target = await postgresTarget(t)
  const other = createMemoryEventLog({ pastSeal: true })
  await t.rejects(copy(parts, parts.log, parts.log), { code: 'copy_refused', message: /are the same log/ })
  await t.rejects(copy(parts, target.log, parts.log), {
    code: 'copy_refused',
    message: /swap --from and --to/,
  })
  await t.rejects(copy(parts, target.log, other), { code: 'copy_refused', message: /neither --from/ })
  await parts.log.seal(other.id)
  await t.rejects(copy(parts, parts.log, target.pastSeal), {
    code: 'copy_refused',
    message: new RegExp(`the source ${parts.log.id} is sealed for log ${other.id}`),
  })
  await parts.log.seal(null)
  await target.log.seal(other.id)
  await t.rejects(copy(parts, parts.log, target.pastSeal), {
    code: 'copy_refused',
    message: /the target .* is sealed for log/,
  })
  const busy = await postgresTarget(t)
  await copy(parts, parts.log, busy.pastSeal, {
    onProgress: async ({ step }) => {
      if (step === 'sealing')
        await t.rejects(copy(parts, parts.log, busy.pastSeal), { message: /another rollcall log copy runs/ })
    },
  })
})

t.test('a target that lost what was copied is filled again', async t => {
  const parts = await startParts(t)
  await submitTasks(parts.engine, 1_100)
  const { url } = await testDatabase(t)
  const target = await postgresTarget(t, url)
  await t.rejects(copy(parts, parts.log, target.pastSeal, { onProgress: stopAt('sealing') }), {
    message: 'stopped at sealing',
  })
  await execute(url, 'DELETE FROM rollcall_log.events WHERE position > 500')
  t.equal((await copy(parts, parts.log, target.pastSeal)).events, 1_101)
  await sameEvents(t, parts.log, target.log)
})
