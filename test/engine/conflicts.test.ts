/** Two engines on one log: what each of them says agrees with the stream. */
import { hash, randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { Command } from '../../src/domain/commands.ts'
import { auditLog } from '../../src/engine/audit.ts'
import type { Engine } from '../../src/engine/engine.ts'
import { TaskCache } from '../../src/engine/task-cache.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { cancel, fail, note, retry, start, succeed, TOKEN_A, TOKEN_B } from '../domain/specification.ts'
import { testDatabase } from '../support/postgres.ts'
import {
  ask,
  history,
  mustBe,
  said,
  startEngine,
  submitTasks,
  submitting,
  wrapLog,
} from '../support/service-parts.ts'

/** Numbers in [0, 1) that are the same each time. */
function seeded(seed: number): () => number {
  let drawn = 0
  return () => Number.parseInt(hash('sha256', `${seed}/${drawn++}`).slice(0, 8), 16) / 2 ** 32
}

function aCommand(random: () => number): Command {
  const leaseTokenHash = random() < 0.5 ? TOKEN_A : TOKEN_B
  const draw = random()
  if (draw < 0.35) return start({ leaseTokenHash })
  if (draw < 0.5) return succeed({ leaseTokenHash })
  if (draw < 0.6) return fail({ leaseTokenHash, retryable: false })
  if (draw < 0.65) return cancel()
  if (draw < 0.7) return retry()
  return note()
}

/** What an answer claims is compared with the stream that is there in the end. */
async function agree(
  t: Test,
  log: EventLog,
  asked: { taskId: string }[],
  answers: Awaited<ReturnType<Engine['executeMany']>>,
) {
  const streams = new Map<string, Awaited<ReturnType<typeof history>>>()
  for (const { taskId } of asked) if (!streams.has(taskId)) streams.set(taskId, await history(log, taskId))
  const wrong = answers.filter((answer, index) => {
    const stream = streams.get(asked[index]!.taskId)!
    if (answer.kind === 'accepted') return stream[answer.event.revision]?.hash !== answer.event.hash
    return answer.task !== null && stream[answer.task.revision]?.hash !== answer.task.hash
  })
  t.strictSame(wrong, [], 'every answer is about the stream as it is')
  const accepted = answers.filter(({ kind }) => kind === 'accepted').length
  const stored = [...streams.values()]
    .flat()
    .filter(({ event }) => event.type !== 'LateResultRecorded').length
  t.equal(stored, accepted + streams.size, `each of ${accepted} accepted commands is one event`)
  const audit = await auditLog(log, null)
  t.strictSame([audit.doubled, audit.broken], [[], []])
}

async function race(t: Test, log: EventLog): Promise<void> {
  const engines = [await startEngine(log), await startEngine(log)] as const
  const ids = await submitTasks(engines[0], 20)
  const random = seeded(20)
  const asked = engines.map(() =>
    Array.from({ length: 200 }, () => ask(ids[Math.floor(random() * ids.length)]!, aCommand(random))),
  )
  const answers = await Promise.all(
    engines.map(async (engine, which) => {
      const given: Awaited<ReturnType<Engine['executeMany']>> = []
      // In portions, so that both are under way all the time.
      for (let from = 0; from < 200; from += 20)
        given.push(...(await engine.executeMany(asked[which]!.slice(from, from + 20))))
      return given
    }),
  )
  t.ok(answers.flat().filter(answer => said(answer) === 'conflict').length < 20, 'few give up')
  await agree(t, log, asked.flat(), answers.flat())
}

/** A log that lets others go first at every call. */
const yielding = (log: EventLog): EventLog =>
  wrapLog(log, {
    appendMany: async appends => {
      await new Promise(setImmediate)
      return log.appendMany(appends)
    },
    readStreams: async streams => {
      await new Promise(setImmediate)
      return log.readStreams(streams)
    },
  })

t.test('two engines race 200 commands each on 20 tasks, in memory', async t =>
  race(t, yielding(createMemoryEventLog())),
)

t.test('two engines race 200 commands each on 20 tasks, in Postgres', async t => {
  const { url } = await testDatabase(t)
  const log = await openPostgresEventLog({ connectionString: url })
  t.teardown(() => log.close())
  await race(t, log)
})

t.test('no stale cache says no: what another engine stored is seen before anything is refused', async t => {
  const log = createMemoryEventLog()
  const [a, b] = [await startEngine(log), await startEngine(log)]
  const held = { leaseTokenHash: TOKEN_A }

  await t.test('refused on the old view, accepted on the stream', async t => {
    const [taskId] = (await submitTasks(a, 1)) as [string]
    mustBe('accepted', await b.execute(ask(taskId, start(held))))
    // A knows the task as PENDING, where nothing can succeed.
    mustBe('accepted', await a.execute(ask(taskId, succeed(held))))
    t.equal((await history(log, taskId)).length, 3)
  })

  await t.test('repeated on the old view, refused on the stream', async t => {
    const [taskId] = (await submitTasks(a, 1)) as [string]
    const asked = ask(taskId, start(held))
    mustBe('accepted', await a.execute(asked))
    mustBe('accepted', await b.execute(ask(taskId, fail({ ...held, retryAfterMs: 0 }))))
    mustBe('accepted', await b.execute(ask(taskId, retry())))
    // A believes that the worker holds the lease.
    t.match(await a.execute(asked), { code: 'stale_attempt', task: { status: 'PENDING', attempt: 2 } })
  })

  await t.test('accepted on the old view, refused on the stream', async t => {
    const [taskId] = (await submitTasks(a, 1)) as [string]
    mustBe('accepted', await b.execute(ask(taskId, cancel())))
    t.match(await a.execute(ask(taskId, start(held))), {
      code: 'task_finished',
      task: { status: 'CANCELLED' },
    })
  })

  await t.test('accepted on the old view, repeated on the stream', async t => {
    const [taskId] = (await submitTasks(a, 1)) as [string]
    const asked = ask(taskId, cancel())
    mustBe('accepted', await b.execute(asked))
    mustBe('repeated', await a.execute(asked))
    t.equal((await history(log, taskId)).length, 2)
  })

  await t.test('absent on the old view, there on the stream', async t => {
    const taskId = randomUUID()
    t.equal(said(await a.execute(ask(taskId, cancel()))), 'not_found')
    mustBe('accepted', await b.execute(ask(taskId, submitting())))
    mustBe('accepted', await a.execute(ask(taskId, cancel())))
  })

  await t.test('a revision that is wrong on the old view', async t => {
    const [taskId] = (await submitTasks(a, 1)) as [string]
    mustBe('accepted', await b.execute(ask(taskId, note())))
    t.equal(said(await a.execute(ask(taskId, cancel(), { ifRevision: 0 }))), 'revision_mismatch')
    mustBe('accepted', await a.execute(ask(taskId, cancel(), { ifRevision: 1 })))
  })
})

t.test(
  'a task that others change again and again is answered as a conflict, and nothing is stored',
  async t => {
    const log = createMemoryEventLog()
    const other = await startEngine(log)
    const [taskId] = (await submitTasks(other, 1)) as [string]
    const engine = await startEngine(
      wrapLog(log, {
        appendMany: async appends => {
          await other.execute(ask(taskId, note()))
          return log.appendMany(appends)
        },
      }),
    )
    t.match(await engine.execute(ask(taskId, cancel())), { kind: 'refused', code: 'conflict' })
    const types = (await history(log, taskId)).map(({ event }) => event.type)
    t.notOk(types.includes('TaskCancelled'))
    t.equal(types.length, 1 + 1 + 6, 'it was decided six times')
  },
)

const FINGERPRINT = (salt: string) => hash('sha256', `${salt}\none request`)
const OTHER = (salt: string) => hash('sha256', `${salt}\nanother request`)

/** The same request as its caller sends it again: a new salt each time. */
function request(taskId: string, fingerprintOf: (salt: string) => string) {
  const salt = randomUUID()
  return ask(taskId, submitting({ salt, fingerprint: fingerprintOf(salt) }))
}

for (const [title, cached] of [
  ['', true],
  [', also where nothing is cached', false],
] as const)
  t.test(`S54 fifty submits of one key at two engines are one task${title}`, async t => {
    const log = yielding(createMemoryEventLog())
    const cache = () => (cached ? {} : { cache: new TaskCache({ tasks: 1, bytes: 1 }) })
    const engines = [await startEngine(log, cache()), await startEngine(log, cache())] as const
    const taskId = randomUUID()
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, n) =>
        engines[n % 2 ? 1 : 0].execute(request(taskId, FINGERPRINT), FINGERPRINT),
      ),
    )
    t.strictSame(answers.map(said).sort(), ['accepted', ...Array(49).fill('repeated')])
    t.equal((await history(log, taskId)).length, 1)
    for (const engine of engines)
      t.equal(
        said(await engine.execute(request(taskId, OTHER), OTHER)),
        'idempotency_key_reused',
        'S56 another request with the same key',
      )
    t.equal((await history(log, taskId)).length, 1)
  })
