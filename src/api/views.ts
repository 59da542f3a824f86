/** From the fold and its signals to what clients see. */
import type { Estimate } from '../domain/estimate.ts'
import type { Instant } from '../domain/events.ts'
import { type Forecast, forecast } from '../domain/forecast.ts'
import type { LifecycleDefinition } from '../domain/lifecycle.ts'
import type { Signals } from '../domain/signals.ts'
import type { ProcessingTask, Task } from '../domain/task.ts'
import { shownError, why } from '../domain/why.ts'
import { handedTask } from '../workers/task-message.ts'
import type { TaskView } from './schemas/tasks.ts'
import type { ClaimedTask } from './schemas/workers.ts'

const iso = (at: Instant): string => new Date(at).toISOString()
const isoOrNull = (at: Instant | null): string | null => (at === null ? null : iso(at))

/** @param definition the one the task was submitted with; null where it is not known */
export function taskView(
  task: Task,
  signals: Signals,
  now: Instant,
  definition: LifecycleDefinition | null,
  estimate: Estimate | null,
): TaskView {
  const error = shownError(task)
  return {
    taskId: task.taskId,
    type: task.type,
    status: task.status,
    step: task.status === 'PROCESSING' ? task.step : null,
    progress: task.status === 'SUCCESS' ? 1 : (signals.lease?.progress ?? null),
    attempt: task.attempt,
    maxAttempts: task.retry.maxAttempts,
    run: task.run,
    priority: task.priority,
    tenant: task.tenant,
    position: signals.position,
    estimatedRemainingSeconds: estimate,
    worker: 'worker' in task ? task.worker : null,
    payload: task.payload,
    labels: task.labels,
    timeouts: task.timeouts,
    retry: task.retry,
    result: task.status === 'SUCCESS' ? task.result : null,
    resultUrl: task.status === 'SUCCESS' ? task.resultUrl : null,
    errorCode: error.code,
    errorMessage: error.message,
    why: why(task, signals, now),
    nextDeadline: deadlineView(forecast(task, signals, definition, now)),
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

function deadlineView(next: Forecast | null): TaskView['nextDeadline'] {
  return next && { timer: next.timer, at: iso(next.at), to: next.to, effect: next.effect }
}

/** A started task as its worker gets it. */
export function claimedTask(task: ProcessingTask): ClaimedTask {
  return {
    ...handedTask(task),
    leaseMs: task.timeouts.leaseMs,
    leaseUntil: iso(task.leaseDeadlineAt),
    executionDeadlineAt: iso(task.executionDeadlineAt),
  }
}
