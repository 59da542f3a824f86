/**
 * Lifecycles end to end through Kafka, with STARTs that are answered and without, beside the same worker over HTTP in
 * the same run. Broker, service, Postgres, load and workers share the machine.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { startKafkaBroker } from '../src/runtime/kafka-broker/kafka-broker.ts'
import { startBenchService } from './lifecycle.ts'
import { paced, payload } from './load.ts'
import { type BenchResult, machine, median, poster, round, treeCpuSeconds } from './support.ts'

/** How a worker gets its tasks; each has a type of its own, and a worker process. */
export const WAYS = {
  http: 'bench.http',
  answered: 'bench.answered',
  unanswered: 'bench.unanswered',
} as const
export type Way = keyof typeof WAYS

const ROUNDS = 3
const TASKS = 5_000
const BATCH = 500
const WARM_UP = 200
const STEADY = { perSecond: 100, seconds: 10 }
const WINDOW = 500
const LIMIT_MS = 120_000

interface Bench {
  post: ReturnType<typeof poster>['post']
  pool: pg.Pool
  /** Of service, Postgres and broker so far. */
  cpuSeconds: () => number
}

interface Measured {
  perSecond: number
  cpuMicros: number
  p50: number
  p99: number
}

async function submitBatches({ post }: Bench, type: string, tasks: number): Promise<void> {
  for (let left = tasks; left > 0; left -= BATCH) {
    const members = Array.from({ length: Math.min(BATCH, left) }, () => ({ type, payload }))
    const { body } = await post('/v1/tasks/batch', { tasks: members })
    const { results } = body as { results: { kind: string; message?: string }[] }
    const other = results.find(({ kind }) => kind !== 'accepted')
    if (other) throw new Error(`a batch member was not accepted: ${JSON.stringify(other)}`)
  }
}

/** Until so many tasks of a type have succeeded, by the read model. */
async function finished({ pool }: Bench, type: string, tasks: number): Promise<void> {
  const until = performance.now() + LIMIT_MS
  for (;;) {
    const { rows } = await pool.query<{ count: number }>(
      `SELECT count(*)::int AS count FROM rollcall.tasks WHERE type = $1 AND status = 'SUCCESS'`,
      [type],
    )
    if (rows[0]!.count >= tasks) return
    if (performance.now() > until)
      throw new Error(`only ${rows[0]!.count} of ${tasks} tasks of ${type} ended within ${LIMIT_MS} ms`)
    await sleep(20)
  }
}

/** @param before tasks of the type that have ended already */
async function measure(bench: Bench, type: string, before: number): Promise<Measured> {
  const cpuBefore = bench.cpuSeconds()
  const began = performance.now()
  await submitBatches(bench, type, TASKS)
  await finished(bench, type, before + TASKS)
  const tookMs = performance.now() - began
  const cpuMicros = ((bench.cpuSeconds() - cpuBefore) / TASKS) * 1e6

  const ids: string[] = []
  await paced(STEADY, async () => {
    const { body } = await bench.post('/v1/tasks', { type, payload })
    ids.push((body as { taskId: string }).taskId)
  })
  await finished(bench, type, before + TASKS + STEADY.perSecond * STEADY.seconds)
  // By the service's clock, which stamps both. The first second warms up and is left out.
  const { rows } = await bench.pool.query<{ p50: number; p99: number }>(
    `SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS p50, percentile_cont(0.99) WITHIN GROUP (ORDER BY ms) AS p99
       FROM (SELECT extract(epoch FROM finished_at - created_at)::float8 * 1000 AS ms
               FROM rollcall.tasks WHERE task_id = ANY ($1::uuid[])) AS taken`,
    [ids.slice(STEADY.perSecond)],
  )
  return { perSecond: (TASKS / tookMs) * 1_000, cpuMicros, ...rows[0]! }
}

function startWorker(way: Way, url: string, brokers: readonly string[]): ChildProcess {
  return fork(
    fileURLToPath(new URL('./kafka-worker-process.ts', import.meta.url)),
    [way, WAYS[way], url, brokers.join(',')],
    { execArgv: ['--import=tsx'] },
  )
}

async function run(bench: Bench): Promise<Record<Way, Measured>> {
  const ways = Object.keys(WAYS) as Way[]
  const rounds: Record<Way, Measured[]> = { http: [], answered: [], unanswered: [] }
  for (const way of ways) {
    await submitBatches(bench, WAYS[way], WARM_UP)
    await finished(bench, WAYS[way], WARM_UP)
  }
  for (let turn = 0; turn < ROUNDS; turn++)
    for (const way of ways) {
      const before = WARM_UP + turn * (TASKS + STEADY.perSecond * STEADY.seconds)
      rounds[way].push(await measure(bench, WAYS[way], before))
    }
  const middle = (way: Way): Measured => {
    const of = (figure: keyof Measured) => median(rounds[way].map(one => one[figure]))
    return { perSecond: of('perSecond'), cpuMicros: of('cpuMicros'), p50: of('p50'), p99: of('p99') }
  }
  return { http: middle('http'), answered: middle('answered'), unanswered: middle('unanswered') }
}

export async function bench(): Promise<BenchResult> {
  const folder = mkdtempSync(join(tmpdir(), 'rollcall-bench-kafka-'))
  const broker = await startKafkaBroker({ dataDir: folder })
  const kafka = { maxOutstanding: WINDOW, partitions: 4 }
  const service = await startBenchService({
    kafkaBrokers: broker.brokers,
    types: { [WAYS.answered]: { kafka }, [WAYS.unanswered]: { kafka } },
  }).catch(async error => {
    await broker.stop()
    throw error
  })
  const ways = Object.keys(WAYS) as Way[]
  const workers = ways.map(way => startWorker(way, service.url, broker.brokers))
  const pool = new pg.Pool({ connectionString: service.databaseUrl, max: 1 })
  const clients = poster(service.url, 16)
  try {
    const cpuSeconds = () => treeCpuSeconds(service.child.pid!) + treeCpuSeconds(broker.pid)
    const { http, answered, unanswered } = await run({ post: clients.post, pool, cpuSeconds })
    const figures = (name: string, { perSecond, cpuMicros, p50, p99 }: Measured) => ({
      [`${name}_lifecycles_per_second`]: round(perSecond),
      [`${name}_cpu_us_per_task`]: round(cpuMicros),
      [`${name}_p50_ms`]: round(p50, 2),
      [`${name}_p99_ms`]: round(p99, 2),
    })
    return {
      bench: 'kafka',
      machine: machine(),
      figures: {
        ...{ tasks: TASKS, rounds: ROUNDS, window: WINDOW, steady_per_second: STEADY.perSecond },
        ...figures('http', http),
        ...figures('answered', answered),
        ...figures('unanswered', unanswered),
        answered_share_of_http: round(answered.perSecond / http.perSecond, 2),
        unanswered_share_of_http: round(unanswered.perSecond / http.perSecond, 2),
      },
    }
  } finally {
    for (const worker of workers) worker.kill('SIGTERM')
    await Promise.all(workers.map(worker => worker.exitCode ?? worker.signalCode ?? once(worker, 'exit')))
    clients.close()
    await pool.end()
    await service.stop()
    await broker.stop()
    rmSync(folder, { recursive: true, force: true })
  }
}
