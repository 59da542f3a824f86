/**
 * The plans of every statement that a look of the timers, a claim, a dispatcher or a read of a waiting task runs, the
 * ones inside functions too, as Postgres itself reports them (auto_explain), without costs. Both kinds are taken:
 * planned for its values, as a connection's first runs are, and planned once for any, as its later ones may be.
 */
import { readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import type { Test } from 'tap'
import { fillOpenTasks } from '../../bench/open-tasks.ts'
import type { OpenTask, PendingTask, ProcessingTask } from '../../src/domain/task.ts'
import { readSample } from '../../src/projections/type-statistics.ts'
import { PostgresWorkState } from '../../src/workers/postgres/postgres-work-state.ts'
import { testDatabase } from '../support/postgres.ts'

const KINDS = ['custom', 'generic'] as const
/** Tables that have a row for each open task, or for a share of them, read from end to end. */
const WHOLE =
  /(Seq Scan on (tasks|deadlines|ready|offers|leases)\b|Index (Only )?Scan using .*$(?!\n +Index Cond))/m
const TYPES = 5
/** Types that a claim of several names; not all of them have tasks. */
const CLAIMED = ['type-0', 'type-1', 'type-2', 'type-3', 'type-4']
const DUE = 20

type Plans = Map<string, string>

/** Compares the plans with so many open tasks with the reviewed ones; `TAP_SNAPSHOT=1` writes those anew. */
export async function comparePlans(t: Test, count: number, types = TYPES): Promise<void> {
  const { url } = await testDatabase(t)
  const client = new pg.Client(url)
  await client.connect()
  const since = performance.now()
  await fillOpenTasks(client, { count, types, due: DUE })
  // Half of what waits is some tenant's: enough that reading its tasks in order is plainly cheaper than sorting them.
  await client.query(`UPDATE rollcall.ready SET tenant = 'tenant-' || get_byte(uuid_send(task_id), 14) % 10
                       WHERE get_byte(uuid_send(task_id), 15) < 128`)
  await client.query('VACUUM ANALYZE rollcall.ready')
  await client.end()
  t.comment(`${count} open tasks written in ${((performance.now() - since) / 1_000).toFixed(1)} s`)
  const found = new Map<string, string>()
  for (const kind of KINDS)
    for (const [name, plan] of await plansOf(url, kind))
      found.set(name, `${found.get(name) ?? ''}-- ${kind}\n${plan}\n`)
  for (const [name, plan] of found) {
    const file = fileURLToPath(new URL(`plans/${name}.txt`, import.meta.url))
    if (process.env.TAP_SNAPSHOT === '1') await writeFile(file, plan)
    t.equal(plan, await readFile(file, 'utf8').catch(() => 'no such file'), name)
    t.notMatch(plan, WHOLE, `${name} reads no growing table from end to end`)
  }
}

/**
 * A claim, a claim of one tenant and a dispatcher in a new database: nothing is known of its tables, which are empty when
 * the plans are made. They are what is kept by connections that were there first.
 */
export async function comparePlansWhenNew(t: Test): Promise<void> {
  const { url } = await testDatabase(t)
  const plans = await explained(url, 'custom', async (pool, run) => {
    const state = new PostgresWorkState(pool)
    for (const asked of ['empty', 'filled']) {
      const claim = { max: 10, types: CLAIMED }
      await run(`${asked}: claim-take`, () => state.take({ ...claim, claimId: asked, tenant: null }))
      await run(`${asked}: claim-take-own`, () =>
        state.take({ ...claim, claimId: `${asked} own`, tenant: 'tenant-3' }),
      )
      const dispatch = { type: 'type-2', max: 10, maxOutstanding: 15, holdMs: 60_000 }
      await run(`${asked}: take-to-dispatch`, () => state.takeToDispatch(dispatch))
      await pool.query(
        `INSERT INTO rollcall.ready (task_id, type, priority, pending_since, attempt, tenant)
         SELECT gen_random_uuid(), 'type-' || n % 5, 0, now(), 1, 'tenant-' || n % 10 FROM generate_series(1, 5000) n`,
      )
    }
  })
  t.equal(plans.size, 6)
  for (const [name, plan] of plans) {
    t.match(
      plan,
      /LockRows\n +-> {2}Index Scan using ready_(order|by_tenant) on ready/,
      `${name} reads in order`,
    )
    t.notMatch(plan, WHOLE, `${name} reads no growing table from end to end`)
  }
}

/** What functions run: their plans are kept per connection, for tables that have grown since. */
const KEPT =
  /^(pass-not-before|arm-again|make-ready-again|grant-leases|claim-take(-own|-again|-types)?|take-to-dispatch)$/

/**
 * The plans that are kept, where hardly anything stood in the work state when its tables were last analysed: between two
 * bursts all is done. To read them all for each row that is looked up looks cheap then.
 */
export async function comparePlansWhenAlmostEmpty(t: Test): Promise<void> {
  const { url } = await testDatabase(t)
  const client = new pg.Client(url)
  await client.connect()
  await fillOpenTasks(client, { count: 10_000, types: TYPES, due: DUE })
  const tables = ['ready', 'offers', 'leases', 'deadlines']
  for (const table of tables) {
    await client.query(`CREATE TEMP TABLE ${table} AS SELECT * FROM rollcall.${table}`)
    await client.query(`TRUNCATE rollcall.${table}`)
    await client.query(`INSERT INTO rollcall.${table} SELECT * FROM ${table} LIMIT 1`)
  }
  await client.query('VACUUM ANALYZE')
  for (const table of tables)
    await client.query(
      `INSERT INTO rollcall.${table} SELECT * FROM ${table} LIMIT 200 ON CONFLICT DO NOTHING`,
    )
  await client.end()
  for (const kind of KINDS)
    for (const [name, plan] of await plansOf(url, kind))
      if (KEPT.test(name)) t.notMatch(plan, WHOLE, `${name} reads no growing table from end to end (${kind})`)
}

async function plansOf(url: string, kind: (typeof KINDS)[number]): Promise<Plans> {
  return explained(url, kind, async (pool, run) => {
    const tasks = await pool.query<{ task_id: string; status: string }>(
      `SELECT DISTINCT ON (status) task_id, status FROM rollcall.tasks ORDER BY status, created_at DESC`,
    )
    const last = await pool.query<{ task_id: string }>(
      `SELECT task_id FROM rollcall.ready WHERE type = 'type-1'
        ORDER BY priority, pending_since DESC, task_id DESC LIMIT 1`,
    )
    const lastWaiting = { taskId: last.rows[0]!.task_id, attempt: 1, status: 'PENDING' } as PendingTask
    await run('signals-waiting', () => new PostgresWorkState(pool).signals(lastWaiting))
    await run('type-sample', () => readSample(pool, 'type-1'))
    await runAll(new PostgresWorkState(pool), new Map(tasks.rows.map(row => [row.status, row.task_id])), run)
  })
}

type Run = (name: string, call: () => Promise<unknown>) => Promise<void>

/** The plans of each call that `work` runs, by the names it gives them. */
async function explained(
  url: string,
  kind: (typeof KINDS)[number],
  work: (pool: pg.Pool, run: Run) => Promise<void>,
): Promise<Plans> {
  const settings = {
    session_preload_libraries: 'auto_explain',
    'auto_explain.log_min_duration': '0',
    'auto_explain.log_nested_statements': 'on',
    client_min_messages: 'log',
    plan_cache_mode: `force_${kind}_plan`,
  }
  const options = Object.entries(settings).map(([name, value]) => `-c ${name}=${value}`)
  const pool = new pg.Pool({ connectionString: url, max: 1, options: `-c timezone=UTC ${options.join(' ')}` })
  const plans: Plans = new Map()
  let plan: string[] = []
  pool.on('connect', client => {
    client.on('notice', ({ message }) => {
      if (message?.includes('plan:')) plan.push(planIn(message))
    })
  })
  try {
    await work(pool, async (name, call) => {
      plan = []
      await call()
      plans.set(name, plan.join('\n'))
    })
  } finally {
    await pool.end()
  }
  return plans
}

const AT = Date.UTC(2026, 0, 1)

async function runAll(state: PostgresWorkState, ids: ReadonlyMap<string, string>, run: Run): Promise<void> {
  const timesAndLimits = {
    attempt: 1,
    revision: 1,
    type: 'type-1',
    priority: 0,
    createdAt: AT,
    runAt: AT,
    pendingSince: AT,
    queueDeadlineAt: AT,
    totalDeadlineAt: AT,
  }
  const aTask = (status: string) => ({ ...timesAndLimits, taskId: ids.get(status)!, status })
  const pending = [aTask('PENDING') as unknown as PendingTask]
  const running = [
    {
      ...aTask('PROCESSING'),
      leaseTokenHash: 'hash',
      startCommandId: 'claim',
      worker: 'worker',
      timeouts: { leaseMs: 60_000 },
    } as unknown as ProcessingTask,
  ]
  const place = { dueAt: AT, createdAt: AT, taskId: ids.get('PENDING')! }
  const graceMs = 10_000

  await run('timers-looked-at', () => state.isLookedAt(600))
  await run('timers-begin-look', () => state.beginLook(1e12))
  await run('leases-take', () => state.takeLostLeases(10, 2_000))
  await run('leases-drop', () => state.dropLostLeases([...ids.values()]))
  await run('leases-withdraw', () => state.withdrawLeases([{ taskId: ids.get('PENDING')!, attempt: 1 }]))
  await run('deadlines-due', () => state.dueDeadlines({ after: null, limit: 60, graceMs }))
  await run('deadlines-due-after', () => state.dueDeadlines({ after: place, limit: 500, graceMs }))
  await run('pass-not-before', () => state.passNotBefore(pending))
  await run('offers-return', () => state.returnOverdueOffers(10))
  for (const status of ['PENDING', 'PROCESSING', 'RETRYING'] as const) {
    const name = `lost-work-${status.toLowerCase()}`
    await run(name, () => state.lostWork(status, null, 2_000))
    await run(`${name}-after`, () => state.lostWork(status, place, 2_000))
  }
  await run('arm-again', () => state.armDeadlines(pending as OpenTask[]))
  await run('make-ready-again', () => state.makeReady(pending))
  await run('grant-leases', () => state.grantLeases(running))
  await run('cancel-notices-prune', () => state.pruneCancelNotices(2_000))
  await run('timers-keep-look', () => state.keepLook(2_000))

  const claim = { max: 10, tenant: null }
  await run('claim-take', () => state.take({ ...claim, claimId: 'one', types: ['type-1'] }))
  await run('claim-take-types', () => state.take({ ...claim, claimId: 'many', types: CLAIMED }))
  await run('claim-take-again', () => state.take({ ...claim, claimId: 'many', types: CLAIMED }))
  await run('claim-take-own', () =>
    state.take({ ...claim, claimId: 'own', types: CLAIMED, tenant: 'tenant-3' }),
  )
  const dispatch = { type: 'type-2', max: 10, maxOutstanding: 15, holdMs: 60_000 }
  await run('take-to-dispatch', () => state.takeToDispatch(dispatch))
  await run('leases-beat', () =>
    state.beat([{ taskId: ids.get('PROCESSING')!, attempt: 1, leaseTokenHash: 'hash', progress: null }]),
  )
}

/** Without the statement, which stands in the sources, and without costs and what triggers took. */
function planIn(message: string): string {
  const lines = message.split('\n')
  const first = lines.findIndex(line => /\(cost=/.test(line))
  return lines
    .slice(first)
    .filter(line => !/^\s*(JIT:|Trigger )/.test(line))
    .map(line =>
      line
        .replace(/ {2}\(cost=[^)]*\)/, '')
        .replaceAll(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, 'id')
        .trimEnd(),
    )
    .join('\n')
}
