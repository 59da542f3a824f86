import { randomUUID } from 'node:crypto'
import pg from 'pg'
import t from 'tap'
import type { ProcessingTask } from '../../src/domain/task.ts'
import type { Engine } from '../../src/engine/engine.ts'
import { LogUnavailableError } from '../../src/eventlog/event-log.ts'
import { type Claim, Claims } from '../../src/workers/claims.ts'
import { type Work, WorkSignal } from '../../src/workers/work-signal.ts'
import type { WorkState } from '../../src/workers/work-state.ts'
import { cancel, fail, retry, start, succeed, TOKEN_A, TOKEN_B } from '../domain/specification.ts'
import {
  aClaim,
  ask,
  history,
  mustBe,
  NEVER,
  openParts,
  type Parts,
  signalled,
  startEngine,
  startParts,
  submitTasks,
  submitting,
  typesOf,
  until,
  wrapLog,
} from '../support/service-parts.ts'

/** A claim that looks by itself needs half a second. */
const LOOK_MS = 450
const OVERDUE = `UPDATE rollcall.offers SET held_until = now() - interval '1 second'`

async function setUp(t: Parameters<typeof startParts>[0]) {
  const parts = await startParts(t)
  parts.projector.start()
  return parts
}

const idsOf = (tasks: readonly ProcessingTask[]): string[] => tasks.map(({ taskId }) => taskId)

const countOf = async ({ rows }: Parts, table: string) =>
  (await rows<{ n: number }>(`SELECT count(*)::int AS n FROM rollcall.${table}`))[0]!.n

t.test(
  'the most urgent comes first, then the oldest; started tasks carry all that a worker needs',
  async t => {
    const parts = await setUp(t)
    const priorities = [0, 5, -3, 5, 0]
    const ids: string[] = []
    for (const priority of priorities) ids.push(...(await submitTasks(parts.engine, 1, () => ({ priority }))))
    await parts.projected()
    const first = await parts.claims.claim(aClaim({ max: 3 }), NEVER)
    t.strictSame(idsOf(first), [ids[1], ids[3], ids[0]])
    t.match(first[0], {
      status: 'PROCESSING',
      attempt: 1,
      worker: 'worker-1',
      payload: { prompt: 'a lighthouse' },
    })
    t.strictSame(idsOf(await parts.claims.claim(aClaim(), NEVER)), [ids[4], ids[2]])
    t.strictSame(await parts.claims.claim(aClaim(), NEVER), [], 'nothing is left')
  },
)

t.test('a claim takes the types it asks for and no other, the most urgent of all of them first', async t => {
  const parts = await setUp(t)
  const make = async (type: string, priority: number) =>
    (await submitTasks(parts.engine, 1, () => ({ type, priority })))[0]!
  const report = await make('report', 1)
  const image = await make('image.generate', 2)
  const other = await make('transcode', 9)
  const late = await make('report', 3)
  await parts.projected()
  const types = ['report', 'image.generate', 'report', 'never.seen']
  t.strictSame(idsOf(await parts.claims.claim(aClaim({ types, max: 2 }), NEVER)), [late, image])
  t.strictSame(idsOf(await parts.claims.claim(aClaim({ types }), NEVER)), [report])
  t.strictSame(idsOf(await parts.claims.claim(aClaim({ types: ['transcode'] }), NEVER)), [other])
})

t.test('a claim asked again with its id answers the same running tasks and takes no others', async t => {
  const parts = await setUp(t)
  const { claims, engine } = parts
  await submitTasks(engine, 8)
  await parts.projected()
  const claim = aClaim({ max: 3 })
  const first = await claims.claim(claim, NEVER)
  t.equal(first.length, 3)
  t.strictSame(
    idsOf(await claims.claim(claim, NEVER)).sort(),
    idsOf(first).sort(),
    'before it is projected or after',
  )
  await parts.projected()
  t.strictSame(idsOf(await claims.claim(claim, NEVER)).sort(), idsOf(first).sort(), 'by the leases')
  mustBe('accepted', await engine.execute(ask(first[0]!.taskId, succeed())))
  mustBe('accepted', await engine.execute(ask(first[1]!.taskId, fail({ retryAfterMs: 0 }))))
  t.strictSame(
    idsOf(await claims.claim(claim, NEVER)),
    [first[2]!.taskId],
    'what has ended is not handed out again',
  )
  await parts.projected()
  t.strictSame(idsOf(await claims.claim(claim, NEVER)), [first[2]!.taskId])
  for (const { taskId } of first)
    t.equal((await typesOf(parts.log, taskId)).filter(is => is === 'TaskStarted').length, 1)
  t.equal((await claims.claim(aClaim(), NEVER)).length, 5, 'the others are still there')
})

t.test('a claim that broke off before its tasks were started is taken up where it was', async t => {
  const parts = await setUp(t)
  await submitTasks(parts.engine, 4)
  await parts.projected()
  const stopped = await startEngine(parts.log)
  await stopped.stop()
  const claim = aClaim({ max: 3 })
  await t.rejects(new Claims(parts.workState, stopped, parts.signal).claim(claim, NEVER), {
    code: 'shutting_down',
  })
  t.equal(await countOf(parts, 'offers'), 3)
  const started = await parts.claims.claim(claim, NEVER)
  t.equal(started.length, 3)
  await parts.projected()
  t.strictSame([await countOf(parts, 'offers'), await countOf(parts, 'leases')], [0, 3])
})

t.test('S14 a claim whose STARTs were stored and whose answers were lost finds its tasks again', async t => {
  const parts = await setUp(t)
  await submitTasks(parts.engine, 3)
  await parts.projected()
  // The projector does not get to see the START before the claim is asked again.
  await parts.projector.stop()
  const lossy = await startEngine(
    wrapLog(parts.log, {
      appendMany: async appends => {
        const results = await parts.log.appendMany(appends)
        if (appends[0]!.stream.startsWith('task-')) throw new LogUnavailableError('the answer is lost')
        return results
      },
      close: async () => {},
    }),
    { clock: parts.clock, appendDeadlineMs: 1 },
  )
  const claim = aClaim({ max: 2 })
  await t.rejects(new Claims(parts.workState, lossy, parts.signal).claim(claim, NEVER), {
    code: 'log_unavailable',
  })
  const again = await parts.claims.claim(claim, NEVER)
  t.equal(again.length, 2)
  for (const { taskId } of again)
    t.strictSame(await typesOf(parts.log, taskId), ['TaskSubmitted', 'TaskStarted'])
})

t.test('the same claim asked twice at once gives the same tasks to both', async t => {
  const parts = await setUp(t)
  await submitTasks(parts.engine, 6)
  await parts.projected()
  for (let round = 0; round < 2; round++) {
    const claim = aClaim({ max: 2 })
    const answers = await Promise.all([parts.claims.claim(claim, NEVER), parts.claims.claim(claim, NEVER)])
    const given = new Set(answers.flatMap(idsOf))
    t.ok(given.size <= 4)
    for (const taskId of given) {
      const types = await typesOf(parts.log, taskId)
      t.equal(types.filter(type => type === 'TaskStarted').length, 1)
    }
  }
})

t.test('a claim id with another token gets nothing that the first token holds', async t => {
  const parts = await setUp(t)
  await submitTasks(parts.engine, 2)
  await parts.projected()
  const claim = aClaim({ max: 2 })
  t.equal((await parts.claims.claim(claim, NEVER)).length, 2)
  t.strictSame(await parts.claims.claim({ ...claim, leaseTokenHash: TOKEN_B }, NEVER), [])
  await parts.projected()
  t.strictSame(await parts.claims.claim({ ...claim, leaseTokenHash: TOKEN_B }, NEVER), [])
})

t.test('three claimers take 500 tasks in parallel: each task is started once', async t => {
  const parts = await setUp(t)
  const ids = await submitTasks(parts.engine, 500)
  // Two processes' worth of engines.
  const other = new Claims(
    parts.workState,
    await startEngine(parts.log, { clock: parts.clock }),
    parts.signal,
  )
  const taken: string[] = []
  const claimer = async (claims: Claims, token: string) => {
    while (taken.length < ids.length) {
      const tasks = await claims.claim(aClaim({ max: 17, waitMs: 50, leaseTokenHash: token }), NEVER)
      taken.push(...idsOf(tasks))
    }
  }
  await Promise.all([
    claimer(parts.claims, TOKEN_A),
    claimer(other, TOKEN_B),
    claimer(parts.claims, 'd'.repeat(64)),
  ])
  t.strictSame(taken.sort(), [...ids].sort(), 'each is given to one claimer')
  const [row] = await parts.rows<{ n: number }>(
    `SELECT count(*)::int AS n FROM rollcall_log.events WHERE type = 'TaskStarted'`,
  )
  t.equal(row!.n, 500)
  await parts.projected()
  t.strictSame([await countOf(parts, 'ready'), await countOf(parts, 'offers')], [0, 0])
})

t.test('a claim that waits wakes at once when work comes, and not for other work', async t => {
  const parts = await setUp(t)
  const times: number[] = []
  for (let round = 0; round < 5; round++) {
    const waiting = parts.claims.claim(aClaim({ waitMs: 20_000 }), NEVER)
    await submitTasks(parts.engine, 1, () => ({ type: 'other' }))
    await parts.projected()
    const since = performance.now()
    const [taskId] = await submitTasks(parts.engine, 1)
    t.strictSame(idsOf(await waiting), [taskId])
    times.push(performance.now() - since)
  }
  t.ok(Math.min(...times) < LOOK_MS, `${times.map(Math.round)} ms`)
})

t.test('S74 work that comes between the look and the wait is not missed', async t => {
  const times: number[] = []
  for (let round = 0; round < 3; round++) {
    const parts = await startParts(t)
    const [taskId] = await submitTasks(parts.engine, 1)
    const announced = signalled()
    const ready = parts.signal.ready.bind(parts.signal)
    parts.signal.ready = work => {
      ready(work)
      if (work.length > 0) announced.resolve()
    }
    let since = 0
    const slow: WorkState = {
      ...parts.workState,
      take: async claim => {
        const found = await parts.workState.take(claim)
        if (since === 0) {
          // The look found nothing; before the claim waits, the work comes and is announced.
          parts.projector.start()
          await announced.promise
          since = performance.now()
        }
        return found
      },
    }
    const claims = new Claims(slow, parts.engine, parts.signal)
    t.strictSame(idsOf(await claims.claim(aClaim({ waitMs: 20_000 }), NEVER)), [taskId])
    times.push(performance.now() - since)
  }
  t.ok(Math.min(...times) < LOOK_MS, `${times.map(Math.round)} ms`)
})

t.test(
  'a look that took all rests until something is announced; the last one before the answer does not',
  async t => {
    const parts = await setUp(t)
    await parts.projected()
    let looks = 0
    const counting: WorkState = {
      ...parts.workState,
      take: claim => {
        looks++
        return parts.workState.take(claim)
      },
    }
    const claims = new Claims(counting, parts.engine, parts.signal)
    t.strictSame(await claims.claim(aClaim(), NEVER), [])
    t.equal(looks, 1)
    const waiting = claims.claim(aClaim({ waitMs: 20_000 }), NEVER)
    t.equal(looks, 1, 'nothing came since the look before')
    t.strictSame(await claims.claim(aClaim(), NEVER), [])
    t.equal(looks, 2, 'a claim that does not wait looks')
    const [taskId] = await submitTasks(parts.engine, 1)
    t.strictSame(idsOf(await waiting), [taskId])
    parts.signal.ready = () => {}
    const [unannounced] = await submitTasks(parts.engine, 1)
    t.strictSame(idsOf(await claims.claim(aClaim({ waitMs: 20_000 }), NEVER)), [unannounced])
  },
)

t.test('an aborted claim ends its waiting at once', async t => {
  const parts = await setUp(t)
  const gone = new AbortController()
  const waiting = parts.claims.claim(aClaim({ waitMs: 30_000 }), gone.signal)
  const since = performance.now()
  gone.abort()
  t.strictSame(await waiting, [])
  t.ok(performance.now() - since < 5_000)
  t.strictSame(await parts.claims.claim(aClaim({ waitMs: 30_000 }), gone.signal), [])
})

t.test('a claim that finds nothing answers after its wait', async t => {
  const parts = await setUp(t)
  const since = performance.now()
  t.strictSame(await parts.claims.claim(aClaim({ waitMs: 100 }), NEVER), [])
  const took = performance.now() - since
  t.ok(took >= 99 && took < 5_000, `${took} ms`)
})

t.test('what a claimer took and never started is offered again when its time is over', async t => {
  const parts = await setUp(t)
  const ids = await submitTasks(parts.engine, 3)
  await parts.projected()
  const died = await startEngine(parts.log)
  await died.stop()
  await t.rejects(new Claims(parts.workState, died, parts.signal).claim(aClaim(), NEVER), {
    code: 'shutting_down',
  })
  await parts.timers.tick()
  t.strictSame(await parts.claims.claim(aClaim(), NEVER), [], 'not before')
  await parts.rows(OVERDUE)
  const waiting = parts.claims.claim(aClaim({ waitMs: 20_000 }), NEVER)
  await parts.timers.tick()
  t.strictSame(idsOf(await waiting).sort(), ids.sort())
  t.match(await parts.rows('SELECT * FROM rollcall.offers'), [], 'nothing is held any more')
})

t.test(
  'an offer is held twice as long each time, up to five minutes; another attempt begins anew',
  async t => {
    const parts = await setUp(t)
    const [taskId] = (await submitTasks(parts.engine, 1)) as [string]
    await parts.projected()
    const { workState } = parts
    const offer = async () => {
      t.match(
        await workState.take({ claimId: randomUUID(), types: ['image.generate'], max: 5, tenant: null }),
        [{ taskId }],
      )
      const [row] = await parts.rows<{ seconds: number; times: number }>(
        `SELECT round(extract(epoch FROM held_until - clock_timestamp()) / 10)::int * 10 AS seconds,
              times_offered AS times FROM rollcall.offers`,
      )
      t.match((await workState.signals(await parts.task(taskId))).offer, {
        heldUntil: Number,
        timesOffered: row!.times,
      })
      return row!.seconds
    }
    const held: number[] = []
    for (let time = 0; time < 8; time++) {
      held.push(await offer())
      await parts.rows(OVERDUE)
      t.strictSame(await workState.returnOverdueOffers(10), [{ type: 'image.generate', tenant: null }])
      t.strictSame((await workState.signals(await parts.task(taskId))).offer, {
        heldUntil: null,
        timesOffered: time + 1,
      })
    }
    t.strictSame(held, [10, 20, 40, 80, 160, 300, 300, 300])
    await parts.engine.executeMany([start(), fail({ retryAfterMs: 0 }), retry()].map(one => ask(taskId, one)))
    await parts.projected()
    t.equal(await offer(), 10)
  },
)

t.test('what is cancelled or finished leaves ready and offers, whichever process projects', async t => {
  const parts = await startParts(t)
  const other = await openParts(t, parts.url)
  other.projector.start()
  const ids = await submitTasks(parts.engine, 8)
  await parts.projected()
  await parts.workState.take({ claimId: 'c-1', types: ['image.generate'], max: 4, tenant: null })
  t.strictSame([await countOf(parts, 'ready'), await countOf(parts, 'offers')], [4, 4])
  for (const [index, id] of ids.entries())
    for (const command of index % 2 === 0 ? [cancel()] : [start(), succeed()])
      mustBe('accepted', await parts.engine.execute(ask(id, command)))
  await parts.projected()
  t.strictSame([await countOf(parts, 'ready'), await countOf(parts, 'offers')], [0, 0])
})

t.test('a task that goes back to ready while it is cancelled does not stay there', async t => {
  const parts = await startParts(t)
  const [taskId] = (await submitTasks(parts.engine, 1)) as [string]
  parts.projector.start()
  await parts.projected()
  await parts.workState.take({ claimId: 'c-1', types: ['image.generate'], max: 1, tenant: null })
  // The offer goes back in a transaction that has not committed when the projector comes.
  const slow = new pg.Client(parts.url)
  await slow.connect()
  t.teardown(() => slow.end())
  await slow.query('BEGIN')
  await slow.query(`WITH gone AS (DELETE FROM rollcall.offers RETURNING *)
    INSERT INTO rollcall.ready SELECT task_id, type, priority, pending_since, attempt, times_offered FROM gone`)
  mustBe('accepted', await parts.engine.execute(ask(taskId, cancel())))
  await until('the projector waits for it', async () => {
    const [row] = await parts.rows<{ n: number }>(
      `SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    )
    return row!.n > 0
  })
  await slow.query('COMMIT')
  await parts.projected()
  t.strictSame([await countOf(parts, 'ready'), await countOf(parts, 'offers')], [0, 0])
})

t.test('a START that is refused takes the task out of the offers, and the claim goes on', async t => {
  const parts = await setUp(t)
  const [cancelled, started, sound] = (await submitTasks(parts.engine, 3)) as [string, string, string]
  await parts.projected()
  // The read model has not heard of it.
  await parts.projector.stop()
  await parts.engine.execute(ask(cancelled, cancel()))
  await parts.engine.execute(ask(started, start({ leaseTokenHash: TOKEN_B })))
  t.strictSame(idsOf(await parts.claims.claim(aClaim(), NEVER)), [sound])
  t.match(await parts.rows('SELECT task_id FROM rollcall.offers'), [{ task_id: sound }])
  t.equal((await history(parts.log, cancelled)).length, 2)
})

t.test('a START that failed for a passing reason keeps its offer', async t => {
  const parts = await setUp(t)
  await submitTasks(parts.engine, 1)
  await parts.projected()
  const refusing = {
    executeMany: async (asked: unknown[]) =>
      asked.map(() => ({ kind: 'refused', code: 'log_unavailable', message: '', task: null })),
  } as unknown as Engine
  const claim = aClaim()
  const refused = new Claims(parts.workState, refusing, parts.signal).claim(claim, NEVER)
  await t.rejects(refused, { code: 'log_unavailable' }, 'the worker is told to ask again')
  t.equal(await countOf(parts, 'offers'), 1)
  t.equal((await parts.claims.claim(claim, NEVER)).length, 1)
})

/** Claims that wait, one behind the other, where nothing is projected: all they can have is what they are handed. */
async function waitingClaims(t: Parameters<typeof startParts>[0], ...claims: Claim[]) {
  const parts = await startParts(t)
  let looked = signalled()
  const workState: WorkState = {
    ...parts.workState,
    take: async claim => {
      const taken = await parts.workState.take(claim)
      looked.resolve()
      return taken
    },
  }
  const all = new Claims(workState, parts.engine, parts.signal)
  const waiting: Promise<ProcessingTask[]>[] = []
  for (const claim of claims) {
    looked = signalled()
    waiting.push(all.claim(claim, NEVER))
    await looked.promise
    // Behind its look it waits.
    await new Promise(setImmediate)
  }
  return { ...parts, claims: all, waiting }
}

t.test('a claim that waits is handed what is submitted, which never was ready', async t => {
  const claim = aClaim({ waitMs: 20_000 })
  const parts = await waitingClaims(t, claim)
  const [first, second] = (await submitTasks(parts.engine, 2)) as [string, string]
  const [handed] = await Promise.all(parts.waiting)
  t.strictSame(idsOf(handed!), [first, second])
  t.match(handed, [
    { status: 'PROCESSING', attempt: 1, worker: claim.worker, startCommandId: claim.claimId },
    {},
  ])
  t.strictSame(await typesOf(parts.log, first), ['TaskSubmitted', 'TaskStarted'])
  parts.projector.start()
  await parts.projected()
  t.equal(await countOf(parts, 'ready'), 0)
  t.equal(await countOf(parts, 'offers'), 0)
  t.strictSame(
    await parts.rows(
      'SELECT status, revision, claim_id FROM rollcall.tasks JOIN rollcall.leases USING (task_id)',
    ),
    [1, 2].map(() => ({ status: 'PROCESSING', revision: 1, claim_id: claim.claimId })),
  )
  mustBe('accepted', await parts.engine.execute(ask(first, succeed())))
})

t.test(
  'a claim is handed its types, its tenant and as many as it asks for; the oldest claim first',
  async t => {
    const claims = [
      aClaim({ types: ['report'], waitMs: 20_000 }),
      aClaim({ tenant: 'acme', waitMs: 20_000 }),
      aClaim({ max: 2, waitMs: 20_000 }),
      aClaim({ types: ['report', 'image.generate'], waitMs: 20_000 }),
    ]
    const { engine, waiting } = await waitingClaims(t, ...claims)
    const ids = await submitTasks(engine, 5, index => ({
      tenant: index === 1 ? 'acme' : null,
      ...(index === 4 && { type: 'report' }),
    }))
    const handed = await Promise.all(waiting)
    t.strictSame(
      handed.map(idsOf),
      [[4], [1], [0, 2], [3]].map(which => which.map(index => ids[index])),
    )
  },
)

t.test(
  'a claim is handed the most urgent of what is submitted together, and nothing that is delayed',
  async t => {
    const { engine, waiting } = await waitingClaims(t, aClaim({ max: 2, waitMs: 20_000 }))
    const ids = await submitTasks(engine, 4, index => ({
      priority: index,
      ...(index === 3 && { delayMs: 60_000 }),
    }))
    t.strictSame(idsOf((await Promise.all(waiting))[0]!), [ids[2], ids[1]])
    t.match(engine.known(ids[0]!), { status: 'PENDING' })
  },
)

t.test(
  'a claim that was handed tasks and asks again with its id has them, projected or not, and no others',
  async t => {
    const claim = aClaim({ max: 2, waitMs: 20_000 })
    const parts = await waitingClaims(t, claim)
    const ids = (await submitTasks(parts.engine, 3)) as [string, string, string]
    await Promise.all(parts.waiting)
    const again = async (over: Partial<Claim> = {}) =>
      idsOf(await parts.claims.claim({ ...claim, waitMs: 0, ...over }, NEVER))
    t.strictSame(await again(), ids.slice(0, 2))
    t.strictSame(await again({ tenant: 'acme' }), [], "of that id, but another tenant's")
    t.strictSame(await again({ leaseTokenHash: TOKEN_B }), [], 'by another token')
    mustBe('accepted', await parts.engine.execute(ask(ids[0], succeed())))
    t.strictSame(await again(), [ids[1]])
    parts.projector.start()
    await parts.projected()
    t.strictSame(await again(), [ids[1]])
    t.strictSame(
      idsOf(
        await new Claims(parts.workState, parts.engine, parts.signal).claim({ ...claim, waitMs: 0 }, NEVER),
      ),
      [ids[1]],
      'another process finds it by its lease',
    )
    mustBe('accepted', await parts.engine.execute(ask(ids[1], succeed())))
    await parts.projected()
    t.strictSame(await again(), [ids[2]], 'all of it has ended: what it takes is new')
    for (const taskId of ids)
      t.equal((await typesOf(parts.log, taskId)).filter(is => is === 'TaskStarted').length, 1)
  },
)

t.test('a claim whose handed tasks may be stored or not can be asked again', async t => {
  let away = true
  const parts = await startParts(t, {
    engine: { appendDeadlineMs: 0 },
    log: log =>
      wrapLog(log, {
        appendMany: async appends => {
          const results = await log.appendMany(appends)
          if (away && appends.some(({ events }) => events.length > 1))
            throw new LogUnavailableError('the answer was lost')
          return results
        },
      }),
  })
  const claim = aClaim({ waitMs: 20_000 })
  const waiting = parts.claims.claim(claim, NEVER)
  waiting.catch(() => {})
  let taskId = ''
  await until('the claim waits', async () => {
    taskId = randomUUID()
    const { kind } = await parts.engine.execute(ask(taskId, submitting()))
    return kind === 'refused'
  })
  await t.rejects(waiting, { code: 'log_unavailable' })
  away = false
  t.strictSame(idsOf(await parts.claims.claim({ ...claim, waitMs: 0 }, NEVER)), [taskId])
  t.strictSame(await typesOf(parts.log, taskId), ['TaskSubmitted', 'TaskStarted'])
})

t.test('a claim that has gone is handed nothing', async t => {
  const parts = await setUp(t)
  const gone = new AbortController()
  const waiting = parts.claims.claim(aClaim({ waitMs: 30_000 }), gone.signal)
  const behind = parts.claims.claim(aClaim({ waitMs: 30_000 }), NEVER)
  await parts.projected()
  gone.abort()
  const [taskId] = await submitTasks(parts.engine, 1)
  t.strictSame(await waiting, [])
  t.strictSame(idsOf(await behind), [taskId])
})

const work = (type: string, count: number, tenant: string | null = null): Work[] =>
  Array.from({ length: count }, () => ({ type, tenant }))

t.test('a waiter is woken for its types only, as many as the work needs, the oldest first', async t => {
  const signal = new WorkSignal()
  const woken: string[] = []
  const wait = (name: string, types: string[], wants = 1) => {
    const look = signal.look(types)
    void look.wait(wants, 60_000, NEVER).then(() => woken.push(name))
  }
  wait('first', ['a'])
  wait('second', ['a', 'b'], 5)
  wait('third', ['a'])
  wait('fourth', ['c'])
  const turn = () => new Promise(setImmediate)
  signal.ready(work('z', 3))
  await turn()
  t.strictSame(woken, [])
  signal.ready(work('a', 2))
  await turn()
  t.strictSame(woken, ['first', 'second'])
  signal.ready([...work('a', 9), ...work('c', 1)])
  await turn()
  t.strictSame(woken, ['first', 'second', 'third', 'fourth'])
})

t.test("a tenant's waiter is woken by its tenant's work alone, and takes none from the others", async t => {
  const signal = new WorkSignal(() => true)
  const woken: string[] = []
  const wait = (name: string, tenant: string | null, wants = 1) =>
    void signal
      .look(['a'], tenant)
      .wait(wants, 60_000, NEVER)
      .then(() => woken.push(name))
  const turn = () => new Promise(setImmediate)
  wait('globex', 'globex')
  wait('acme', 'acme')
  wait('anyone', null, 2)
  wait('last', null)
  signal.ready(work('a', 1, 'acme'))
  await turn()
  t.strictSame(woken, ['acme'])
  signal.ready([...work('a', 1, 'initech'), ...work('a', 1), ...work('a', 1, 'globex')])
  await turn()
  t.strictSame(woken, ['acme', 'globex', 'anyone'], 'two were left for one who wants two')
  signal.look(['a'], 'acme').foundEnd()
  t.ok(signal.restMs(['a'], 'acme') > 0)
  t.equal(signal.restMs(['a'], 'globex'), 0, "what one tenant's look took says nothing about another's")
  t.equal(signal.restMs(['a']), 0)
  signal.look(['a']).foundEnd()
  t.ok(signal.restMs(['a'], 'globex') > 0, 'where nothing is left there is nothing for a tenant')
  signal.ready(work('a', 1, 'acme'))
  for (const tenant of ['acme', null]) t.equal(signal.restMs(['a'], tenant), 0)
})

t.test('a look that something came after does not wait, and one that has ended is forgotten', async t => {
  const signal = new WorkSignal()
  const look = signal.look(['a'])
  signal.ready(work('b', 1))
  signal.ready(work('a', 1))
  await look.wait(1, 60_000, NEVER)
  const ended = signal.look(['a'])
  ended.end()
  signal.ready(work('a', 1))
  const gone = new AbortController()
  const waiting = signal.look(['a']).wait(1, 60_000, gone.signal)
  gone.abort()
  await waiting
  await signal.look(['a']).wait(1, 1, NEVER)
  t.pass('each wait has ended')
})

// Kept last: a claim id is chosen by the worker.
t.test('a claim id is remembered by its tasks alone: once they have ended it takes new ones', async t => {
  const parts = await setUp(t)
  const claim = aClaim({ claimId: randomUUID(), max: 1 })
  await submitTasks(parts.engine, 2)
  await parts.projected()
  const [first] = await parts.claims.claim(claim, NEVER)
  mustBe('accepted', await parts.engine.execute(ask(first!.taskId, succeed())))
  await parts.projected()
  await until('it takes the next', async () => (await parts.claims.claim(claim, NEVER)).length === 1)
})
