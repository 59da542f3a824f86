/** The roll call: what became of every accepted task, read from the streams and from nobody's counters. */
import type { Source } from '../../domain/events.ts'
import type { Task } from '../../domain/task.ts'
import { auditLog } from '../../engine/audit.ts'
import { streamOf } from '../../eventlog/codec.ts'
import type { EventLog } from '../../eventlog/event-log.ts'

export interface RollCall {
  /** Tasks whose submit was answered. */
  accepted: number
  succeeded: number
  /** Of the succeeded: not in their first attempt. */
  succeededAfterRetry: number
  failed: number
  /** Failed tasks by the code of their error. */
  failedBecause: Record<string, number>
  cancelled: number
  /** Attempts that ended because their worker was not heard for longer than a lease. */
  attemptsLostToLeases: number
  /** Results that came after their attempt had ended; kept, and without effect. */
  lateResults: number
  /** Events that workers reported through Kafka; the others came over HTTP or are the timers'. */
  throughKafka: number
  events: number
  /** Ids of accepted tasks without a stream, or still open. */
  missing: string[]
  /** Ids of tasks with more than one outcome in a run. */
  doubled: string[]
  /** Ids of tasks whose stream cannot be folded or whose chain of hashes has a gap. */
  broken: string[]
}

export interface Called {
  rollCall: RollCall
  /** The folded tasks; those missing or broken are not among them. */
  tasks: ReadonlyMap<string, Task>
}

/** Calls every task of `accepted`. */
export async function callTheRoll(log: EventLog, accepted: readonly string[]): Promise<Called> {
  const audit = await auditLog(log, accepted)
  const ours = new Set(accepted)
  const tasks = new Map<string, Task>()
  let events = 0
  for (const id of ours) {
    const audited = audit.tasks.get(id)
    events += audited?.events ?? 0
    if (audited?.task) tasks.set(id, audited.task)
  }
  const all = [...tasks.values()]
  const succeeded = all.filter(task => task.status === 'SUCCESS')
  const failed = all.filter(task => task.status === 'FAILED')
  const rollCall: RollCall = {
    accepted: ours.size,
    succeeded: succeeded.length,
    succeededAfterRetry: succeeded.filter(task => task.attempt > 1).length,
    failed: failed.length,
    failedBecause: countBy(failed.map(task => task.error.code)),
    cancelled: all.filter(task => task.status === 'CANCELLED').length,
    ...(await countEvents(log, [...ours])),
    events,
    missing: audit.missing,
    doubled: audit.doubled.filter(id => ours.has(id)),
    broken: audit.broken.filter(id => ours.has(id)),
  }
  return { rollCall, tasks }
}

/** Nothing is missing, doubled or broken, and the outcomes add up. */
export function isComplete(rollCall: RollCall): boolean {
  const { accepted, succeeded, failed, cancelled, missing, doubled, broken } = rollCall
  return (
    missing.length === 0 &&
    doubled.length === 0 &&
    broken.length === 0 &&
    succeeded + failed + cancelled === accepted
  )
}

const PAGE = 100

async function countEvents(log: EventLog, ids: readonly string[]) {
  let attemptsLostToLeases = 0
  let lateResults = 0
  let throughKafka = 0
  for (let at = 0; at < ids.length; at += PAGE) {
    const page = ids.slice(at, at + PAGE).map(id => ({ stream: streamOf(id), fromRevision: 0 }))
    for (const events of (await log.readStreams(page)).values())
      for (const { type, data, metadata } of events) {
        if ((JSON.parse(metadata) as { source: Source }).source === 'kafka') throughKafka++
        if (type === 'LateResultRecorded') lateResults++
        else if (type === 'TaskAttemptTimedOut' || type === 'TaskTimedOut')
          if ((JSON.parse(data) as { timer: string }).timer === 'lease') attemptsLostToLeases++
      }
  }
  return { attemptsLostToLeases, lateResults, throughKafka }
}

function countBy(keys: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const key of keys) counts[key] = (counts[key] ?? 0) + 1
  return counts
}
