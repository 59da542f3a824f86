/**
 * The tables in memory answer as Postgres does: the same seeded calls to both, their answers and their rows beside
 * each other. Times differ by what the calls take and are left out; what has ended is made so in both.
 */
import pg from 'pg'
import t, { type Test } from 'tap'
import type { Command } from '../../src/domain/commands.ts'
import type { PendingTask, ProcessingTask, Task } from '../../src/domain/task.ts'
import type { Checkpoint } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { PostgresReadModel } from '../../src/projections/postgres/postgres-read-model.ts'
import type { ReadModel } from '../../src/projections/read-model.ts'
import { PostgresWorkState } from '../../src/workers/postgres/postgres-work-state.ts'
import { dispatchId, type WorkState } from '../../src/workers/work-state.ts'
import { testDatabase } from '../support/postgres.ts'
import { ask, STANDARD, startEngine } from '../support/service-parts.ts'
import { MemoryTables } from './memory-tables.ts'
import { randomFrom } from './world.ts'

const ROUNDS = 300
const TASKS = 40
const HOUR_MS = 3_600_000
const TOKENS = ['a'.repeat(64), 'b'.repeat(64)]
const TIMES = new Set(['heldUntil', 'lastHeartbeatAt', 'dueAt', 'toldAt', 'createdAt', 'gapMs'])

type Call = (workState: WorkState, readModel: ReadModel) => Promise<unknown>

t.test('memory and Postgres give the same answers and keep the same rows', async t => {
  for (const seed of [1, 2, 3]) await compare(t, seed)
})

async function compare(t: Test, seed: number): Promise<void> {
  const random = randomFrom(seed)
  const { url } = await testDatabase(t)
  const pool = new pg.Pool({ connectionString: url, max: 2 })
  t.teardown(() => pool.end())
  const postgres = { workState: new PostgresWorkState(pool), readModel: new PostgresReadModel(pool) }
  const memory = new MemoryTables(() => Date.now())
  memory.lookedAt = Date.now()
  await pool.query('UPDATE rollcall.timer_ticks SET ticked_at = clock_timestamp()')
  const log = createMemoryEventLog()
  const engine = await startEngine(log, { clock: { now: () => Date.now() } })
  t.teardown(() => engine.stop())

  /** Every state that any task went through. */
  const states: Task[] = []
  const latest = new Map<string, Task>()
  let checkpoint: Checkpoint | null = null
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)]!
  const some = <T>(from: readonly T[]): T[] => from.filter(() => random() < 0.4)
  const ids = Array.from(
    { length: TASKS },
    (_, index) => `018f4e7a-0000-7000-8000-${String(index).padStart(12, '0')}`,
  )
  const inStatus = <T extends Task>(status: T['status']): T[] =>
    states.filter((task): task is T => task.status === status)

  const commandFor = (task: Task | undefined): Command => {
    if (!task) return submit(random)
    if (random() < 0.03) return { trigger: 'CANCEL', reason: null }
    const { attempt } = task
    if (task.status === 'PENDING')
      return { trigger: 'START', worker: pick(['w1', 'w2']), attempt, leaseTokenHash: pick(TOKENS) }
    if (task.status !== 'PROCESSING') return { trigger: 'RETRY', reason: null }
    const fence = { attempt, leaseTokenHash: task.leaseTokenHash }
    const error = { code: 'x', message: 'x' }
    return pick<Command>([
      { trigger: 'SUCCEED', result: null, resultUrl: null, ...fence },
      { trigger: 'FAIL', error, retryable: true, retryAfterMs: null, ...fence },
      { trigger: 'FAIL', error, retryable: false, retryAfterMs: null, ...fence },
      { trigger: 'RELEASE', reason: null, ...fence },
    ])
  }
  const move = async (): Promise<void> => {
    const taskId = pick(ids)
    const answer = await engine.execute(
      ask(taskId, commandFor(latest.get(taskId)), { commandId: `command-${random()}` }),
      () => 'f'.repeat(64),
    )
    if (answer.kind !== 'accepted') return
    states.push(answer.task)
    latest.set(taskId, answer.task)
  }
  const write = (): Call => {
    // As folded, or what was written before once more.
    const tasks = [
      ...new Map([...some(states.slice(-8)), ...latest.values()].map(task => [task.taskId, task])).values(),
    ]
    const chosen = random() < 0.2 ? some(states).slice(0, 1) : tasks
    return async (_, readModel) => {
      const head = (await log.head())!
      await readModel.acquire('tasks', ids[0]!, 60_000)
      const step = {
        name: 'tasks',
        holder: ids[0]!,
        leaseMs: 60_000,
        from: checkpoint,
        to: head,
        eventAt: null,
      }
      return (await readModel.write(chosen, [], step)).moved
        .map(task => `${task.taskId}/${task.revision}`)
        .sort()
    }
  }
  const claimId = (): string => pick(['c1', 'c2', 'c3', 'c4', 'c5'])
  const calls: (() => Call)[] = [
    write,
    write,
    () => {
      const claim = {
        claimId: claimId(),
        types: ['image.generate', 'report'],
        max: pick([0, 1, 3]),
        tenant: pick([null, 'acme']),
      }
      return async state => {
        const taken = await state.take(claim)
        // Those of a claim that is asked again come in no order.
        return taken.some(({ again }) => again) ? taken.map(one => JSON.stringify(one)).sort() : taken
      }
    },
    () => {
      const query = {
        type: pick(['image.generate', 'report']),
        max: pick([0, 2, 5]),
        maxOutstanding: pick([0, 4, 8]),
        holdMs: 1_000,
      }
      return async state => {
        const { taken, outstanding } = await state.takeToDispatch(query)
        return { taken, outstanding }
      }
    },
    () => {
      const given = [pick([claimId(), dispatchId('image.generate')]), some(ids)] as const
      return state => state.dropOffers(...given)
    },
    () => state => state.returnOverdueOffers(100).then(types => types.map(({ type }) => type).sort()),
    () => {
      const tasks = some(inStatus<PendingTask>('PENDING')).slice(-2)
      return state => state.makeReady(distinct(tasks))
    },
    () => {
      const beats = some(inStatus<ProcessingTask>('PROCESSING')).slice(-4)
      return async state => {
        const held = await state.beat(
          beats.map(({ taskId, attempt, leaseTokenHash }) => ({
            taskId,
            attempt,
            leaseTokenHash,
            progress: 0.5,
          })),
        )
        return [...held.keys()].sort()
      }
    },
    () => {
      const tasks = some(inStatus<ProcessingTask>('PROCESSING')).slice(-2)
      return state => state.grantLeases(distinct(tasks))
    },
    () => {
      const leases = some(states).slice(-2)
      return state => state.withdrawLeases(leases)
    },
    () => {
      const gapMs = pick([2_000, 4 * HOUR_MS])
      return async state =>
        (await state.takeLostLeases(100, gapMs))
          .map(({ taskId, attempt, lastHeartbeatAt }) => `${taskId}/${attempt}/${lastHeartbeatAt !== null}`)
          .sort()
    },
    () => {
      const lost = some(ids)
      return state => state.dropLostLeases(lost)
    },
    () => {
      const told = some([...latest.values()])
        .slice(0, 1)
        .map(({ taskId, attempt }) => ({ taskId, attempt, worker: 'w1' }))
      return state => state.markTold(told)
    },
    () => {
      const of = [...latest.values()]
      return async state => Promise.all(of.map(async task => withoutTimes(await state.signals(task))))
    },
    () => async state => withoutTimes(await state.beginLook(2_000)),
    () => state => state.keepLook(2_000),
    () => {
      const query = { after: null, limit: pick([2, 100]), graceMs: pick([0, HOUR_MS]) }
      return async state =>
        (await state.dueDeadlines(query)).map(({ taskId, timer, attempt }) => `${taskId}/${timer}/${attempt}`)
    },
    () => {
      const tasks = some(
        [...latest.values()].filter((task): task is PendingTask => task.status === 'PENDING'),
      )
      return state => state.passNotBefore(tasks)
    },
    () => {
      const status = pick(['PENDING', 'PROCESSING', 'RETRYING'] as const)
      const limit = pick([2, 100])
      return async state => {
        const { taskIds, next } = await state.lostWork(status, null, limit)
        return { taskIds: taskIds.sort(), next: next?.taskId ?? null }
      }
    },
  ]

  for (let round = 0; round < ROUNDS; round++) {
    await move()
    if (random() < 0.3) await end(pool, memory, some(ids))
    const call = pick(calls)()
    const answers = [await call(postgres.workState, postgres.readModel), await call(memory, memory)]
    t.strictSame(answers[1], answers[0], `seed ${seed}, round ${round}: the answer`)
    const acquired = [
      await postgres.readModel.acquire('tasks', ids[0]!, 60_000),
      await memory.acquire('tasks', ids[0]!, 60_000),
    ]
    t.strictSame(acquired[1], acquired[0], `seed ${seed}, round ${round}: the checkpoint`)
    checkpoint = acquired[0]?.checkpoint ?? checkpoint
    t.strictSame(rowsOf(memory), await rowsIn(pool), `seed ${seed}, round ${round}: the rows`)
    if (!t.passing()) return
  }
  t.ok(states.length > 100, `${states.length} states`)
}

const submit = (random: () => number): Command => ({
  trigger: 'SUBMIT',
  type: random() < 0.8 ? 'image.generate' : 'report',
  priority: Math.floor(random() * 3),
  tenant: random() < 0.4 ? 'acme' : null,
  lifecycle: STANDARD,
  timeouts: { queueMs: HOUR_MS, executionMs: HOUR_MS, leaseMs: 60_000, totalMs: 2 * HOUR_MS },
  retry: { maxAttempts: 3, initialDelayMs: 1, factor: 1, maxDelayMs: 1, jitter: 0 },
  runAt: null,
  delayMs: random() < 0.3 ? 1 : null,
  payload: null,
  labels: {},
  salt: 'salt',
  fingerprint: 'f'.repeat(64),
})

const distinct = <T extends Task>(tasks: readonly T[]): T[] => [
  ...new Map(tasks.map(task => [task.taskId, task])).values(),
]

/** Ends offers, leases, deadlines and the last look of these tasks, in both. */
async function end(pool: pg.Pool, memory: MemoryTables, ids: readonly string[]): Promise<void> {
  const past = Date.now() - 2 * HOUR_MS
  const given = [ids, new Date(past).toISOString()]
  await pool.query('UPDATE rollcall.offers SET held_until = $2 WHERE task_id = ANY ($1::uuid[])', given)
  await pool.query('UPDATE rollcall.leases SET held_until = $2 WHERE task_id = ANY ($1::uuid[])', given)
  await pool.query('UPDATE rollcall.deadlines SET due_at = $2 WHERE task_id = ANY ($1::uuid[])', given)
  await pool.query(`UPDATE rollcall.timer_ticks SET ticked_at = $1`, [given[1]])
  memory.lookedAt = past
  for (const id of ids) {
    const [offer, lease, deadline] = [memory.offers.get(id), memory.leases.get(id), memory.deadlines.get(id)]
    if (offer) offer.heldUntil = past
    if (lease) lease.heldUntil = past
    if (deadline) deadline.dueAt = past
  }
}

/** Without what depends on when it was asked. */
function withoutTimes(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .filter(
        ([key]) =>
          ['lost', 'progress', 'timesOffered', 'attempt', 'worker', 'leases'].includes(key) ||
          TIMES.has(key) ||
          typeof value[key as never] === 'object',
      )
      .map(([key, inner]) => [key, TIMES.has(key) ? inner !== null : withoutTimes(inner)]),
  )
}

const rowsOf = (memory: MemoryTables) => ({
  tasks: sorted([...memory.tasks].map(([id, task]) => `${id} ${task.status} ${task.revision}`)),
  deadlines: sorted([...memory.deadlines].map(([id, { timer, attempt }]) => `${id} ${timer} ${attempt}`)),
  ready: sorted(
    [...memory.ready].map(
      ([id, row]) =>
        `${id} ${row.type} ${row.priority} ${row.attempt} ${row.timesOffered} ${row.pendingSince}`,
    ),
  ),
  offers: sorted(
    [...memory.offers].map(
      ([id, row]) => `${id} ${row.claimId} ${row.attempt} ${row.timesOffered} ${row.pendingSince}`,
    ),
  ),
  leases: sorted(
    [...memory.leases].map(
      ([id, row]) =>
        `${id} ${row.attempt} ${row.leaseTokenHash} ${row.claimId} ${row.worker} ${row.lost} ${row.progress}`,
    ),
  ),
  notices: sorted(
    [...memory.notices].map(
      ([id, { attempt, worker, toldAt }]) => `${id} ${attempt} ${worker} ${toldAt !== null}`,
    ),
  ),
})

const MS = (column: string): string => `(extract(epoch FROM ${column}) * 1000)::bigint`

async function rowsIn(pool: pg.Pool): Promise<ReturnType<typeof rowsOf>> {
  const lines = async (columns: string, table: string): Promise<string[]> => {
    const { rows } = await pool.query<Record<string, unknown>>(`SELECT ${columns} FROM rollcall.${table}`)
    return sorted(rows.map(row => Object.values(row).join(' ')))
  }
  return {
    tasks: await lines('task_id, status, revision', 'tasks'),
    deadlines: await lines('task_id, timer, attempt', 'deadlines'),
    ready: await lines(
      `task_id, type, priority, attempt, times_offered, ${MS('pending_since')} AS since`,
      'ready',
    ),
    offers: await lines(
      `task_id, claim_id, attempt, times_offered, ${MS('pending_since')} AS since`,
      'offers',
    ),
    leases: await lines(
      `task_id, attempt, token_hash, claim_id, worker, lost, coalesce(progress::text, 'null') AS progress`,
      'leases',
    ),
    notices: await lines('task_id, attempt, worker, told_at IS NOT NULL AS told', 'cancel_notices'),
  }
}

const sorted = (lines: string[]): string[] => lines.sort()
