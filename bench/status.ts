/**
 * What a read of a waiting task costs with 10 and with 100,000 waiting: two services, each with its own Postgres on the
 * embedded default, over HTTP. They take turns read by read, so that a machine that is busy for a while is busy for both.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { runWorkers, startBenchService } from './lifecycle.ts'
import { BATCH, payload } from './load.ts'
import { type BenchResult, machine, median, poster, quantile, round } from './support.ts'

const WAITING = { few: 10, many: 100_000 } as const
type Name = keyof typeof WAITING
/** Of the type, before: estimates rest on them. */
const FINISHED = 500
/** Waiting tasks that are read, spread over the queue. */
const READ = 500
const ROUNDS = 10
const CATCH_UP_MS = 120_000

interface Subject {
  service: Awaited<ReturnType<typeof startBenchService>>
  http: ReturnType<typeof poster>
  /** Those that are read. */
  ids: string[]
}

interface Read {
  position: { rank: number; exact: boolean } | null
  estimatedRemainingSeconds: { p50: number; p90: number } | null
}

export async function bench(): Promise<BenchResult> {
  const subjects = { few: await open('few'), many: await open('many') }
  try {
    return { bench: 'status', machine: machine(), figures: await measure(subjects) }
  } finally {
    for (const { service, http } of Object.values(subjects)) {
      http.close()
      await service.stop()
    }
  }
}

async function open(name: Name): Promise<Subject> {
  const service = await startBenchService()
  const http = poster(service.url, 4)
  await submit(http, FINISHED)
  let ended = 0
  const workers = runWorkers(http.post, 1, () => ended++)
  while (ended < FINISHED) await sleep(10)
  await workers.stop()
  const waiting = await submit(http, WAITING[name])
  await caughtUp(service)
  const step = Math.max(1, waiting.length / READ)
  const ids = Array.from({ length: READ }, (_, index) => waiting[Math.floor(index * step) % waiting.length]!)
  return { service, http, ids }
}

async function submit({ post }: Subject['http'], tasks: number): Promise<string[]> {
  const ids: string[] = []
  while (ids.length < tasks) {
    const members = Array.from({ length: Math.min(BATCH, tasks - ids.length) }, () => ({
      type: 'bench.task',
      payload,
    }))
    const { body } = await post('/v1/tasks/batch', { tasks: members })
    for (const result of (body as { results: { kind: string; taskId: string }[] }).results) {
      if (result.kind !== 'accepted') throw new Error(`a task was not accepted: ${JSON.stringify(result)}`)
      ids.push(result.taskId)
    }
  }
  return ids
}

async function caughtUp(service: Subject['service']): Promise<void> {
  const until = performance.now() + CATCH_UP_MS
  while (!(await service.ask<{ caughtUp: boolean }>('lag')).caughtUp) {
    if (performance.now() > until) throw new Error('the read model did not catch up')
    await sleep(50)
  }
}

async function measure(subjects: Record<Name, Subject>): Promise<Record<string, number>> {
  const names = Object.keys(subjects) as Name[]
  const first: Record<Name, number[]> = { few: [], many: [] }
  const later: Record<Name, number[]> = { few: [], many: [] }
  const unlike: Record<Name, number> = { few: 0, many: 0 }
  for (let round = 0; round <= ROUNDS; round++)
    for (let index = 0; index < READ; index++)
      for (const name of names) {
        const { http, ids } = subjects[name]
        const since = performance.now()
        const { status, body } = await http.get(`/v1/tasks/${ids[index]}`)
        const took = performance.now() - since
        if (status !== 200 || !isRight(name, body as Read)) unlike[name]++
        // A task that was not read for long is folded from its stream.
        const times = round === 0 ? first : later
        times[name].push(took)
      }
  if (unlike.few + unlike.many > 0)
    throw new Error(`reads that say something else: ${JSON.stringify(unlike)}`)
  const figures: Record<string, number> = { ...WAITING, reads: READ * ROUNDS }
  for (const name of names) {
    figures[`read_${name}_p50_ms`] = round(median(later[name]), 3)
    figures[`read_${name}_p99_ms`] = round(quantile(later[name], 0.99), 3)
    figures[`first_read_${name}_p50_ms`] = round(median(first[name]), 3)
    figures[`first_read_${name}_p99_ms`] = round(quantile(first[name], 0.99), 3)
  }
  for (const share of ['p50', 'p99'] as const)
    figures[`read_${share}_ratio`] = round(
      figures[`read_many_${share}_ms`]! / figures[`read_few_${share}_ms`]!,
      2,
    )
  return figures
}

/** Every waiting task has its place; what is left is said of those that are counted to. */
function isRight(name: Name, { position, estimatedRemainingSeconds: left }: Read): boolean {
  if (position === null || position.exact !== (left !== null)) return false
  return name === 'many' || (position.exact && position.rank <= WAITING.few)
}
