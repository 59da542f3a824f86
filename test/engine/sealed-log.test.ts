import { randomUUID } from 'node:crypto'
import t from 'tap'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { start } from '../domain/specification.ts'
import { ask, startEngine, submitting, wrapLog } from '../support/service-parts.ts'

t.test('on a sealed log commands are refused at once with the reason, and tasks are read', async t => {
  const log = createMemoryEventLog()
  let appends = 0
  const engine = await startEngine(
    wrapLog(log, {
      appendMany: calls => {
        appends++
        return log.appendMany(calls)
      },
    }),
    { appendDeadlineMs: 60_000 },
  )
  const taskId = randomUUID()
  await engine.execute(ask(taskId, submitting()))
  await log.seal('the-next-log')
  appends = 0
  const answers = await engine.executeMany([ask(taskId, start()), ask(randomUUID(), submitting())])
  for (const answer of answers)
    t.match(answer, { kind: 'refused', code: 'log_unavailable', message: /it was moved to log the-next-log/ })
  t.ok(appends <= 2, 'what was moved does not come back, so nothing is tried again')
  t.match(await engine.read(taskId), { kind: 'task', task: { status: 'PENDING' } })
  await log.seal(null)
  t.match(await engine.execute(ask(taskId, start())), { kind: 'accepted' })
})
