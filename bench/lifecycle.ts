/**
 * Lifecycles end to end on the embedded default: submit over HTTP, claim, report, until the task is final and the
 * read model has caught up. Service, Postgres, load and workers share the machine.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import autocannon from 'autocannon'
import {
  BATCH,
  CLAIM_MAX,
  CONCURRENCY,
  FEW_WORKER_LOOPS,
  latencySummary,
  paced,
  payload,
  STEADY,
  TASKS,
  WORKER_LOOPS,
} from './load.ts'
import type { PeerFigures } from './peer-process.ts'
import type { ServiceSettings } from './service-process.ts'
import { type BenchResult, machine, mean, median, poster, round, treeCpuSeconds } from './support.ts'

const LEASE_TOKEN = 'bench-lease-token-0000'
const LIMIT_MS = 120_000
const ROUNDS = 3

type Post = ReturnType<typeof poster>['post']

const submission = { type: 'bench.task', payload, labels: { project: 'bench', stage: 'measure' } }

interface Service {
  child: ChildProcess
  url: string
  databaseUrl: string
  postgresPid: number
  ask<T>(what: 'usage' | 'lag' | 'stop'): Promise<T>
}

/** @param given settings of a service with Kafka; by default one without */
export async function startBenchService(
  given: ServiceSettings | null = null,
): Promise<Service & { stop(): Promise<void> }> {
  const dataDir = mkdtempSync(join(tmpdir(), 'rollcall-bench-'))
  const child = fork(
    fileURLToPath(new URL('./service-process.ts', import.meta.url)),
    [dataDir, ...(given ? [JSON.stringify(given)] : [])],
    {
      execArgv: ['--import=tsx', '--expose-gc', '--max-semi-space-size=64'],
    },
  )
  const next = <T>(answer: string): Promise<T> =>
    new Promise((resolve, reject) => {
      const onMessage = (message: { answer: string }): void => {
        if (message.answer !== answer) return
        child.off('message', onMessage)
        child.off('exit', onExit)
        resolve(message as T)
      }
      const onExit = (): void => reject(new Error('the service ended'))
      child.on('message', onMessage)
      child.once('exit', onExit)
    })
  const ready = await next<{ url: string; databaseUrl: string; postgresPid: number }>('ready')
  const ask = <T>(what: 'usage' | 'lag' | 'stop'): Promise<T> => {
    const answer = next<T>(what)
    child.send({ ask: what })
    return answer
  }
  return {
    child,
    ...ready,
    ask,
    stop: async () => {
      await ask('stop')
      rmSync(dataDir, { recursive: true, force: true })
    },
  }
}

/** Workers that do nothing but report success; tells each task's end. */
export function runWorkers(post: Post, loops: number, onDone: (taskId: string, at: number) => void) {
  let running = true
  const run = randomUUID()
  const loop = async (index: number): Promise<void> => {
    for (let claim = 0; running; claim++) {
      const answer = await post('/v1/workers/claim', {
        worker: `bench-${index}`,
        types: ['bench.task'],
        max: CLAIM_MAX,
        waitMs: 1_000,
        claimId: `${run}-${index}-${claim}`,
        leaseToken: LEASE_TOKEN,
      })
      const { tasks } = answer.body as { tasks: { taskId: string; attempt: number }[] }
      if (tasks.length === 0) continue
      const report = await post('/v1/workers/report', {
        worker: `bench-${index}`,
        reports: tasks.map(({ taskId, attempt }) => ({
          trigger: 'SUCCEED',
          taskId,
          attempt,
          leaseToken: LEASE_TOKEN,
          result: { width: 1024, height: 768, bytes: 734_003 },
        })),
      })
      const at = performance.now()
      for (const result of (report.body as { results: { kind: string; taskId: string }[] }).results) {
        if (result.kind !== 'accepted')
          throw new Error(`a report was not accepted: ${JSON.stringify(result)}`)
        onDone(result.taskId, at)
      }
    }
  }
  const loopsDone = Promise.all(Array.from({ length: loops }, (_, index) => loop(index)))
  return {
    stop: async () => {
      running = false
      await loopsDone
    },
  }
}

/** Runs `submit` while workers work, until every task is final and projected. */
async function measure(service: Service, loops: number, submit: (post: Post) => Promise<void>) {
  const clients = poster(service.url, CONCURRENCY)
  const workers = poster(service.url, loops)
  let done = 0
  let allDone: () => void = () => {}
  const finished = new Promise<void>((resolve, reject) => {
    allDone = resolve
    setTimeout(
      () => reject(new Error(`only ${done} of ${TASKS} tasks ended within ${LIMIT_MS} ms`)),
      LIMIT_MS,
    ).unref()
  })
  const cpuBefore = treeCpuSeconds(service.child.pid!)
  const began = performance.now()
  const crew = runWorkers(workers.post, loops, () => {
    if (++done === TASKS) allDone()
  })
  await submit(clients.post)
  const submitted = performance.now()
  await finished
  while (!(await service.ask<{ caughtUp: boolean }>('lag')).caughtUp)
    await new Promise(resolve => setTimeout(resolve, 5))
  const ended = performance.now()
  const cpuSeconds = treeCpuSeconds(service.child.pid!) - cpuBefore
  await crew.stop()
  clients.close()
  workers.close()
  return {
    submitPerSecond: round((TASKS / (submitted - began)) * 1000),
    lifecyclePerSecond: round((TASKS / (ended - began)) * 1000),
    cpuMicrosPerTask: round((cpuSeconds / TASKS) * 1e6),
  }
}

/** Posts per second of a bare Fastify server with the same schema: how fast this machine is just now. */
async function barePosts(): Promise<number> {
  const child = fork(fileURLToPath(new URL('./bare-process.ts', import.meta.url)), {
    execArgv: ['--import=tsx'],
  })
  const { url } = await new Promise<{ url: string }>(resolve => child.once('message', resolve as never))
  const began = performance.now()
  await submitSingles(url, TASKS)
  const perSecond = (TASKS / (performance.now() - began)) * 1000
  child.send('stop')
  await new Promise(resolve => child.once('exit', resolve))
  return perSecond
}

/** By autocannon, so that the load costs as little as possible of what is measured. */
async function submitSingles(url: string, tasks: number): Promise<void> {
  const result = await autocannon({
    url: `${url}/v1/tasks`,
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(submission),
    connections: CONCURRENCY,
    amount: tasks,
    timeout: 30,
    // It says that it is done when it takes a sample, which is else once a second.
    sampleInt: 20,
  })
  if (result['2xx'] !== tasks || result.errors > 0)
    throw new Error(`of ${tasks} submits ${result['2xx']} were accepted, ${result.errors} failed`)
}

async function submitBatches(post: Post, tasks: number): Promise<void> {
  let left = tasks / BATCH
  await Promise.all(
    Array.from({ length: 2 }, async () => {
      while (left-- > 0) {
        const answer = await post('/v1/tasks/batch', {
          tasks: Array.from({ length: BATCH }, () => submission),
        })
        const { results } = answer.body as { results: { kind: string }[] }
        if (results.some(result => result.kind !== 'accepted'))
          throw new Error('a batch member was not accepted')
      }
    }),
  )
}

/** Submits at a steady rate whatever comes back (open loop) and measures from the send to the end of each task. */
export async function steady(service: Service) {
  const clients = poster(service.url, CONCURRENCY)
  const workers = poster(service.url, WORKER_LOOPS)
  const sentAt = new Map<string, number>()
  const endedAt = new Map<string, number>()
  const crew = runWorkers(workers.post, WORKER_LOOPS, (taskId, at) => endedAt.set(taskId, at))
  const total = STEADY.perSecond * STEADY.seconds
  const cpuBefore = treeCpuSeconds(service.child.pid!)
  const began = performance.now()
  await paced(STEADY, async () => {
    const at = performance.now()
    const { body } = await clients.post('/v1/tasks', submission)
    sentAt.set((body as { taskId: string }).taskId, at)
  })
  const limit = performance.now() + 10_000
  while (endedAt.size < total && performance.now() < limit)
    await new Promise(resolve => setTimeout(resolve, 10))
  const cpuSeconds = treeCpuSeconds(service.child.pid!) - cpuBefore
  await crew.stop()
  clients.close()
  workers.close()
  return { ...latencySummary(sentAt, endedAt, began), cpuMicrosPerTask: round((cpuSeconds / total) * 1e6) }
}

/** The same load on pg-boss, in the same run. */
function measurePeer(): Promise<PeerFigures> {
  const child = fork(fileURLToPath(new URL('./peer-process.ts', import.meta.url)), {
    execArgv: ['--import=tsx'],
  })
  return new Promise((resolve, reject) => {
    let figures: PeerFigures | null = null
    child.once('message', message => {
      figures = message as PeerFigures
    })
    child.once('exit', code =>
      figures ? resolve(figures) : reject(new Error(`the peer ended with ${code}`)),
    )
  })
}

type Round = Awaited<ReturnType<typeof measureRound>>

/** Each part beside the peer's and a bare server's, minutes apart at most: the speed of a machine drifts. */
async function measureRound(service: Service) {
  const bare = [await barePosts()]
  const single = await measure(service, WORKER_LOOPS, () => submitSingles(service.url, TASKS))
  bare.push(await barePosts())
  const batch = await measure(service, WORKER_LOOPS, post => submitBatches(post, TASKS))
  bare.push(await barePosts())
  const backlog = await measure(service, FEW_WORKER_LOOPS, post => submitBatches(post, TASKS))
  const latency = await steady(service)
  const peer = await measurePeer()
  return { bare, single, batch, backlog, latency, peer }
}

export async function bench(): Promise<BenchResult> {
  const service = await startBenchService()
  try {
    const rounds: Round[] = []
    while (rounds.length < ROUNDS) rounds.push(await measureRound(service))
    const { heapBytes } = await service.ask<{ heapBytes: number }>('usage')
    const middle = (of: (round: Round) => number, digits?: number): number =>
      round(median(rounds.map(of)), digits)
    return {
      bench: 'lifecycle',
      machine: machine(),
      figures: {
        tasks: TASKS,
        rounds: ROUNDS,
        payload_bytes: Buffer.byteLength(JSON.stringify(payload)),
        single_concurrency: CONCURRENCY,
        bare_posts_per_second: middle(({ bare }) => median(bare)),
        single_submits_per_second: middle(({ single }) => single.submitPerSecond),
        single_lifecycles_per_second: middle(({ single }) => single.lifecyclePerSecond),
        single_cpu_us_per_task: middle(({ single }) => single.cpuMicrosPerTask),
        single_lifecycles_per_bare_post: middle(
          ({ single, bare }) => single.lifecyclePerSecond / mean(bare.slice(0, 2)),
          3,
        ),
        batch_size: BATCH,
        batch_submits_per_second: middle(({ batch }) => batch.submitPerSecond),
        batch_lifecycles_per_second: middle(({ batch }) => batch.lifecyclePerSecond),
        batch_cpu_us_per_task: middle(({ batch }) => batch.cpuMicrosPerTask),
        batch_lifecycles_per_bare_post: middle(
          ({ batch, bare }) => batch.lifecyclePerSecond / mean(bare.slice(1)),
          3,
        ),
        backlog_submits_per_second: middle(({ backlog }) => backlog.submitPerSecond),
        backlog_lifecycles_per_second: middle(({ backlog }) => backlog.lifecyclePerSecond),
        backlog_cpu_us_per_task: middle(({ backlog }) => backlog.cpuMicrosPerTask),
        worker_loops: WORKER_LOOPS,
        few_worker_loops: FEW_WORKER_LOOPS,
        claim_max: CLAIM_MAX,
        steady_per_second: STEADY.perSecond,
        steady_cpu_us_per_task: middle(({ latency }) => latency.cpuMicrosPerTask),
        steady_p50_ms: middle(({ latency }) => latency.p50, 2),
        steady_p95_ms: middle(({ latency }) => latency.p95, 2),
        steady_p99_ms: middle(({ latency }) => latency.p99, 2),
        peer_single_lifecycles_per_second: middle(({ peer }) => peer.singlePerSecond),
        peer_batch_lifecycles_per_second: middle(({ peer }) => peer.batchPerSecond),
        peer_steady_p50_ms: middle(({ peer }) => peer.steady.p50, 2),
        peer_steady_p99_ms: middle(({ peer }) => peer.steady.p99, 2),
        single_lifecycles_per_peer: middle(
          ({ single, peer }) => single.lifecyclePerSecond / peer.singlePerSecond,
          2,
        ),
        batch_lifecycles_per_peer_single: middle(
          ({ batch, peer }) => batch.lifecyclePerSecond / peer.singlePerSecond,
          2,
        ),
        steady_p99_per_peer: middle(({ latency, peer }) => latency.p99 / peer.steady.p99, 2),
        heap_after_gc_mib: round(heapBytes / 2 ** 20),
      },
    }
  } finally {
    await service.stop()
  }
}
