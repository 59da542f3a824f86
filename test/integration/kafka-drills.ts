/** What is done to a running service on purpose; the tests do it a few times, those of the night often. */
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { Test } from 'tap'
import { tasksTopic, WORKER_EVENTS } from '../../src/broker/topics.ts'
import type { TaskMessage } from '../../src/workers/task-message.ts'
import { until } from '../api/fixture.ts'
import { freePort } from '../cli/fixture.ts'
import { endedRight, planned } from './kafka-right.ts'
import { healthOf, INGEST_GROUP, PATIENCE_MS, type Stage, untilReady } from './kafka-stage.ts'
import { eventsOf, nothing, type Plan, RawWorker, recordOf } from './kafka-worker.ts'

/** A broker that is waited for would take longer. */
const SUBMIT_MS = 10_000

/** What tasks ask for here: most succeed, some fail before, some for good. */
const planOf = (index: number): Plan =>
  index % 10 === 3 ? { fails: 1 } : index % 10 === 7 ? { givesUp: true } : {}

/** Submits tasks of different plans and remembers how each has to end. */
async function submitPlanned(stage: Stage, type: string, count: number, ends: Map<string, string>) {
  const ids = await stage.submit(type, count, index => ({ payload: { ...planOf(index) } }))
  ids.forEach((taskId, index) => {
    ends.set(taskId, planned(planOf(index)))
  })
  return ids
}

/**
 * The broker is away under load. Submits go on being accepted; an API stays ready, a process of ingest alone says that it
 * is not; and when the broker is back everything goes on by itself.
 *
 * @param end orderly, or as a crash
 * @param awayMs at least so long, and until the process of ingest has said so
 */
export async function brokerAway(
  t: Test,
  stage: Stage,
  type: string,
  { end, awayMs }: { end: 'stop' | 'kill'; awayMs: number },
): Promise<void> {
  const ends = new Map<string, string>()
  const ingest = await stage.spawn(['ingest'], await freePort())
  await untilReady(ingest.url!)
  const worker = await RawWorker.start(t, stage.broker, type)
  const submit = (count: number) => submitPlanned(stage, type, count, ends)
  await submit(100)
  await until('work is under way', () => worker.tasks.length > 20, PATIENCE_MS)
  await stage.kafka[end]()
  const since = performance.now()
  const away = () => performance.now() - since
  const strange: string[] = []
  let saidSo = false
  let slowestMs = 0
  while (away() < awayMs || (!saidSo && away() < PATIENCE_MS)) {
    const asked = performance.now()
    await submit(10)
    slowestMs = Math.max(slowestMs, performance.now() - asked)
    const [api, alone] = await Promise.all([healthOf(stage.home.url!), healthOf(ingest.url!)])
    if (!api.alive || !api.ready || !alone.alive) strange.push(JSON.stringify({ api, alone }))
    saidSo ||= !alone.ready
    await sleep(250)
  }
  t.ok(slowestMs < SUBMIT_MS, `no submit hangs: the slowest took ${Math.round(slowestMs)} ms`)
  t.strictSame(strange, [], 'all processes are alive, and the API is ready')
  t.ok(saidSo, `ingest said that it is not ready, after ${Math.round(away())} ms at the latest`)
  await stage.kafka.restart()
  const back = performance.now()
  await untilReady(ingest.url!)
  t.comment(
    `away ${Math.round(away())} ms, ${ends.size} tasks, ` +
      `ready again ${Math.round(performance.now() - back)} ms after the broker`,
  )
  await submit(20)
  await endedRight(t, stage, ends)
  t.equal(ingest.running.child.exitCode, null, 'it is the same process')
  await ingest.kill()
  await stage.expel(INGEST_GROUP)
}

/** Where in its batch ingest is killed. */
const MOMENTS = ['before it appends', 'after it appended', 'at any moment'] as const

/**
 * Ingest is killed in the middle of batches. A lock in the database holds it there: at the log before the append, at the
 * table of dead letters after it, since a batch is passed only when both are done.
 */
export async function ingestKilled(t: Test, stage: Stage, type: string, times: number): Promise<void> {
  const ends = new Map<string, string>()
  const worker = await RawWorker.start(t, stage.broker, type, { says: nothing })
  let garbage = 0
  let ingest = await stage.spawn(['ingest'])
  for (let time = 0; time < times; time++) {
    const moment = MOMENTS[time % MOMENTS.length]!
    const ids = await submitPlanned(stage, type, 40, ends)
    const tasks = await handedOut(worker, ids)
    const records = tasks.flatMap(task => eventsOf(task, worker.name)).map(recordOf)
    if (moment === 'at any moment') {
      for (const record of records) void stage.broker.send(WORKER_EVENTS, [record])
      await until('it has begun', async () => (await startedOf(stage, ids)) > 0, PATIENCE_MS)
      await sleep(20 * (time % 7))
      await ingest.kill()
    } else {
      const holder = await lock(stage, moment)
      // In every partition, so that whichever it takes first is held.
      for (const record of records)
        await stage.broker.send(WORKER_EVENTS, [record, { ...record, value: Buffer.from('{') }])
      garbage += records.length
      await holder.held()
      if (moment === 'after it appended')
        t.ok((await startedOf(stage, ids)) > 0, 'it has appended, and passed nothing')
      await ingest.kill()
      await holder.release()
    }
    await stage.expel(INGEST_GROUP)
    ingest = await stage.spawn(['ingest'])
    await finish(stage, worker, ids)
  }
  await endedRight(t, stage, ends)
  const { rows } = await stage.pool.query(
    `SELECT count(*)::int FROM rollcall.dead_letters WHERE status = 'waiting'`,
  )
  t.equal(rows[0].count, garbage, 'each bad record is a dead letter once')
  await ingest.kill()
  await stage.expel(INGEST_GROUP)
}

/** Waits until the worker was handed these. */
async function handedOut(worker: RawWorker, ids: readonly string[]): Promise<TaskMessage[]> {
  const asked = new Set(ids)
  const tasks = () => worker.tasks.filter(({ taskId, attempt }) => attempt === 1 && asked.has(taskId))
  await until('they are handed out', () => tasks().length >= ids.length, PATIENCE_MS)
  return [...new Map(tasks().map(task => [task.taskId, task])).values()]
}

/** Carries out the later attempts of tasks until all are final. */
async function finish(stage: Stage, worker: RawWorker, ids: readonly string[]): Promise<void> {
  const asked = new Set(ids)
  let said = 0
  const saying = setInterval(() => {
    const tasks = worker.tasks.slice(said).filter(({ taskId, attempt }) => attempt > 1 && asked.has(taskId))
    said = worker.tasks.length
    const records = tasks.flatMap(task => eventsOf(task, worker.name)).map(recordOf)
    void stage.broker.send(WORKER_EVENTS, records)
  }, 50)
  try {
    await stage.final(ids)
  } finally {
    clearInterval(saying)
  }
}

/** How many of these have been started, by the log. */
async function startedOf({ pool }: Stage, ids: readonly string[]): Promise<number> {
  const { rows } = await pool.query<{ count: number }>(
    `SELECT count(*)::int FROM rollcall_log.events WHERE type = 'TaskStarted' AND stream = ANY ($1)`,
    [ids.map(id => `task-${id}`)],
  )
  return rows[0]!.count
}

/** Keeps a table from being written to; `held` waits until somebody wants to. */
async function lock({ databaseUrl, pool }: Stage, moment: (typeof MOMENTS)[number]) {
  const table = moment === 'before it appends' ? 'rollcall_log.events' : 'rollcall.dead_letters'
  const holder = new pg.Client(databaseUrl)
  await holder.connect()
  await holder.query(`BEGIN; LOCK TABLE ${table} IN SHARE MODE`)
  return {
    held: () =>
      until(
        `somebody waits for ${table}`,
        async () =>
          (await pool.query('SELECT FROM pg_locks WHERE relation = $1::regclass AND NOT granted', [table]))
            .rows.length > 0,
        PATIENCE_MS,
      ),
    release: async () => {
      await holder.query('ROLLBACK')
      await holder.end()
    },
  }
}

/**
 * A dispatcher is killed after it has taken tasks and before it sends them, by a lock that keeps it from reading the log.
 * Nothing of it was sent, and the tasks are offered again.
 */
export async function dispatcherKilledBeforeSend(t: Test, stage: Stage, type: string): Promise<void> {
  const ends = new Map<string, string>()
  const worker = await RawWorker.start(t, stage.broker, type, { says: nothing })
  const doomed = await stage.spawn(['dispatcher'])
  const ids = await submitPlanned(stage, type, 10, ends)
  await handedOut(worker, ids)
  const before = await stage.recordsOf(tasksTopic(type))
  const holder = new pg.Client(stage.databaseUrl)
  await holder.connect()
  await holder.query('BEGIN; LOCK TABLE rollcall_log.events IN ACCESS EXCLUSIVE MODE')
  const takenAgain = async () => {
    const { rows } = await stage.pool.query<{ count: number }>(
      'SELECT count(*)::int FROM rollcall.offers WHERE task_id = ANY ($1) AND times_offered > 1',
      [ids],
    )
    return rows[0]!.count
  }
  // Their time is over, and nobody has started them.
  await stage.pool.query('UPDATE rollcall.offers SET held_until = now() WHERE task_id = ANY ($1)', [ids])
  await until('it has taken them again', async () => (await takenAgain()) === ids.length, PATIENCE_MS)
  await doomed.kill()
  await holder.query('ROLLBACK')
  await holder.end()
  t.equal(await stage.recordsOf(tasksTopic(type)), before, 'nothing was sent after the commit')
  await takenOver(t, stage, worker, ends, 2)
}

/** A dispatcher is killed while the broker has what it sent and has not answered yet. */
export async function dispatcherKilledAfterSend(t: Test, stage: Stage, type: string): Promise<void> {
  const ends = new Map<string, string>()
  const worker = await RawWorker.start(t, stage.broker, type, { says: nothing })
  const doomed = await stage.spawn(['dispatcher'])
  await handedOut(worker, await submitPlanned(stage, type, 1, ends))
  const frozen = stage.kafka.pid
  process.kill(frozen, 'SIGSTOP')
  try {
    await submitPlanned(stage, type, 10, ends)
    await until('it has taken them', async () => (await stage.outstanding(type)) === 11, PATIENCE_MS)
    // What is in the socket nobody sees; it takes a few milliseconds to be there.
    await sleep(500)
    await doomed.kill()
  } finally {
    process.kill(frozen, 'SIGCONT')
  }
  await until('the broker has them', async () => (await stage.recordsOf(tasksTopic(type))) >= 11, PATIENCE_MS)
  await takenOver(t, stage, worker, ends, 2)
}

/** Another dispatcher offers everything again when its hold is over; a worker then does it, once. */
async function takenOver(
  t: Test,
  stage: Stage,
  worker: RawWorker,
  ends: ReadonlyMap<string, string>,
  timesOffered: number,
): Promise<void> {
  const next = await stage.serve(['dispatcher'])
  const ids = [...ends.keys()]
  await until(
    'all were offered again',
    () => ids.every(id => (worker.times().get(id) ?? 0) >= timesOffered),
    PATIENCE_MS,
  )
  const ingest = await stage.serve(['ingest'])
  await worker.sayAll()
  await endedRight(t, stage, ends)
  await Promise.all([next.stop(), ingest.stop()])
}
