/**
 * The peer: pg-boss as a library on an embedded Postgres with the same durable settings, in a process of its own
 * that is submitter, queue and worker at once. No HTTP lies in between and no result is kept, which favours it.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import PgBoss from 'pg-boss'
import { startEmbeddedPostgres } from '../src/runtime/embedded-postgres.ts'
import {
  BATCH,
  CLAIM_MAX,
  CONCURRENCY,
  FEW_WORKER_LOOPS,
  type LatencySummary,
  latencySummary,
  paced,
  payload,
  STEADY,
  TASKS,
} from './load.ts'
import { round } from './support.ts'

export interface PeerFigures {
  singlePerSecond: number
  batchPerSecond: number
  steady: LatencySummary
}

const QUEUE = 'bench.task'
/** Between looks at an empty queue: pg-boss polls, and its own worker would wait for half a second. */
const EMPTY_MS = 5

async function measurePeer(boss: PgBoss): Promise<PeerFigures> {
  let ended: (id: string) => void = () => {}
  let running = true
  const worker = async (): Promise<void> => {
    while (running) {
      const jobs = await boss.fetch(QUEUE, { batchSize: CLAIM_MAX })
      const ids = jobs.map(job => job.id)
      if (ids.length === 0) {
        await new Promise(resolve => setTimeout(resolve, EMPTY_MS))
        continue
      }
      await boss.complete(QUEUE, ids)
      for (const id of ids) ended(id)
    }
  }
  const lifecyclesPerSecond = async (submit: () => Promise<void>): Promise<number> => {
    const began = performance.now()
    let left = TASKS
    const all = new Promise<void>(resolve => {
      ended = () => {
        if (--left === 0) resolve()
      }
    })
    await submit()
    await all
    return round((TASKS / (performance.now() - began)) * 1000)
  }
  const inParallel = (callers: number, calls: number, call: () => Promise<unknown>): Promise<unknown> => {
    let left = calls
    const caller = async (): Promise<void> => {
      while (left-- > 0) await call()
    }
    return Promise.all(Array.from({ length: callers }, caller))
  }
  const workers = Promise.all(Array.from({ length: FEW_WORKER_LOOPS }, worker))
  const singlePerSecond = await lifecyclesPerSecond(async () => {
    await inParallel(CONCURRENCY, TASKS, () => boss.send(QUEUE, payload))
  })
  const batchPerSecond = await lifecyclesPerSecond(async () => {
    const jobs = Array.from({ length: BATCH }, () => ({ name: QUEUE, data: payload }))
    await inParallel(2, TASKS / BATCH, () => boss.insert(jobs))
  })
  const sentAt = new Map<string, number>()
  const endedAt = new Map<string, number>()
  ended = id => endedAt.set(id, performance.now())
  const began = performance.now()
  await paced(STEADY, async () => {
    const at = performance.now()
    sentAt.set((await boss.send(QUEUE, payload))!, at)
  })
  const limit = performance.now() + 10_000
  while (endedAt.size < sentAt.size && performance.now() < limit)
    await new Promise(resolve => setTimeout(resolve, 10))
  running = false
  await workers
  return { singlePerSecond, batchPerSecond, steady: latencySummary(sentAt, endedAt, began) }
}

const dataDir = mkdtempSync(join(tmpdir(), 'rollcall-bench-peer-'))
const postgres = await startEmbeddedPostgres({ dataDir })
const boss = new PgBoss({ connectionString: postgres.url, max: 20, supervise: false, schedule: false })
let measured = false
boss.on('error', error => {
  // Connections that the end of its Postgres cuts off.
  if (!measured) throw error
})
try {
  await boss.start()
  await boss.createQueue(QUEUE)
  process.send?.(await measurePeer(boss))
  measured = true
} finally {
  await boss.stop({ graceful: false })
  await postgres.stop()
  rmSync(dataDir, { recursive: true, force: true })
  process.disconnect()
}
