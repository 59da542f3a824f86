import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import { LogUnavailableError } from '../../src/eventlog/event-log.ts'
import { letterIdOf } from '../../src/workers/dead-letters.ts'
import { EventHandling } from '../../src/workers/event-handling.ts'
import { Ingest } from '../../src/workers/ingest.ts'
import { PostgresDeadLetters } from '../../src/workers/postgres/dead-letters.ts'
import { Redrives, type RedrivesOptions } from '../../src/workers/redrives.ts'
import { cancel } from '../domain/specification.ts'
import { FakeBroker } from '../support/fake-broker.ts'
import {
  ask,
  mustBe,
  NEVER,
  openParts,
  type Parts,
  SILENT,
  signalled,
  startParts,
  submitting,
  typesOf,
  until,
  wrapLog,
} from '../support/service-parts.ts'
import { aRecord, says } from './worker-event-records.ts'

function redrivesOf({ engine, leases, pool }: Parts, options: Partial<RedrivesOptions> = {}): Redrives {
  return new Redrives({
    deadLetters: new PostgresDeadLetters(pool),
    handling: new EventHandling(engine, leases),
    logger: SILENT,
    lettersPerSecond: 10_000,
    ...options,
  })
}

/** Letters about tasks that did not exist when their records came, and do now. */
async function starting(t: Test, options: Parameters<typeof startParts>[1] = {}) {
  const parts = await startParts(t, options)
  const { engine, leases, pool } = parts
  const deadLetters = new PostgresDeadLetters(pool)
  const ingest = new Ingest({ broker: new FakeBroker(), engine, leases, deadLetters, logger: SILENT })
  return {
    ...parts,
    redrives: redrivesOf(parts),
    letterOf: async (record: ReturnType<typeof says>) => {
      await ingest.handleBatch([record], NEVER)
      return letterIdOf(record)
    },
    read: async (letterId: string) => (await deadLetters.read([letterId]))[0]!,
    submit: async (taskId: string) => mustBe('accepted', await engine.execute(ask(taskId, submitting()))),
    discard: (letterId: string) => deadLetters.discard([letterId], 'ada', 'x'),
  }
}

t.test('what was lost is handled: the same task, its history kept', async t => {
  const { letterOf, submit, redrives, read, log } = await starting(t)
  const taskId = randomUUID()
  const letterId = await letterOf(says(taskId, 'SUCCEED', { result: 7 }))
  t.match(await read(letterId), { status: 'waiting', fault: { code: 'not_found', taskId } })
  t.match(await redrives.redrive([letterId], 'bob'), [{ letterId, kind: 'kept', code: 'not_found' }])
  await submit(taskId)
  t.strictSame(await redrives.redrive([letterId], 'bob'), [
    { letterId, kind: 'redriven', answer: 'accepted', code: null, message: null },
  ])
  t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
  t.match(await read(letterId), {
    status: 'redriven',
    redrives: 2,
    settled: { by: 'bob', because: 'accepted' },
  })
  t.match(await redrives.redrive([letterId], 'bob'), [
    { letterId, kind: 'refused', code: 'not_waiting', message: 'It was redriven before.' },
  ])
  t.match(await redrives.redrive([randomUUID()], 'bob'), [{ kind: 'refused', code: 'dead_letter_not_found' }])
})

t.test('answers stand in the order of the ids, also of one that is named twice', async t => {
  const { letterOf, redrives, submit, log } = await starting(t)
  const taskIds = Array.from({ length: 25 }, () => randomUUID() as string)
  const ids: string[] = []
  for (const taskId of taskIds) ids.push(await letterOf(says(taskId, 'START')))
  for (const taskId of taskIds.slice(0, 20)) await submit(taskId)
  const asked = [...ids.toReversed(), ids[3]!, randomUUID(), ids[3]!]
  const results = await redrives.redrive(asked, 'bob')
  t.strictSame(
    results.map(({ letterId }) => letterId),
    asked,
  )
  t.strictSame(
    results.map(({ kind }) => kind),
    [...Array(5).fill('kept'), ...Array(20).fill('redriven'), 'redriven', 'refused', 'redriven'],
  )
  t.strictSame(await typesOf(log, taskIds[3]!), ['TaskSubmitted', 'TaskStarted'])
})

t.test('what is still wrong stays, with what is wrong now', async t => {
  const { letterOf, redrives, read, rows, submit, engine } = await starting(t)
  const garbage = await letterOf(aRecord({ value: Buffer.from('{') }))
  await rows(`UPDATE rollcall.dead_letters SET reason_code = 'no_value', reason_message = 'of before'`)
  t.match(await redrives.redrive([garbage], 'bob'), [
    { kind: 'kept', code: 'invalid_json', message: /not JSON/ },
  ])
  t.match(await read(garbage), {
    status: 'waiting',
    redrives: 1,
    redrivenAt: Date,
    settled: null,
    fault: { code: 'invalid_json', message: /not JSON/ },
  })
  const taskId = randomUUID()
  const late = await letterOf(says(taskId, 'START'))
  await submit(taskId)
  mustBe('accepted', await engine.execute(ask(taskId, cancel())))
  t.match(
    await redrives.redrive([late], 'bob'),
    [{ kind: 'redriven', answer: 'refused', code: 'task_finished' }],
    'a refusal for good is an answer',
  )
  t.match(await read(late), { status: 'redriven', settled: { because: /finished/ } })
})

t.test('a signal is taken, or is nobody’s any more', async t => {
  const { letterOf, redrives, rows } = await starting(t)
  const letterId = await letterOf(aRecord({ value: Buffer.from('{') }))
  const beat = says(randomUUID(), 'HEARTBEAT')
  await rows('UPDATE rollcall.dead_letters SET key = $1, value = $2', [beat.key, beat.value])
  t.match(await redrives.redrive([letterId], 'bob'), [{ kind: 'redriven', answer: 'signal' }])
})

t.test('while the log is away letters stay as they are', async t => {
  const away = { append: false, read: false }
  const { letterOf, redrives, read, submit, log } = await starting(t, {
    engine: { appendDeadlineMs: 20 },
    log: log =>
      wrapLog(log, {
        appendMany: appends => {
          if (away.append) throw new LogUnavailableError('away')
          return log.appendMany(appends)
        },
        readStreams: streams => {
          if (away.read) throw new LogUnavailableError('away')
          return log.readStreams(streams)
        },
      }),
  })
  const taskId = randomUUID()
  const letterId = await letterOf(says(taskId, 'SUCCEED'))
  await submit(taskId)
  away.append = true
  t.match(await redrives.redrive([letterId], 'bob'), [{ kind: 'kept', code: 'log_unavailable' }])
  away.read = true
  await t.rejects(redrives.redrive([letterId], 'bob'), { code: 'log_unavailable' })
  t.match(await read(letterId), { status: 'waiting', redrives: 0, fault: { code: 'not_found' } })
  away.append = away.read = false
  t.match(await redrives.redrive([letterId], 'bob'), [{ kind: 'redriven' }], 'one that failed is no obstacle')
  t.strictSame(await typesOf(log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
})

t.test('two people at once, in one process and in two: one of them has redriven it', async t => {
  const parts = await starting(t)
  const other = redrivesOf(await openParts(t, parts.url))
  for (const [here, there] of [
    [parts.redrives, parts.redrives],
    [parts.redrives, other],
  ] as const) {
    const taskIds = Array.from({ length: 12 }, () => randomUUID() as string)
    const ids: string[] = []
    for (const taskId of taskIds) ids.push(await parts.letterOf(says(taskId, 'SUCCEED')))
    for (const taskId of taskIds) await parts.submit(taskId)
    const results = (
      await Promise.all([here.redrive(ids, 'bob'), there.redrive(ids.toReversed(), 'eve')])
    ).flat()
    for (const letterId of ids)
      t.strictSame(
        results
          .filter(result => result.letterId === letterId)
          .map(result => (result.kind === 'redriven' ? result.answer : result.code))
          .sort(),
        ['accepted', 'not_waiting'],
      )
    for (const taskId of taskIds)
      t.strictSame(await typesOf(parts.log, taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    for (const letterId of ids) t.match(await parts.read(letterId), { redrives: 1 })
  }
})

t.test('a redrive and a discard at once: both hear the same of it', async t => {
  const { letterOf, submit, redrives, discard, read, log } = await starting(t)
  for (let round = 0; round < 10; round++) {
    const taskId = randomUUID()
    const letterId = await letterOf(says(taskId, 'SUCCEED'))
    await submit(taskId)
    const [discarded, [redriven]] =
      round % 2 === 0
        ? await Promise.all([discard(letterId), redrives.redrive([letterId], 'bob')])
        : await Promise.all([redrives.redrive([letterId], 'bob'), discard(letterId)]).then(
            ([redriven, discarded]) => [discarded, redriven] as const,
          )
    const { status } = await read(letterId)
    t.equal(status, discarded.length === 1 ? 'discarded' : 'redriven')
    t.equal(redriven?.kind, status === 'redriven' ? 'redriven' : 'refused')
    t.equal((await typesOf(log, taskId)).includes('TaskSucceeded'), status === 'redriven')
  }
})

t.test('redrives take turns, slowly, and more than four at once are refused', async t => {
  const parts = await starting(t)
  const { letterOf } = parts
  const ids: string[] = []
  for (let nth = 0; nth < 30; nth++) ids.push(await letterOf(says(randomUUID(), 'START')))
  const slow = redrivesOf(parts, { lettersPerSecond: 100 })
  const begun = performance.now()
  await slow.redrive(ids, 'bob')
  t.ok(performance.now() - begun >= 290, '30 letters at 100 a second take 0.3 s at least')

  const gate = signalled()
  let handling = 0
  const handled: number[] = []
  const real = new EventHandling(parts.engine, parts.leases)
  const held = redrivesOf(parts, {
    handling: {
      handle: async (records: Parameters<EventHandling['handle']>[0]) => {
        handled.push(records.length)
        t.equal(++handling, 1, 'one at a time')
        await gate.promise
        handling--
        return real.handle(records)
      },
    } as EventHandling,
  })
  const four = ids.slice(0, 4).map(id => held.redrive([id], 'bob'))
  await until('the first is handled', () => handling === 1)
  await t.rejects(held.redrive([ids[5]!], 'bob'), { code: 'overloaded' })
  gate.resolve()
  await Promise.all(four)
  t.match(await held.redrive(ids, 'bob'), { length: 30 }, 'and then again')
  t.strictSame(handled, [1, 1, 1, 1, 10, 10, 10])
})
