/** From the fold and its signals to what clients see. */
import { nextDeadline } from '../domain/deadlines.ts'
import type { Instant } from '../domain/events.ts'
import type { ProcessingTask, Task } from '../domain/task.ts'
import { shownError, why } from '../domain/why.ts'
import type { Signals } from '../workers/leases.ts'
import type { TaskView } from './schemas/tasks.ts'
import type { ClaimedTask } from './schemas/workers.ts'

const iso = (at: Instant): string => new Date(at).toISOString()
const isoOrNull = (at: Instant | null): string | null => (at === null ? null : iso(at))

/** @param signals of a running task; null for any other or where there are none */
export function taskView(task: Task, signals: Signals | null, now: Instant): TaskView {
  const error = shownError(task)
  return {
    taskId: task.taskId,
    type: task.type,
    status: task.status,
    step: task.status === 'PROCESSING' ? task.step : null,
    progress: task.status === 'SUCCESS' ? 1 : (signals?.progress ?? null),
    attempt: task.attempt,
    maxAttempts: task.retry.maxAttempts,
    run: task.run,
    priority: task.priority,
    worker: 'worker' in task ? task.worker : null,
    payload: task.payload,
    labels: task.labels,
    result: task.status === 'SUCCESS' ? task.result : null,
    resultUrl: task.status === 'SUCCESS' ? task.resultUrl : null,
    errorCode: error.code,
    errorMessage: error.message,
    why: why(task, now),
    nextDeadline: deadlineView(task, signals),
    correlationId: task.correlationId,
    createdAt: iso(task.createdAt),
    runAt: iso(task.runAt),
    startedAt: isoOrNull('startedAt' in task ? task.startedAt : null),
    finishedAt: isoOrNull('finishedAt' in task ? task.finishedAt : null),
    updatedAt: iso(task.updatedAt),
    revision: task.revision,
    hash: task.hash,
  }
}

/** The stream's next deadline, or the lease's end where that comes first. */
function deadlineView(task: Task, signals: Signals | null): TaskView['nextDeadline'] {
  const next = nextDeadline(task)
  if (!next) return null
  if (task.status !== 'PROCESSING') return { timer: next.timer, at: iso(next.at) }
  const leaseAt = signals ? signals.heldUntil.getTime() : task.leaseDeadlineAt
  return leaseAt < next.at ? { timer: 'lease', at: iso(leaseAt) } : { timer: next.timer, at: iso(next.at) }
}

/** A started task as its worker gets it. */
export function claimedTask(task: ProcessingTask): ClaimedTask {
  return {
    taskId: task.taskId,
    type: task.type,
    run: task.run,
    attempt: task.attempt,
    maxAttempts: task.retry.maxAttempts,
    attemptsCharged: task.attemptsCharged,
    payload: task.payload,
    context: task.context,
    labels: task.labels,
    correlationId: task.correlationId,
    leaseMs: task.timeouts.leaseMs,
    leaseUntil: iso(task.leaseDeadlineAt),
    executionDeadlineAt: iso(task.executionDeadlineAt),
  }
}
