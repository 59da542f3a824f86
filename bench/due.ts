/**
 * What a look of the timers costs with 10,000 and with 1,000,000 open tasks, and what a claim does: the statements of
 * the work state alone, on the embedded server with durable settings. The databases take turns, so that a machine that
 * is busy for a while is busy for all of them.
 */
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { startEmbeddedPostgres } from '../src/runtime/embedded-postgres.ts'
import { migrate } from '../src/runtime/migrate.ts'
import { assertDurable } from '../src/runtime/postgres-settings.ts'
import { PostgresWorkState } from '../src/workers/postgres/postgres-work-state.ts'
import type { WorkState } from '../src/workers/work-state.ts'
import { fillOpenTasks } from './open-tasks.ts'
import { type BenchResult, machine, median, quantile, round } from './support.ts'

const SMALL = 10_000
const LARGE = 1_000_000
const LOOKS = 1_000
const CLAIMS = 200
const CLAIM_MAX = 10
/** As many as the timers ask for at a time. */
const PAGE = 60
const LEASES = 30
const OFFERS = 1_000
const SWEEP_PAGE = 2_000
/** Rows that are due and stay so: nobody fires them here. */
const DUE = 100
const GRACE_MS = 10_000
/** A gap that no bench makes. */
const NO_GAP_MS = 3_600_000
/** A claim names 32 types at most. */
const TYPES = { one: ['type-0'], many: Array.from({ length: 32 }, (_, index) => `type-${index * 20 + 1}`) }

interface Subject {
  name: 'small' | 'large' | 'large_types'
  count: number
  types: number
  claimed: readonly string[]
}

const SUBJECTS: readonly Subject[] = [
  { name: 'small', count: SMALL, types: 1, claimed: TYPES.one },
  { name: 'large', count: LARGE, types: 1, claimed: TYPES.one },
  { name: 'large_types', count: LARGE, types: 1_000, claimed: TYPES.many },
]

interface Opened extends Subject {
  pool: pg.Pool
  state: WorkState
}

/** One call each of what is measured. */
const PARTS = {
  /** A look's finding of what is due; a page of deadlines is, leases and offers are not. It writes nothing. */
  find: async (state: WorkState): Promise<void> => {
    await state.takeLostLeases(LEASES, NO_GAP_MS)
    await state.dueDeadlines({ after: null, limit: PAGE, graceMs: GRACE_MS })
    await state.returnOverdueOffers(OFFERS)
  },
  /** All of a look but what it fires and sweeps: with the two commits that say it began and ended. */
  look: async (state: WorkState): Promise<void> => {
    await state.isLookedAt(0)
    await state.beginLook(NO_GAP_MS)
    await PARTS.find(state)
    await state.keepLook(2_000)
  },
  sweep: async (state: WorkState): Promise<void> => {
    await state.lostWork('PENDING', null, SWEEP_PAGE)
  },
}

export async function bench(): Promise<BenchResult> {
  const dataDir = await mkdtemp(join(tmpdir(), 'rollcall-bench-'))
  // As root the server runs as another user, who has to pass.
  await chmod(dataDir, 0o755)
  const server = await startEmbeddedPostgres({ dataDir, durable: true })
  const opened: Opened[] = []
  try {
    for (const subject of SUBJECTS) opened.push(await open(server.url, subject))
    return { bench: 'due', machine: machine(), figures: await measure(opened) }
  } finally {
    for (const { pool } of opened) await pool.end()
    await server.stop()
    await rm(dataDir, { recursive: true, force: true })
  }
}

async function open(serverUrl: string, subject: Subject): Promise<Opened> {
  const client = new pg.Client(serverUrl)
  await client.connect()
  await client.query(`CREATE DATABASE bench_${subject.name}`)
  await client.end()
  const url = new URL(serverUrl)
  url.pathname = `/bench_${subject.name}`
  await migrate(url.href)
  const pool = new pg.Pool({ connectionString: url.href, max: 1 })
  // The server may end a connection before the pool has.
  pool.on('error', () => {})
  const filling = await pool.connect()
  await assertDurable(filling)
  await fillOpenTasks(filling, { ...subject, due: DUE })
  filling.release()
  return { ...subject, pool, state: new PostgresWorkState(pool) }
}

async function measure(opened: readonly Opened[]): Promise<Record<string, number>> {
  const times = new Map<string, number[]>()
  const timed = async (figure: string, call: () => Promise<unknown>): Promise<void> => {
    const since = performance.now()
    await call()
    const took = times.get(figure) ?? []
    took.push(performance.now() - since)
    times.set(figure, took)
  }
  const parts = Object.entries(PARTS)
  // What is due of leases and offers is taken once; the caches are warm then.
  for (const { state } of opened)
    for (let look = 0; look < 20; look++) for (const [, run] of parts) await run(state)
  for (const { pool } of opened) await pool.query('DELETE FROM rollcall.leases WHERE lost')
  for (let look = 0; look < LOOKS; look++)
    // A sweep comes once in five looks.
    for (const { name, state } of opened.slice(0, 2))
      for (const [part, run] of parts)
        if (part !== 'sweep' || look % 5 === 0) await timed(`${part}_${name}`, () => run(state))
  for (let claim = 0; claim < CLAIMS; claim++)
    for (const { name, state, claimed } of opened)
      await timed(`claim_${name}`, () =>
        state.take({ claimId: `bench-${claim}`, types: claimed, max: CLAIM_MAX, tenant: null }),
      )

  const figures: Record<string, number> = { small: SMALL, large: LARGE, looks: LOOKS, claims: CLAIMS }
  for (const [figure, took] of times) {
    figures[`${figure}_ms`] = round(median(took), 3)
    figures[`${figure}_p99_ms`] = round(quantile(took, 0.99), 3)
  }
  for (const { name, pool } of opened.slice(0, 2))
    for (const [part, run] of parts) figures[`${part}_${name}_buffers`] = await buffersOf(pool, run)
  const ratio = (part: string): number =>
    round(median(times.get(`${part}_large`)!) / median(times.get(`${part}_small`)!), 2)
  figures.due_look_ratio = ratio('find')
  figures.look_ratio = ratio('look')
  figures.sweep_ratio = ratio('sweep')
  figures.claim_ratio = ratio('claim')
  return figures
}

/** The pages of tables and indexes that Postgres visits in all statements of one call. */
async function buffersOf(pool: pg.Pool, run: (state: WorkState) => Promise<void>): Promise<number> {
  let buffers = 0
  const explaining = {
    query: async ({ text, values }: { text: string; values?: unknown[] }) => {
      const explained = await pool.query<{ 'QUERY PLAN': { Plan: Record<string, number> }[] }>(
        `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ${text}`,
        values,
      )
      const plan = explained.rows[0]!['QUERY PLAN'][0]!.Plan
      buffers += plan['Shared Hit Blocks']! + plan['Shared Read Blocks']!
      return { rows: [], rowCount: 1 }
    },
  }
  await run(new PostgresWorkState(explaining as unknown as pg.Pool))
  return buffers
}
