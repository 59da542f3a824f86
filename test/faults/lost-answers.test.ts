/** Connections break at any moment after a request was sent; whatever is asked again with its ids happens once. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { TaskView } from '../../src/api/schemas/tasks.ts'
import type { ClaimAnswer, ReportsAnswer } from '../../src/api/schemas/workers.ts'
import { auditLog } from '../../src/engine/audit.ts'
import { type StartOptions, startApi, TOKEN } from '../api/fixture.ts'
import { spawnEventStoreDBDouble } from '../support/eventstoredb-double/spawn.ts'

const TASKS = 200
const WORKERS = 4
/** The longest that a request is let live before its connection is cut. */
const CUT_MS = 15

t.test('S14 answers get lost at random, and every task has one outcome', { timeout: 120_000 }, async t => {
  await loseAnswers(t, {})
})

t.test('S14 the same with the log in EventStoreDB', { timeout: 120_000 }, async t => {
  await loseAnswers(t, { log: (await spawnEventStoreDBDouble(t)).address })
})

async function loseAnswers(t: Test, options: StartOptions): Promise<void> {
  const { api, service } = await startApi(t, options)
  let lost = 0

  /** Sends three times at most with a connection that breaks, then until it is answered. */
  const insist = async <T>(path: string, body: object, headers: Record<string, string> = {}): Promise<T> => {
    for (let cut = 0; cut < 3; cut++) {
      const leaving = new AbortController()
      const sent = api.ask<T>('POST', path, { body, headers, signal: leaving.signal })
      const answer = await Promise.race([sent.catch(() => null), sleep(Math.random() * CUT_MS, null)])
      if (answer) return answer.body
      leaving.abort()
      lost++
    }
    return (await api.post<T>(path, body, headers)).body
  }

  const submitted: string[] = []
  const client = async (): Promise<void> => {
    while (submitted.length < TASKS) {
      const place = submitted.push('') - 1
      const task = await insist<TaskView>(
        '/v1/tasks',
        { type: 'lost' },
        { 'idempotency-key': `task-${place}` },
      )
      submitted[place] = task.taskId
    }
  }
  await Promise.all([client(), client(), client(), client()])

  const handled = new Map<string, number>()
  const worker = async (name: string): Promise<void> => {
    for (;;) {
      const claim = {
        worker: name,
        types: ['lost'],
        max: 7,
        claimId: randomUUID(),
        leaseToken: TOKEN,
        waitMs: 2_000,
      }
      const { tasks } = await insist<ClaimAnswer>('/v1/workers/claim', claim)
      if (tasks.length === 0) return
      for (const { taskId } of tasks) handled.set(taskId, (handled.get(taskId) ?? 0) + 1)
      const reports = tasks.map(({ taskId, attempt }) => ({
        trigger: 'SUCCEED',
        taskId,
        attempt,
        leaseToken: TOKEN,
        commandId: randomUUID(),
        result: taskId,
      }))
      const { results } = await insist<ReportsAnswer>('/v1/workers/report', { worker: name, reports })
      for (const result of results)
        t.not(result.kind, 'refused', `${result.taskId} is accepted or recognised`)
    }
  }
  await Promise.all(Array.from({ length: WORKERS }, (_, index) => worker(`worker-${index}`)))

  t.comment(`${lost} answers were lost`)
  t.ok(lost > TASKS / 4, 'answers did get lost')
  t.equal(new Set(submitted).size, TASKS)
  t.strictSame(new Set(handled.values()), new Set([1]), 'no task was handed out twice')
  const audit = await auditLog(service.log, submitted)
  t.equal(audit.tasks.size, TASKS, 'no submit made two tasks')
  t.match(audit, { missing: [], doubled: [], broken: [] })
  for (const { task, events } of audit.tasks.values())
    t.match({ ...task, events }, { status: 'SUCCESS', events: 3 })
}
