/** What has to hold at the end of every test with Kafka, whatever happened: read from the streams, not from counters. */
import type { Test } from 'tap'
import { auditLog } from '../../src/engine/audit.ts'
import { decodeEvent, taskIdOf } from '../../src/eventlog/codec.ts'
import { readEvents } from '../faults/harness/examine.ts'
import { differences } from '../support/compare.ts'
import type { Stage } from './kafka-stage.ts'
import type { Plan } from './kafka-worker.ts'

/** How a task that was carried out as it asked has ended, and in which attempt. */
export function planned({ fails = 0, givesUp = false }: Plan): string {
  return givesUp ? 'FAILED in attempt 1' : `SUCCESS in attempt ${fails + 1}`
}

/**
 * Every accepted task has ended as it should and once; no attempt began twice; rows are the fold; the chains of hashes are
 * whole; nothing is left over; and ingest has passed all there is.
 *
 * @param ends how each task has to have ended
 */
export async function endedRight(t: Test, stage: Stage, ends: ReadonlyMap<string, string>): Promise<void> {
  const ids = [...ends.keys()]
  await stage.final(ids)
  await stage.passed()
  await stage.projected()
  const audit = await auditLog(stage.log, ids)
  const { missing, doubled, broken } = audit
  t.strictSame(
    { missing, doubled, broken },
    { missing: [], doubled: [], broken: [] },
    'the streams are right',
  )
  const wrong = [...ends].flatMap(([taskId, end]) => {
    const { task, outcomesByRun } = audit.tasks.get(taskId)!
    const ended = `${task?.status} in attempt ${task?.attempt}`
    return ended === end && outcomesByRun.size === task?.run
      ? []
      : [`${taskId} should be ${end}, is ${ended}`]
  })
  t.strictSame(wrong, [], 'each has ended as it should')
  t.strictSame(await begunTwice(stage), [], 'no attempt began twice')
  t.strictSame(await differences(stage.pool, stage.log), [], 'rows are the fold, chains are whole')
  const { rows } = await stage.pool.query(
    `SELECT kept, task_id FROM (
       SELECT 'ready' AS kept, task_id FROM rollcall.ready UNION ALL SELECT 'offers', task_id FROM rollcall.offers
       UNION ALL SELECT 'leases', task_id FROM rollcall.leases
       UNION ALL SELECT 'set_aside', task_id FROM rollcall.set_aside) AS work WHERE task_id = ANY ($1)`,
    [ids],
  )
  t.strictSame(rows, [], 'no work state is left of what is final')
}

async function begunTwice({ log }: Stage): Promise<string[]> {
  const begun = new Set<string>()
  return (await readEvents(log)).flatMap(stored => {
    const taskId = taskIdOf(stored.stream)
    if (taskId === null || stored.type !== 'TaskStarted') return []
    const { event } = decodeEvent(stored)
    if (event.type !== 'TaskStarted') return []
    const attempt = `${taskId} ${event.data.attempt}`
    if (begun.has(attempt)) return [attempt]
    begun.add(attempt)
    return []
  })
}
