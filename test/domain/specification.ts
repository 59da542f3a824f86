/**
 * Given, when, then for the domain: stored facts, one command at one instant, what comes of it. Instants are
 * milliseconds after `T0`, so that a test reads like a stopwatch. Facts are written out rather than decided,
 * so that a test of one decision does not hang on another.
 */
import type { Test } from 'tap'
import type { Command, CommandEnvelope, Fence } from '../../src/domain/commands.ts'
import { type Decision, decide } from '../../src/domain/decide.ts'
import type {
  Actor,
  EventData,
  EventType,
  RecordedEvent,
  TaskError,
  TaskEvent,
} from '../../src/domain/events.ts'
import { evolve, fold } from '../../src/domain/evolve.ts'
import {
  type LifecycleDefinition,
  lifecycleSchema,
  STANDARD_LIFECYCLE,
  type TimeoutTimer,
} from '../../src/domain/lifecycle.ts'
import type { RefusalCode } from '../../src/domain/refusals.ts'
import type { RetryPolicy } from '../../src/domain/retry-policy.ts'
import type { Task } from '../../src/domain/task.ts'

export const T0 = Date.UTC(2026, 0, 1)
export const TASK_ID = '018f4e7a-0000-7000-8000-000000000001'
export const TOKEN_A = 'a'.repeat(64)
export const TOKEN_B = 'b'.repeat(64)
export const TOKEN_C = 'c'.repeat(64)
export const TIMEOUTS = { queueMs: 60_000, executionMs: 10_000, leaseMs: 2_000, totalMs: 600_000 }
/** Without jitter, so that a retry's date can be written down. */
export const RETRY: RetryPolicy = {
  maxAttempts: 3,
  initialDelayMs: 1_000,
  factor: 2,
  maxDelayMs: 60_000,
  jitter: 0,
}
export const ERROR: TaskError = { code: 'out_of_memory', message: 'The picture is too large.' }

export const CLIENT: Actor = { kind: 'client', id: 'shop' }
export const WORKER: Actor = { kind: 'worker', id: 'worker-1' }
export const PERSON: Actor = { kind: 'person', id: 'ada' }
export const TIMER: Actor = { kind: 'timer', id: 'timers-1' }

/** The standard lifecycle with steps: three in a row, two of them with a limit, the middle one may be skipped. */
export const STEPPED_LIFECYCLE: LifecycleDefinition = lifecycleSchema.parse({
  ...STANDARD_LIFECYCLE,
  name: 'stepped',
  steps: {
    first: ['DOWNLOADING'],
    all: {
      DOWNLOADING: { next: ['GENERATING', 'UPLOADING'], limitMs: 1_000 },
      GENERATING: { next: ['UPLOADING'] },
      UPLOADING: { next: [], limitMs: 500 },
    },
  },
})

// Facts

export interface Fact {
  at: number
  event: TaskEvent
  actor: Actor
  commandId?: string
}

/** A fact with its defaults; `data` overrides single fields. */
const fact = <T extends EventType>(
  at: number,
  actor: Actor,
  type: T,
  data: EventData<T>,
  over: Partial<EventData<T>>,
): Fact => ({ at, actor, event: { type, version: 1, data: { ...data, ...over } } as TaskEvent })

export const submitted = (at = 0, over: Partial<EventData<'TaskSubmitted'>> = {}): Fact => {
  const runAt = over.runAt ?? T0 + at
  const timeouts = over.timeouts ?? TIMEOUTS
  return fact(
    at,
    CLIENT,
    'TaskSubmitted',
    {
      type: 'image.generate',
      priority: 0,
      tenant: null,
      lifecycle: { name: 'standard', version: 1, hash: '0'.repeat(64) },
      timeouts,
      retry: RETRY,
      runAt,
      queueDeadlineAt: runAt + timeouts.queueMs,
      totalDeadlineAt: runAt + timeouts.totalMs,
      fingerprint: 'f'.repeat(64),
      content: { payload: { prompt: 'a lighthouse' }, labels: {}, salt: 'salt' },
    },
    over,
  )
}

export const started = (at: number, over: Partial<EventData<'TaskStarted'>> = {}): Fact =>
  fact(
    at,
    WORKER,
    'TaskStarted',
    {
      run: 1,
      attempt: 1,
      worker: WORKER.id,
      leaseTokenHash: TOKEN_A,
      leaseDeadlineAt: T0 + at + TIMEOUTS.leaseMs,
      executionDeadlineAt: T0 + at + TIMEOUTS.executionMs,
    },
    over,
  )

export const stepEntered = (at: number, over: Partial<EventData<'TaskStepEntered'>> = {}): Fact =>
  fact(
    at,
    WORKER,
    'TaskStepEntered',
    { run: 1, attempt: 1, step: 'GENERATING', stepDeadlineAt: null, content: {} },
    over,
  )

export const succeeded = (at: number, over: Partial<EventData<'TaskSucceeded'>> = {}): Fact =>
  fact(
    at,
    WORKER,
    'TaskSucceeded',
    { run: 1, attempt: 1, content: { result: { pixels: 1 }, resultUrl: null } },
    over,
  )

export const attemptFailed = (at: number, over: Partial<EventData<'TaskAttemptFailed'>> = {}): Fact =>
  fact(
    at,
    WORKER,
    'TaskAttemptFailed',
    { run: 1, attempt: 1, charged: true, retryAt: T0 + at + 1_000, content: { error: ERROR } },
    over,
  )

export const failed = (at: number, over: Partial<EventData<'TaskFailed'>> = {}): Fact =>
  fact(
    at,
    WORKER,
    'TaskFailed',
    { run: 1, attempt: 1, charged: true, cause: 'not_retryable', content: { error: ERROR } },
    over,
  )

const leaseRanOut = (at: number): EventData<'TaskTimedOut'> => ({
  run: 1,
  attempt: 1,
  timer: 'lease',
  from: 'PROCESSING',
  limitMs: TIMEOUTS.leaseMs,
  since: T0 + at - TIMEOUTS.leaseMs,
  lastHeartbeatAt: null,
  charged: true,
})

export const attemptTimedOut = (at: number, over: Partial<EventData<'TaskAttemptTimedOut'>> = {}): Fact =>
  fact(at, TIMER, 'TaskAttemptTimedOut', { ...leaseRanOut(at), retryAt: T0 + at + 1_000 }, over)

export const timedOut = (at: number, over: Partial<EventData<'TaskTimedOut'>> = {}): Fact =>
  fact(at, TIMER, 'TaskTimedOut', leaseRanOut(at), over)

/** Nobody started the task in time. */
export const queueTimedOut = (at: number, over: Partial<EventData<'TaskTimedOut'>> = {}): Fact =>
  timedOut(at, {
    timer: 'queue',
    from: 'PENDING',
    limitMs: TIMEOUTS.queueMs,
    since: T0,
    charged: false,
    ...over,
  })

export const released = (at: number, over: Partial<EventData<'TaskReleased'>> = {}): Fact =>
  fact(
    at,
    WORKER,
    'TaskReleased',
    { run: 1, attempt: 1, queueDeadlineAt: T0 + at + TIMEOUTS.queueMs, content: { reason: null } },
    over,
  )

export const requeued = (at: number, over: Partial<EventData<'TaskRequeued'>> = {}): Fact =>
  fact(
    at,
    TIMER,
    'TaskRequeued',
    {
      run: 1,
      cause: 'backoff_over',
      queueDeadlineAt: T0 + at + TIMEOUTS.queueMs,
      totalDeadlineAt: T0 + TIMEOUTS.totalMs,
      content: { reason: null },
    },
    over,
  )

export const cancelled = (at: number, over: Partial<EventData<'TaskCancelled'>> = {}): Fact =>
  fact(at, PERSON, 'TaskCancelled', { run: 1, attempt: 1, content: { reason: 'no longer needed' } }, over)

export const noted = (at: number, note = 'looks fine'): Fact =>
  fact(at, PERSON, 'TaskNoted', { content: { note } }, {})

export const lateResult = (at: number, over: Partial<EventData<'LateResultRecorded'>> = {}): Fact =>
  fact(
    at,
    WORKER,
    'LateResultRecorded',
    { attempt: 1, outcome: 'succeeded', content: { result: { pixels: 1 }, resultUrl: null } },
    over,
  )

// Commands

const FENCE: Fence = { attempt: 1, leaseTokenHash: TOKEN_A }
type Asked<T extends Command['trigger']> = Extract<Command, { trigger: T }>

export const submit = (over: Partial<Asked<'SUBMIT'>> = {}): Command => ({
  trigger: 'SUBMIT',
  type: 'image.generate',
  priority: 0,
  tenant: null,
  lifecycle: { name: 'standard', version: 1, hash: '0'.repeat(64) },
  timeouts: TIMEOUTS,
  retry: RETRY,
  runAt: null,
  delayMs: null,
  payload: { prompt: 'a lighthouse' },
  labels: {},
  salt: 'salt',
  fingerprint: 'f'.repeat(64),
  ...over,
})
export const start = (over: Partial<Asked<'START'>> = {}): Command => ({
  trigger: 'START',
  worker: WORKER.id,
  ...FENCE,
  ...over,
})
export const step = (name: string, over: Partial<Asked<'STEP'>> = {}): Command => ({
  trigger: 'STEP',
  step: name,
  ...FENCE,
  ...over,
})
export const succeed = (over: Partial<Asked<'SUCCEED'>> = {}): Command => ({
  trigger: 'SUCCEED',
  result: { pixels: 1 },
  resultUrl: null,
  ...FENCE,
  ...over,
})
export const fail = (over: Partial<Asked<'FAIL'>> = {}): Command => ({
  trigger: 'FAIL',
  error: ERROR,
  retryable: true,
  retryAfterMs: null,
  ...FENCE,
  ...over,
})
export const release = (over: Partial<Asked<'RELEASE'>> = {}): Command => ({
  trigger: 'RELEASE',
  reason: null,
  ...FENCE,
  ...over,
})
/** A timer fires; the timers of an attempt carry its number. */
export const timeout = (timer: TimeoutTimer, over: Partial<Asked<'TIMEOUT'>> = {}): Command => ({
  trigger: 'TIMEOUT',
  timer,
  attempt: timer === 'queue' || timer === 'total' ? null : 1,
  lastHeartbeatAt: null,
  ...over,
})
export const retry = (reason: string | null = null): Command => ({ trigger: 'RETRY', reason })
export const cancel = (reason: string | null = null): Command => ({ trigger: 'CANCEL', reason })
export const note = (text = 'looks fine'): Command => ({ trigger: 'NOTE', note: text })

// The specification

/** No real hash is needed here: the fold compares hashes and never makes one. */
const hashOf = (revision: number): string => revision.toString(16).padStart(64, '0')

const USUAL_ACTOR: Record<Command['trigger'], Actor> = {
  SUBMIT: CLIENT,
  START: WORKER,
  STEP: WORKER,
  SUCCEED: WORKER,
  FAIL: WORKER,
  RELEASE: WORKER,
  TIMEOUT: TIMER,
  RETRY: PERSON,
  CANCEL: PERSON,
  NOTE: PERSON,
}

export interface Asking {
  commandId?: string
  actor?: Actor
  ifRevision?: number
  random?: number
}

/** The facts so far and the task folded from them. */
export class Specification {
  constructor(
    readonly recorded: readonly RecordedEvent[],
    readonly task: Task | null,
    private readonly definition: LifecycleDefinition,
    private readonly asked = 0,
  ) {}

  /** The folded task, in the status the test says it is in. */
  as<S extends Task['status']>(status: S): Extract<Task, { status: S }> {
    if (this.task?.status !== status)
      throw new Error(`the test expected ${status}, it is ${this.task?.status}`)
    return this.task as Extract<Task, { status: S }>
  }

  under(definition: LifecycleDefinition): Specification {
    return new Specification(this.recorded, this.task, definition, this.asked)
  }

  and(...facts: Fact[]): Specification {
    return facts.reduce<Specification>((spec, { at, event, actor, commandId }) => {
      const revision = spec.recorded.length
      return spec.with(event, {
        at: T0 + at,
        actor,
        source: 'http',
        commandId: commandId ?? `given-${revision}`,
        correlationId: null,
        causationId: null,
        trace: null,
      })
    }, this)
  }

  when(at: number, command: Command, asking: Asking = {}): Outcome {
    const envelope: CommandEnvelope = {
      taskId: TASK_ID,
      command,
      commandId: asking.commandId ?? `asked-${this.asked}`,
      actor: asking.actor ?? USUAL_ACTOR[command.trigger],
      source: 'http',
      correlationId: null,
      causationId: null,
      trace: null,
      ifRevision: asking.ifRevision ?? null,
    }
    const now = T0 + at
    const decision = decide(this.task, envelope, {
      now,
      random: asking.random ?? 0,
      definition: this.definition,
    })
    const before = new Specification(this.recorded, this.task, this.definition, this.asked + 1)
    const event = decision.kind === 'repeated' ? undefined : decision.event
    const { actor, source, commandId, correlationId, causationId, trace } = envelope
    const after = event
      ? before.with(event, { at: now, actor, source, commandId, correlationId, causationId, trace })
      : before
    return new Outcome(decision, after)
  }

  /** The folded task has these fields, and perhaps others. */
  thenTask(t: Test, fields: { [field: string]: unknown }, title = 'the folded task'): Specification {
    t.hasStrict(this.task, fields, title)
    return this
  }

  private with(event: TaskEvent, metadata: Omit<RecordedEvent['metadata'], 'prevHash'>): Specification {
    const revision = this.recorded.length
    const prevHash = this.recorded.at(-1)?.hash ?? null
    const recorded: RecordedEvent = {
      revision,
      hash: hashOf(revision),
      metadata: { ...metadata, prevHash },
      event,
    }
    const task = evolve(TASK_ID, this.task, recorded)
    return new Specification([...this.recorded, recorded], task, this.definition, this.asked)
  }
}

/** What came of a command; each `then…` gives back the specification with the event folded onto it. */
export class Outcome {
  constructor(
    readonly decision: Decision,
    readonly after: Specification,
  ) {}

  thenAccepted<T extends EventType>(
    t: Test,
    type: T,
    data: { [field in keyof EventData<T>]?: unknown } = {},
  ): Specification {
    t.hasStrict(this.decision, { kind: 'accepted', event: { type, data } }, `${type} is stored`)
    return this.after
  }

  thenRepeated(t: Test): Specification {
    t.strictSame(this.decision, { kind: 'repeated' }, 'it is answered as a repetition and stores nothing')
    return this.after
  }

  /** Refused; `keeping` names the event that stays behind as evidence. */
  thenRefused(t: Test, code: RefusalCode, keeping?: EventType): Specification {
    t.hasStrict(this.decision, { kind: 'refused', refusal: { code } }, `it is refused as ${code}`)
    const event = this.decision.kind === 'refused' ? this.decision.event : undefined
    t.equal(event?.type, keeping, keeping ? `${keeping} is kept` : 'nothing is stored')
    return this.after
  }
}

export function given(...facts: Fact[]): Specification {
  return new Specification([], null, STANDARD_LIFECYCLE).and(...facts)
}

/** Folds what was recorded once more, to compare. */
export const foldAgain = (spec: Specification): Task | null => fold(TASK_ID, null, spec.recorded)
