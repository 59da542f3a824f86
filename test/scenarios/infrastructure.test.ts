/** What happened to others: restarts and stops that hung, lost or doubled. Real processes on a database of their own. */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import t, { type Test } from 'tap'
import type { BatchAnswer, TaskList } from '../../src/api/schemas/tasks.ts'
import { auditLog } from '../../src/engine/audit.ts'
import { openLog } from '../../src/runtime/open-log.ts'
import { createWorker } from '../../src/sdk/worker.ts'
import { type Api, aType, isProblem, startApi, until } from '../api/fixture.ts'
import { freePort } from '../cli/fixture.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import { execute, testServer } from '../support/postgres.ts'
import { STOP_MS, serve, startWorkerProcess } from './processes.ts'

const PATIENCE_MS = 60_000

const ready = (api: Api) =>
  until(
    'the service is ready',
    async () => (await api.get('/readyz').catch(() => null))?.status === 200,
    PATIENCE_MS,
  )

/** Looks through everything there is. */
async function verified(t: Test, api: Api): Promise<void> {
  const findings: unknown[] = []
  for (let cursor: string | null = null, first = true; first || cursor !== null; first = false) {
    const { body }: { body: { findings?: unknown[]; next?: string | null } } = await api.post('/v1/verify', {
      cursor,
      limit: 1_000,
    })
    findings.push(...(body.findings ?? [body]))
    cursor = body.next ?? null
  }
  t.strictSame(findings, [], 'rows are the fold')
}

t.test(
  'S69 Postgres restarts while the service idles, and while it projects: it lives and goes on',
  async t => {
    const postgres = await testServer(t)
    const { api, running } = await serve(t, postgres.url, await freePort())
    const type = aType()
    const keys: string[] = []
    const submit = async (count: number) => {
      const tasks = Array.from({ length: count }, () => ({ type, idempotencyKey: randomUUID() as string }))
      keys.push(...tasks.map(({ idempotencyKey }) => idempotencyKey))
      await until(
        'they are accepted',
        async () => {
          const answer = await api.post<BatchAnswer>('/v1/tasks/batch', { tasks }).catch(() => null)
          return answer?.status === 200 && answer.body.results.every(({ kind }) => kind !== 'refused')
        },
        PATIENCE_MS,
      )
    }
    await submit(10)
    await t.test('while it idles', async () => {
      await postgres.stop()
      await until('it noticed', async () => (await api.get('/readyz')).status === 503)
      await postgres.restart()
      await ready(api)
      await submit(10)
    })
    await t.test('in the middle of a projection, three times', async t => {
      for (let time = 1; time <= 3; time++) {
        // Rows may be read and not written: the projector hangs in its batch when the database goes away.
        const holder = new pg.Client(postgres.url)
        holder.on('error', () => {})
        await holder.connect()
        await holder.query('BEGIN; LOCK TABLE rollcall.tasks IN SHARE MODE')
        await submit(1_000)
        await until('it is in the middle', async () => {
          const waiting = await holder.query(
            `SELECT 1 FROM pg_locks WHERE relation = 'rollcall.tasks'::regclass AND NOT granted`,
          )
          return waiting.rows.length > 0
        })
        await postgres.stop()
        await holder.end().catch(() => {})
        await postgres.restart()
        await ready(api)
        t.pass(`restart ${time}`)
      }
    })
    await until(
      'the read model has all of it',
      async () => {
        const { status, body } = await api.get<TaskList>('/v1/tasks?limit=1')
        return status === 200 && body.lagSeconds === 0
      },
      PATIENCE_MS,
    )
    t.equal(running.child.exitCode, null, 'the same process')
    const [counts] = await execute(
      postgres.url,
      `SELECT (SELECT count(*)::int FROM rollcall.tasks) AS tasks,
            (SELECT count(*)::int FROM rollcall_log.events WHERE type = 'TaskSubmitted') AS submitted`,
    )
    t.strictSame(counts, { tasks: keys.length, submitted: keys.length }, 'each once')
    await verified(t, api)
  },
)

interface Readiness {
  checks: { name: string; ok: boolean; reason: string | null }[]
}

/** What is not ready; undefined while there is no answer. */
async function unready(api: Api): Promise<string[] | undefined> {
  const answer = await api.get<Readiness>('/readyz').catch(() => null)
  return answer?.body.checks.filter(({ ok }) => !ok).map(({ name }) => name)
}

t.test(
  'S70 the API starts before EventStoreDB (cluster string): it recovers by itself when it comes up',
  async t => {
    const postgres = await testServer(t)
    const [absent, port] = [await freePort(), await freePort()]
    // Two nodes, of which one never comes.
    const address = `esdb://127.0.0.1:${absent},127.0.0.1:${port}?tls=false`
    const { api, running } = await serve(t, postgres.url, await freePort(), address)
    t.match(JSON.parse(running.stdout()), { ready: true, logReached: false, log: address })
    // Long enough for a failed discovery to be remembered, were it remembered.
    for (let time = 0; time < 2; time++) {
      t.equal((await api.get('/livez')).status, 200, 'it lives')
      t.equal((await api.get('/readyz')).status, 503)
      t.strictSame(await unready(api), ['log'])
      isProblem(t, await api.post('/v1/tasks', { type: 'scenario.early' }), 'log_unavailable')
      isProblem(t, await api.get(`/v1/tasks/${randomUUID()}`), 'log_unavailable')
      for (const path of ['/v1/tasks', '/v1/rollcall']) isProblem(t, await api.get(path), 'log_unavailable')
      t.equal((await api.get('/metrics')).status, 200)
    }

    await startEventStoreDBDouble(t, { port })
    const cameAt = performance.now()
    await ready(api)
    const tookMs = Math.round(performance.now() - cameAt)
    t.ok(tookMs < 10_000, `ready ${tookMs} ms after its log came`)
    const claimed = await api.started({ type: 'scenario.early' })
    t.equal((await api.command(claimed, 'succeed', { result: 1 })).status, 200)
    t.strictSame(await api.eventTypes(claimed.taskId), ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
    await until('the read model has it', async () => {
      const { body } = await api.get<TaskList>('/v1/tasks?status=SUCCESS')
      return body.tasks?.some(({ taskId }) => taskId === claimed.taskId)
    })
    await verified(t, api)
    t.equal(running.child.exitCode, null, 'the same process')
    running.child.kill('SIGTERM')
    t.match(await running.ended, { code: 0, stderr: '' })
  },
)

t.test(
  'S70 EventStoreDB is away under load, three times: not ready meanwhile, nothing lost, nothing doubled',
  async t => {
    const postgres = await testServer(t)
    const double = await startEventStoreDBDouble(t)
    const { api, running } = await serve(t, postgres.url, await freePort(), double.address)
    await ready(api)
    const type = aType()
    const worker = createWorker({
      url: api.url,
      types: { [type]: ({ payload }) => payload },
      concurrency: 20,
      logger: { debug() {}, info() {}, warn() {}, error() {} },
    })
    worker.start()
    t.teardown(() => worker.stop())
    const accepted = new Set<string>()
    let flowing = true
    const refusals = new Set<number>()
    // Each task is asked for with its key until it is answered.
    const submitting = Promise.all(
      Array.from({ length: 8 }, async () => {
        while (flowing) {
          const key = randomUUID()
          for (;;) {
            const body = { type, payload: key }
            const answer = await api.post<{ taskId: string }>('/v1/tasks', body, { 'idempotency-key': key })
            if (answer.status === 201 || answer.status === 200) {
              accepted.add(answer.body.taskId)
              break
            }
            refusals.add(answer.status)
            await new Promise(resolve => setTimeout(resolve, 50))
          }
        }
      }),
    )
    const flows = async (what: string) => {
      const before = accepted.size
      await until(what, () => accepted.size > before + 200, PATIENCE_MS)
    }
    await flows('tasks flow')
    for (let time = 1; time <= 3; time++) {
      await double.stop()
      await until('it is not ready, for its log', async () => (await unready(api))?.join() === 'log')
      t.equal((await api.get('/livez')).status, 200)
      // Appends are repeated for a while before they are given up.
      if (time === 2) await until('submits are refused', () => refusals.size > 0)
      await double.start()
      await ready(api)
      await flows(`tasks flow again, time ${time}`)
    }
    flowing = false
    await submitting
    t.strictSame([...refusals], [503], 'all that was refused was refused for a while')

    const log = await openLog(double.address, { databaseUrl: postgres.url })
    t.teardown(() => log.close())
    const ids = [...accepted]
    let audit = await auditLog(log, ids)
    await until(
      'every task is final',
      async () => {
        audit = await auditLog(log, ids)
        return audit.missing.length === 0
      },
      PATIENCE_MS,
    )
    t.strictSame([audit.missing, audit.doubled, audit.broken], [[], [], []], `${ids.length} tasks`)
    t.equal(audit.tasks.size, ids.length, 'no task that nobody was told of')
    t.strictSame(new Set([...audit.tasks.values()].map(({ task }) => task?.status)), new Set(['SUCCESS']))
    await until('the read model has all of it', async () => {
      const { status, body } = await api.get<TaskList>('/v1/tasks?limit=1')
      return status === 200 && body.lagSeconds === 0
    })
    await verified(t, api)
    await worker.stop()
    t.equal(running.child.exitCode, null, 'the same process')
    running.child.kill('SIGTERM')
    t.match(await running.ended, { code: 0, stderr: '' })
  },
)

t.test(
  'S72 SIGTERM with 50 waiting claims, submits and 20 running tasks: it ends in time and nothing is lost',
  async t => {
    const postgres = await testServer(t)
    const port = await freePort()
    const { api, running } = await serve(t, postgres.url, port)
    const worker = startWorkerProcess(t, api.url, { concurrency: 20, drainMs: 3_000 })
    // Half of them end while the service is away or the worker drains, the others never.
    const tasks: string[] = []
    for (let index = 0; index < 20; index++) {
      const workMs = index % 2 ? 2_000 + index * 100 : 600_000
      tasks.push((await api.submit({ type: 'scenario.work', payload: { workMs } })).taskId)
    }
    for (const taskId of tasks) await worker.began(taskId)
    const polls = Array.from({ length: 50 }, (_, index) =>
      api.claim({ types: ['nothing.comes'], waitMs: 30_000, claimId: `claim-${index}` }),
    )
    const settled = Promise.allSettled(polls)
    const acknowledged: string[] = []
    let submitting = true
    const submits = Promise.all(
      Array.from({ length: 4 }, async () => {
        while (submitting)
          await api
            .submit({ type: 'acknowledged' })
            .then(({ taskId }) => acknowledged.push(taskId))
            .catch(() => new Promise(resolve => setTimeout(resolve, 20)))
      }),
    )
    await until('submits flow', () => acknowledged.length > 20)

    const stoppedAt = performance.now()
    running.child.kill('SIGTERM')
    const { code } = await running.ended
    const tookMs = Math.round(performance.now() - stoppedAt)
    t.equal(code, 0)
    t.ok(tookMs < STOP_MS, `the service ended in ${tookMs} ms`)
    submitting = false
    await submits
    for (const one of await settled)
      if (one.status === 'fulfilled') t.match(one.value, { status: 200, body: { tasks: [] } })
      else t.fail(`a waiting claim was cut: ${one.reason}`)

    const again = await serve(t, postgres.url, port)
    await ready(again.api)
    await t.test('every submit that was answered is there', async t => {
      for (const taskId of acknowledged) if ((await again.api.task(taskId)).taskId !== taskId) t.fail(taskId)
      t.pass(`${acknowledged.length} of them`)
    })
    await t.test('and when the worker is asked to stop, each task is finished or handed back', async t => {
      const stoppedAt = performance.now()
      worker.child.kill('SIGTERM')
      t.strictSame(await worker.exited, [0, null])
      t.ok(performance.now() - stoppedAt < 3_000 + 7_000, 'in time')
      for (const [index, taskId] of tasks.entries()) {
        const types = await again.api.eventTypes(taskId)
        if (index % 2) t.strictSame(types, ['TaskSubmitted', 'TaskStarted', 'TaskSucceeded'])
        else t.strictSame(types, ['TaskSubmitted', 'TaskStarted', 'TaskReleased'])
      }
      t.match(worker.told.at(-1), { counts: { succeeded: 10, released: 10, undelivered: 0 } })
    })
  },
)

t.test(
  'S74 work that comes while a claim begins to wait: answered at once, whichever process took it',
  async t => {
    const { api, databaseUrl } = await startApi(t)
    const { api: other } = await startApi(t, { databaseUrl })
    const times: number[] = []
    for (let round = 0; round < 40; round++) {
      const type = aType()
      const claimed = api.claim({ types: [type], waitMs: 30_000 })
      // Before, while and after the claim looks for the first time.
      await new Promise(resolve => setTimeout(resolve, round % 10))
      const since = performance.now()
      await (round % 2 ? other : api).submit({ type })
      t.equal((await claimed).body.tasks.length, 1)
      times.push(performance.now() - since)
    }
    times.sort((one, next) => one - next)
    t.ok(times.at(-1)! < 10_000, `the slowest came after ${Math.round(times.at(-1)!)} ms`)
    t.ok(times[20]! < 1_000, `half of them within ${Math.round(times[20]!)} ms`)
  },
)
