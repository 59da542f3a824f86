/**
 * The decisions: what a command does to a task. Pure; clock, randomness and the definition are arguments.
 * Asking twice is normal: the second ask is `repeated` and stores nothing.
 */
import { costOfTimeout } from './attempt-cost.ts'
import type { Command, CommandEnvelope, Fence } from './commands.ts'
import type { Instant, Json, TaskEvent } from './events.ts'
import { type LifecycleDefinition, mayEnterStep, stepLimitMs, type Trigger, transition } from './lifecycle.ts'
import { LIMITS } from './limits.ts'
import { type Refusal, type RefusalCode, refusal } from './refusals.ts'
import { recall } from './remembered.ts'
import { retryDelayMs } from './retry-policy.ts'
import { isOpen, type ProcessingTask, type Task, unreachable } from './task.ts'
import { instantText } from './wording.ts'

export type Decision =
  | { kind: 'accepted'; event: TaskEvent }
  | { kind: 'repeated' }
  /** A refusal may leave an event behind: a late result is kept as evidence. */
  | { kind: 'refused'; refusal: Refusal; event?: TaskEvent }

/** What the decision may not fetch for itself. */
export interface Given {
  /** The database's clock, never below the stream's last event. */
  now: Instant
  /** In [0, 1), for the jitter of a retry. */
  random: number
  /** The definition the task was submitted with. */
  definition: LifecycleDefinition
}

type Asked<T extends Command['trigger']> = Extract<Command, { trigger: T }>

/** Decides one command. `task` is null where the stream does not exist. */
export function decide(task: Task | null, envelope: CommandEnvelope, given: Given): Decision {
  const { command, commandId, ifRevision, actor } = envelope
  if (command.trigger === 'SUBMIT') return submit(task, command, given)
  if (task === null) return refuse('not_found')
  // "repeated" tells the sender of START that it holds the lease, so its command id alone does not do: the
  // attempt may have ended since.
  const known = recall(task.recentCommands, command, commandId)
  if (known === 'other') return refuse('idempotency_key_reused')
  if (known === 'same' && (command.trigger !== 'START' || holds(task, command))) return { kind: 'repeated' }
  if (ifRevision !== null && ifRevision !== task.revision)
    return refuse('revision_mismatch', `It is at revision ${task.revision}, not ${ifRevision}.`)
  switch (command.trigger) {
    case 'START':
      return start(task, command, given)
    case 'STEP':
      return step(task, command, given)
    case 'SUCCEED':
      return succeed(task, command, given)
    case 'FAIL':
      return fail(task, command, given)
    case 'RELEASE':
      return release(task, command, given)
    case 'TIMEOUT':
      return timeOut(task, command, given)
    case 'RETRY':
      return retry(task, command, given, actor.kind === 'timer')
    case 'CANCEL':
      return cancel(task, command, given)
    case 'NOTE':
      if (task.notes >= LIMITS.notesPerTask)
        return refuse('too_many_notes', `${LIMITS.notesPerTask} are allowed.`)
      return (
        move(task, 'NOTE', given) ??
        accept({ type: 'TaskNoted', version: 1, data: { content: { note: command.note } } })
      )
    default:
      return unreachable(command)
  }
}

const accept = (event: TaskEvent): Decision => ({ kind: 'accepted', event })
const refuse = (code: RefusalCode, detail?: string): Decision => ({
  kind: 'refused',
  refusal: refusal(code, detail),
})

/** The refusal where a status does not answer a trigger; null where it does. */
function move(task: Task, trigger: Trigger, given: Given): Decision | null {
  if (transition(given.definition, task.status, trigger)) return null
  return isOpen(task) || trigger === 'RETRY'
    ? refuse('illegal_transition', `It is ${task.status}; ${trigger} was asked.`)
    : refuse('task_finished', `It is ${task.status}; ${trigger} was asked.`)
}

function submit(task: Task | null, command: Asked<'SUBMIT'>, given: Given): Decision {
  if (task)
    return task.fingerprint === command.fingerprint ? { kind: 'repeated' } : refuse('idempotency_key_reused')
  const runAt = Math.max(given.now, command.runAt ?? given.now + (command.delayMs ?? 0))
  return accept({
    type: 'TaskSubmitted',
    version: 1,
    data: {
      type: command.type,
      priority: command.priority,
      tenant: command.tenant,
      lifecycle: command.lifecycle,
      timeouts: command.timeouts,
      retry: command.retry,
      runAt,
      queueDeadlineAt: runAt + command.timeouts.queueMs,
      totalDeadlineAt: runAt + command.timeouts.totalMs,
      fingerprint: command.fingerprint,
      content: { payload: command.payload, labels: command.labels, salt: command.salt },
    },
  })
}

function start(task: Task, command: Asked<'START'>, given: Given): Decision {
  const { attempt, leaseTokenHash, worker } = command
  if (holds(task, command)) return { kind: 'repeated' }
  if (task.status === 'PROCESSING' && attempt === task.attempt)
    return refuse('already_started', `Attempt ${attempt} is held by ${task.worker}.`)
  if (attempt < task.attempt) return refuse('stale_attempt', `Attempt ${task.attempt} is the current one.`)
  if (attempt > task.attempt) return refuse('unknown_attempt', `Attempt ${task.attempt} is the current one.`)
  const refused = move(task, 'START', given)
  if (refused) return refused
  if (given.now < task.runAt) return refuse('not_due', `It may start at ${instantText(task.runAt)}.`)
  return accept({
    type: 'TaskStarted',
    version: 1,
    data: {
      run: task.run,
      attempt,
      worker,
      leaseTokenHash,
      leaseDeadlineAt: given.now + task.timeouts.leaseMs,
      executionDeadlineAt: given.now + task.timeouts.executionMs,
    },
  })
}

const holds = (task: Task, { attempt, leaseTokenHash }: Fence): boolean =>
  task.status === 'PROCESSING' && attempt === task.attempt && leaseTokenHash === task.leaseTokenHash

/**
 * The task as the holder of this attempt's lease sees it, or the refusal. Results that come too late are
 * dealt with by `lateResult`.
 */
function held(task: Task, fence: Fence, trigger: Trigger, given: Given): ProcessingTask | Decision {
  if (fence.attempt > task.attempt)
    return refuse('unknown_attempt', `Attempt ${task.attempt} is the current one.`)
  if (fence.attempt < task.attempt)
    return refuse('stale_attempt', `Attempt ${task.attempt} is the current one.`)
  const refused = move(task, trigger, given)
  if (refused) return refused
  if (task.status !== 'PROCESSING')
    return refuse('illegal_transition', `It is ${task.status}; ${trigger} was asked.`)
  if (fence.leaseTokenHash !== task.leaseTokenHash) return refuse('not_lease_holder')
  return task
}

const isRefused = (outcome: ProcessingTask | Decision): outcome is Decision => 'kind' in outcome

function step(task: Task, command: Asked<'STEP'>, given: Given): Decision {
  const running = held(task, command, 'STEP', given)
  if (isRefused(running)) return running
  // The step it is in, asked again, may set the context anew; it does not buy the step more time.
  const stays = running.step === command.step
  if (stays && (command.context === undefined || isSame(command.context, running.context)))
    return { kind: 'repeated' }
  if (running.stepsEntered >= LIMITS.stepsPerAttempt)
    return refuse('too_many_steps', `${LIMITS.stepsPerAttempt} are allowed.`)
  if (!stays && !mayEnterStep(given.definition, running.step, command.step))
    return refuse('step_not_allowed', `${command.step} was asked after ${running.step ?? 'START'}.`)
  const limitMs = stepLimitMs(given.definition, command.step)
  return accept({
    type: 'TaskStepEntered',
    version: 1,
    data: {
      run: running.run,
      attempt: running.attempt,
      step: command.step,
      stepDeadlineAt: stays ? running.stepDeadlineAt : limitMs === null ? null : given.now + limitMs,
      content: withContext({}, command.context),
    },
  })
}

function succeed(task: Task, command: Asked<'SUCCEED'>, given: Given): Decision {
  const late = lateResult(task, command)
  if (late) return late
  const running = held(task, command, 'SUCCEED', given)
  if (isRefused(running)) return running
  const { result, resultUrl } = command
  return accept({
    type: 'TaskSucceeded',
    version: 1,
    data: { run: running.run, attempt: running.attempt, content: { result, resultUrl } },
  })
}

function fail(task: Task, command: Asked<'FAIL'>, given: Given): Decision {
  const late = lateResult(task, command)
  if (late) return late
  const running = held(task, command, 'FAIL', given)
  if (isRefused(running)) return running
  const charged = running.attemptsCharged + 1
  const attemptsLeft = charged < running.retry.maxAttempts
  const target = transition(given.definition, running.status, 'FAIL', {
    retryable: command.retryable,
    attemptsLeft,
  })
  const { run, attempt } = running
  const content = withContext({ error: command.error }, command.context)
  if (target?.event === 'TaskAttemptFailed') {
    const delayMs = command.retryAfterMs ?? retryDelayMs(running.retry, charged, given.random)
    return accept({
      type: 'TaskAttemptFailed',
      version: 1,
      data: { run, attempt, charged: true, retryAt: given.now + delayMs, content },
    })
  }
  const cause = !command.retryable ? 'not_retryable' : attemptsLeft ? 'lifecycle' : 'no_attempts_left'
  return accept({ type: 'TaskFailed', version: 1, data: { run, attempt, charged: true, cause, content } })
}

/**
 * A SUCCEED or FAIL for an attempt that has ended: `repeated` where it says again what ended it, otherwise
 * refused as superseded and kept once per attempt (S03, S19). Null where the attempt has not ended.
 */
function lateResult(task: Task, command: Asked<'SUCCEED' | 'FAIL'>): Decision | null {
  const past = task.endedAttempts.find(({ attempt }) => attempt === command.attempt)
  if (!past) return null
  if (past.leaseTokenHash !== command.leaseTokenHash) return refuse('not_lease_holder')
  const outcome = command.trigger === 'SUCCEED' ? 'succeeded' : 'failed'
  if (past.ended === outcome) return { kind: 'repeated' }
  const superseded = refusal('superseded', `Attempt ${past.attempt} had ${past.ended.replace('_', ' ')}.`)
  if (past.lateResultRecorded || task.lateResults >= LIMITS.lateResultsPerTask)
    return { kind: 'refused', refusal: superseded }
  const content =
    command.trigger === 'SUCCEED'
      ? { result: command.result, resultUrl: command.resultUrl }
      : { error: command.error }
  return {
    kind: 'refused',
    refusal: superseded,
    event: { type: 'LateResultRecorded', version: 1, data: { attempt: past.attempt, outcome, content } },
  }
}

function release(task: Task, command: Asked<'RELEASE'>, given: Given): Decision {
  const past = task.endedAttempts.find(({ attempt }) => attempt === command.attempt)
  if (past?.ended === 'released' && past.leaseTokenHash === command.leaseTokenHash)
    return { kind: 'repeated' }
  const running = held(task, command, 'RELEASE', given)
  if (isRefused(running)) return running
  if (running.releasesInRun >= LIMITS.releasesPerRun)
    return refuse('release_limit', `${LIMITS.releasesPerRun} are allowed.`)
  return accept({
    type: 'TaskReleased',
    version: 1,
    data: {
      run: running.run,
      attempt: running.attempt,
      queueDeadlineAt: given.now + running.timeouts.queueMs,
      content: withContext({ reason: command.reason }, command.context),
    },
  })
}

function timeOut(task: Task, command: Asked<'TIMEOUT'>, given: Given): Decision {
  const { timer, attempt, lastHeartbeatAt } = command
  const ofTask = timer === 'queue' || timer === 'total'
  if (attempt === null ? !ofTask : attempt > task.attempt)
    return refuse('unknown_attempt', `Attempt ${task.attempt} is the current one.`)
  if (attempt !== null && attempt < task.attempt)
    return refuse('stale_attempt', `Attempt ${task.attempt} is the current one.`)
  const refused = move(task, `TIMEOUT:${timer}`, given)
  if (refused) return refused
  if (!isOpen(task)) return refuse('task_finished')
  const armed = armedTimer(task, command)
  if (armed === null) return refuse('not_due', `The timer ${timer} is not armed.`)
  if (given.now < armed.deadlineAt)
    return refuse('not_due', `The timer ${timer} fires at ${instantText(armed.deadlineAt)}.`)
  const { charged, attemptsLeft, backoff } = costOfTimeout(task, timer, lastHeartbeatAt)
  const target = transition(given.definition, task.status, `TIMEOUT:${timer}`, {
    retryable: true,
    attemptsLeft,
  })
  const data = {
    run: task.run,
    attempt: task.attempt,
    timer,
    from: task.status,
    limitMs: Math.max(0, armed.deadlineAt - armed.since),
    since: armed.since,
    lastHeartbeatAt,
  }
  if (target?.event !== 'TaskAttemptTimedOut')
    return accept({
      type: 'TaskTimedOut',
      version: 1,
      data: { ...data, charged: task.status === 'PROCESSING' },
    })
  const retryAt = given.now + retryDelayMs(task.retry, backoff, given.random)
  return accept({ type: 'TaskAttemptTimedOut', version: 1, data: { ...data, charged, retryAt } })
}

/** Since when a timer runs and when it fires; null where the task does not carry that date. */
function armedTimer(task: Task, { timer, lastHeartbeatAt, leaseEndedAt }: Asked<'TIMEOUT'>) {
  switch (timer) {
    case 'queue':
      return task.status === 'PENDING'
        ? { since: Math.max(task.runAt, task.pendingSince), deadlineAt: task.queueDeadlineAt }
        : null
    case 'execution':
      return task.status === 'PROCESSING'
        ? { since: task.startedAt, deadlineAt: task.executionDeadlineAt }
        : null
    case 'step':
      return task.status === 'PROCESSING' && task.stepDeadlineAt !== null
        ? { since: task.stepSince ?? task.startedAt, deadlineAt: task.stepDeadlineAt }
        : null
    case 'lease':
      return task.status === 'PROCESSING'
        ? {
            since: lastHeartbeatAt ?? task.startedAt,
            deadlineAt: Math.max(leaseEndedAt ?? 0, task.leaseDeadlineAt),
          }
        : null
    case 'total':
      return { since: task.totalDeadlineAt - task.timeouts.totalMs, deadlineAt: task.totalDeadlineAt }
    default:
      return unreachable(timer)
  }
}

function retry(task: Task, command: Asked<'RETRY'>, given: Given, byTimer: boolean): Decision {
  if (task.status === 'PENDING' && task.enteredBy === 'requeue') return { kind: 'repeated' }
  const refused = move(task, 'RETRY', given)
  if (refused) return refused
  // A timer may only end a backoff that is over; a finished run is reopened by people alone.
  if (byTimer && task.status !== 'RETRYING')
    return refuse('illegal_transition', `It is ${task.status}; a timer asked RETRY.`)
  if (byTimer && task.status === 'RETRYING' && given.now < task.retryAt)
    return refuse('not_due', `Its backoff ends at ${instantText(task.retryAt)}.`)
  const newRun = task.status === 'FAILED'
  if (newRun && task.run >= LIMITS.runsPerTask)
    return refuse('run_limit', `${LIMITS.runsPerTask} are allowed.`)
  return accept({
    type: 'TaskRequeued',
    version: 1,
    data: {
      run: newRun ? task.run + 1 : task.run,
      cause: byTimer ? 'backoff_over' : 'asked',
      queueDeadlineAt: given.now + task.timeouts.queueMs,
      totalDeadlineAt: newRun ? given.now + task.timeouts.totalMs : task.totalDeadlineAt,
      content: { reason: command.reason },
    },
  })
}

function cancel(task: Task, command: Asked<'CANCEL'>, given: Given): Decision {
  if (task.status === 'CANCELLED') return { kind: 'repeated' }
  const refused = move(task, 'CANCEL', given)
  if (refused) return refused
  const { run, attempt } = task
  return accept({
    type: 'TaskCancelled',
    version: 1,
    data: { run, attempt, content: { reason: command.reason } },
  })
}

function withContext<T extends object>(
  content: T,
  context: Extract<Command, { trigger: 'STEP' }>['context'],
) {
  return context === undefined ? content : { ...content, context }
}

const isSame = (one: Json, other: Json): boolean => JSON.stringify(one) === JSON.stringify(other)
