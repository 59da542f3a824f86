/**
 * Many tasks fall due in the same second, in a real service on a durable database, while submits come at a steady
 * rate from another process. Measures how long it takes until all have timed out and what submits take meanwhile.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { startBenchService } from '../../bench/lifecycle.ts'
import { poster, quantile, treeCpuSeconds } from '../../bench/support.ts'

const BATCH = 500
const PER_SECOND = 50
const CONNECTIONS = 32
const TYPE = 'bench.due'
const HOUR_MS = 60 * 60_000

export interface Drill {
  tasks: number
  /** From the first submit to the second in which all fall due; the submits and the quiet measure are to fit in. */
  leadMs: number
  quietMs: number
  /** When the drill gives up on what has not timed out, counted from when it fell due. */
  patienceMs: number
}

export interface Drilled {
  /** Of the tasks that fell due, as the read model has them. */
  outcomes: { status: string; timer: string | null; n: number }[]
  /** Tasks with more than one final event, or none. */
  notOnce: number
  /** From when they fell due to the last one's end; negative where one ended before. */
  firstMs: number
  lastMs: number
  /** The most that ended within one second. */
  mostInASecond: number
  quiet: Latencies
  busy: Latencies
  /** Of service and Postgres, while they timed out. */
  busyCpuSeconds: number
}

interface Latencies {
  count: number
  p50: number
  p99: number
  most: number
}

export async function dueAtOnce({ tasks, leadMs, quietMs, patienceMs }: Drill): Promise<Drilled> {
  const service = await startBenchService()
  const db = new pg.Client(service.databaseUrl)
  const { post, close } = poster(service.url, CONNECTIONS)
  try {
    await db.connect()
    const dueAt = Math.ceil((Date.now() + leadMs) / 1_000) * 1_000
    await submitAll(post, tasks, dueAt)
    while (!(await service.ask<{ caughtUp: boolean }>('lag')).caughtUp) await sleep(50)
    const spareMs = dueAt - Date.now() - quietMs
    if (spareMs < 0) throw new Error(`the submits took ${-spareMs} ms too long: give the drill a longer lead`)
    await sleep(spareMs)

    const quiet = steadySubmits(post)
    await sleep(dueAt - Date.now())
    await quiet.stop()
    const busy = steadySubmits(post)
    const cpu = treeCpuSeconds(service.child.pid!)
    await untilNoneWaits(db, dueAt + patienceMs)
    const busyCpuSeconds = treeCpuSeconds(service.child.pid!) - cpu
    await busy.stop()
    const became = await whatBecameOf(db, dueAt)
    return { ...became, quiet: quiet.latencies(), busy: busy.latencies(), busyCpuSeconds }
  } finally {
    close()
    await db.end()
    await service.stop()
  }
}

type Post = ReturnType<typeof poster>['post']

/** Each with the queue limit that is left until `dueAt`. */
async function submitAll(post: Post, tasks: number, dueAt: number): Promise<void> {
  let left = tasks
  const submitter = async (): Promise<void> => {
    while (left > 0) {
      const count = Math.min(BATCH, left)
      left -= count
      const task = {
        type: TYPE,
        payload: { prompt: 'a lighthouse on a cliff' },
        timeouts: { queueMs: dueAt - Date.now(), totalMs: HOUR_MS },
      }
      const { status, body } = await post('/v1/tasks/batch', { tasks: Array(count).fill(task) })
      const { results } = body as { results?: { kind: string }[] }
      if (status !== 200 || results?.some(({ kind }) => kind !== 'accepted'))
        throw new Error(`a batch was not accepted: ${status}`)
    }
  }
  await Promise.all([submitter(), submitter()])
}

/** Submits at a steady rate whatever comes back. */
function steadySubmits(post: Post) {
  const times: number[] = []
  const answers: Promise<void>[] = []
  let running = true
  const one = async (): Promise<void> => {
    const sentAt = performance.now()
    const { status } = await post('/v1/tasks', { type: 'bench.task', payload: { prompt: 'a lighthouse' } })
    if (status !== 201) throw new Error(`a submit was answered ${status}`)
    times.push(performance.now() - sentAt)
  }
  const began = performance.now()
  const sending = (async () => {
    while (running) {
      const due = Math.floor(((performance.now() - began) / 1_000) * PER_SECOND)
      while (answers.length < due) answers.push(one())
      await sleep(2)
    }
  })()
  return {
    stop: async () => {
      running = false
      await sending
      await Promise.all(answers)
    },
    latencies: (): Latencies => ({
      count: times.length,
      p50: quantile(times, 0.5),
      p99: quantile(times, 0.99),
      most: Math.max(...times),
    }),
  }
}

async function untilNoneWaits(db: pg.Client, giveUpAt: number): Promise<void> {
  while (Date.now() < giveUpAt) {
    const { rowCount } = await db.query(
      `SELECT FROM rollcall.tasks WHERE type = $1 AND status = 'PENDING' LIMIT 1`,
      [TYPE],
    )
    if (rowCount === 0) return
    await sleep(500)
  }
}

async function whatBecameOf(db: pg.Client, dueAt: number) {
  const outcomes = await db.query<Drilled['outcomes'][number]>(
    `SELECT status, error_code AS timer, count(*)::int AS n FROM rollcall.tasks WHERE type = $1
      GROUP BY 1, 2 ORDER BY 1, 2`,
    [TYPE],
  )
  const ends = await db.query<{ first: Date | null; last: Date | null; most: number | null }>(
    `SELECT min(second) AS first, max(last) AS last, max(n)::int AS most
       FROM (SELECT min(finished_at) AS second, max(finished_at) AS last, count(*) AS n
               FROM rollcall.tasks WHERE type = $1 AND finished_at IS NOT NULL
              GROUP BY date_trunc('second', finished_at)) seconds`,
    [TYPE],
  )
  const notOnce = await db.query<{ n: number }>(
    `SELECT count(*)::int AS n
       FROM (SELECT count(e.id) FILTER (WHERE e.type IN ('TaskTimedOut', 'TaskFailed', 'TaskSucceeded', 'TaskCancelled')) AS ends
               FROM rollcall.tasks t LEFT JOIN rollcall_log.events e ON e.stream = 'task-' || t.task_id
              WHERE t.type = $1 GROUP BY t.task_id) tasks
      WHERE ends <> 1`,
    [TYPE],
  )
  const { first, last, most } = ends.rows[0]!
  return {
    outcomes: outcomes.rows,
    notOnce: notOnce.rows[0]!.n,
    firstMs: (first?.getTime() ?? Number.NaN) - dueAt,
    lastMs: (last?.getTime() ?? Number.NaN) - dueAt,
    mostInASecond: most ?? 0,
  }
}
