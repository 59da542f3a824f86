/** The database is away for ten seconds under traffic: every request is answered, and nothing is lost. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pino from 'pino'
import t from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import type { ClaimAnswer, ReportsAnswer } from '../../src/api/schemas/workers.ts'
import { auditLog } from '../../src/engine/audit.ts'
import { fileConfigSchema, serviceConfigSchema } from '../../src/runtime/config.ts'
import { startService } from '../../src/runtime/service.ts'
import { type Answer, Api, isProblem, TOKEN, until } from '../api/fixture.ts'
import { differences } from '../support/compare.ts'
import { testServer } from '../support/postgres.ts'

const OUTAGE_MS = 10_000
/** The longest a request may take: a flight that waits for the log, behind another one that does. */
const ANSWER_MS = 35_000
const AWAY = new Set(['log_unavailable', 'read_model_unavailable', 'overloaded', 'conflict'])

t.test('a database that is stopped for ten seconds under traffic', { timeout: 180_000 }, async t => {
  const postgres = await testServer(t)
  const service = await startService({
    ...serviceConfigSchema.parse({ databaseUrl: postgres.url, port: 0 }),
    file: fileConfigSchema.parse({}),
    logger: pino({ level: 'silent' }),
  })
  t.teardown(() => service.stop())
  const api = new Api(t, service.url!)
  const slowest = { path: '', ms: 0 }
  const refusals = new Map<string, number>()
  let running = true

  /** Sends until it is answered by something else than "ask again later", which must come in time and in shape. */
  const insist = async <T extends object>(
    path: string,
    body: object,
    headers: Record<string, string> = {},
    answered: (answer: Answer<T>) => boolean = () => true,
  ): Promise<T> => {
    for (;;) {
      const began = performance.now()
      const answer = await api.post<T>(path, body, headers)
      const ms = performance.now() - began
      if (ms > slowest.ms) Object.assign(slowest, { path, ms })
      if (answer.status < 300 && answered(answer)) return answer.body
      if (answer.status >= 300) {
        const { code } = answer.body as { code: 'log_unavailable' }
        if (!AWAY.has(code)) throw new Error(`${path} was answered ${answer.status}: ${answer.text}`)
        isProblem(t, answer, code)
        refusals.set(code, (refusals.get(code) ?? 0) + 1)
      }
      await sleep(100)
    }
  }

  const accepted: string[] = []
  const submitter = async (): Promise<void> => {
    while (running) {
      const key = { 'idempotency-key': randomUUID() }
      accepted.push((await insist<TaskView>('/v1/tasks', { type: 'outage.task' }, key)).taskId)
      await sleep(20)
    }
  }
  const isAnswered = ({ body }: Answer<ReportsAnswer>): boolean =>
    body.results.every(result => result.kind !== 'refused' || !AWAY.has(result.code))
  let finished = 0
  const worker = async (index: number): Promise<void> => {
    const name = { worker: `worker-${index}`, leaseToken: TOKEN }
    while (running || finished < accepted.length) {
      const claim = { ...name, types: ['outage.task'], max: 20, waitMs: 500, claimId: randomUUID() }
      const { tasks } = await insist<ClaimAnswer>('/v1/workers/claim', claim)
      const reports = tasks.map(({ taskId, attempt }) => ({
        trigger: 'SUCCEED',
        taskId,
        attempt,
        leaseToken: TOKEN,
        commandId: randomUUID(),
      }))
      if (reports.length > 0)
        await insist<ReportsAnswer>('/v1/workers/report', { worker: name.worker, reports }, {}, isAnswered)
      finished += tasks.length
    }
  }
  const traffic = [submitter(), submitter(), submitter(), worker(1), worker(2)]

  await until('traffic flows', () => accepted.length > 50)
  await postgres.stop()
  const stoppedAt = performance.now()
  const red = await until('it is not ready', async () => {
    const answer = await api.get('/readyz')
    return answer.status === 503 && answer
  })
  t.match(red.body, {
    status: 'unavailable',
    checks: [{}, { name: 'log', ok: false }, { name: 'read_model', ok: false }],
  })
  t.equal((await api.get('/livez')).status, 200, 'it lives all the same')
  const listed = await api.get('/v1/tasks')
  isProblem(t, listed, (listed.body as { code: 'log_unavailable' }).code)
  t.equal(listed.status, 503)
  isProblem(t, await api.get(`/v1/tasks/${accepted[0]}`), 'log_unavailable')
  // Of a task that this process knows to be finished it can say so by itself.
  const beat = { taskId: randomUUID(), attempt: 1, leaseToken: TOKEN }
  t.equal((await api.post('/v1/workers/heartbeat', { worker: 'w', beats: [beat] })).status, 503)
  const before = accepted.length
  await sleep(OUTAGE_MS - (performance.now() - stoppedAt))
  await postgres.restart()

  await until('it is ready again', async () => (await api.get('/readyz')).status === 200, 60_000)
  await until('traffic flows again', () => accepted.length > before + 50, 60_000)
  running = false
  await Promise.all(traffic)
  t.comment(
    `slowest: ${slowest.path} in ${Math.round(slowest.ms)} ms; refused: ${JSON.stringify([...refusals])}`,
  )
  t.ok(slowest.ms < ANSWER_MS, 'every request was answered in bounded time')

  await until('the read model has caught up', async () => {
    const { body } = await api.get<{ lagSeconds: number }>('/v1/tasks?limit=1')
    return body.lagSeconds === 0
  })
  await until('nothing is open', async () => {
    const { body } = await api.get<{ tasks: unknown[] }>(
      '/v1/tasks?status=PENDING&status=PROCESSING&status=RETRYING&limit=1',
    )
    return body.tasks.length === 0
  })
  const audit = await auditLog(service.log, accepted)
  t.equal(audit.tasks.size, accepted.length, 'every accepted task is there, and no other')
  t.match(audit, { missing: [], doubled: [], broken: [] })
  t.strictSame(new Set([...audit.tasks.values()].map(({ task }) => task?.status)), new Set(['SUCCESS']))
  t.strictSame(await differences(service.pool, service.log), [])
})
