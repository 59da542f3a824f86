/**
 * The lifecycle is data: which status answers which trigger, where it goes and which event is stored. A
 * definition names its guards, timers and steps; this module checks definitions and walks them. It knows
 * nothing of tasks.
 */
import { z } from 'zod'
import { LIMITS, NAME_PATTERN, STEP_PATTERN } from './limits.ts'

export const STATUSES = ['PENDING', 'PROCESSING', 'RETRYING', 'SUCCESS', 'FAILED', 'CANCELLED'] as const
export type Status = (typeof STATUSES)[number]

/** Statuses that a task leaves again by itself: each has timers (promise 1). */
export const OPEN_STATUSES = ['PENDING', 'PROCESSING', 'RETRYING'] as const
export type OpenStatus = (typeof OPEN_STATUSES)[number]
export const isOpenStatus = (status: Status): status is OpenStatus =>
  (OPEN_STATUSES as readonly Status[]).includes(status)

/** Timers that send TIMEOUT. The timer `retry` (backoff over) sends RETRY and is named in a state's timers too. */
export const TIMEOUT_TIMERS = ['queue', 'execution', 'step', 'lease', 'total'] as const
export type TimeoutTimer = (typeof TIMEOUT_TIMERS)[number]
export const TIMERS = [...TIMEOUT_TIMERS, 'retry'] as const
export type Timer = (typeof TIMERS)[number]

/** What is asked. A TIMEOUT is named by its timer. */
export const TRIGGERS = [
  'START',
  'STEP',
  'SUCCEED',
  'FAIL',
  'RELEASE',
  'RETRY',
  'CANCEL',
  'NOTE',
  'TIMEOUT:queue',
  'TIMEOUT:execution',
  'TIMEOUT:step',
  'TIMEOUT:lease',
  'TIMEOUT:total',
] as const
export type Trigger = (typeof TRIGGERS)[number]

/** Events a transition may store. TaskSubmitted and LateResultRecorded are not transitions. */
export const TRANSITION_EVENTS = [
  'TaskStarted',
  'TaskStepEntered',
  'TaskSucceeded',
  'TaskAttemptFailed',
  'TaskFailed',
  'TaskAttemptTimedOut',
  'TaskTimedOut',
  'TaskReleased',
  'TaskRequeued',
  'TaskCancelled',
  'TaskNoted',
] as const
export type TransitionEvent = (typeof TRANSITION_EVENTS)[number]

/** Facts a guard may look at; the decision fills them in. */
export interface GuardFacts {
  retryable: boolean
  attemptsLeft: boolean
}

/** Guards by name. A target without a guard is unconditional. */
export const GUARDS = {
  may_retry: facts => facts.retryable && facts.attemptsLeft,
  attempts_left: facts => facts.attemptsLeft,
} as const satisfies Record<string, (facts: GuardFacts) => boolean>
export type GuardName = keyof typeof GUARDS

/**
 * The status each event leads to. It is fixed, not part of a definition, so that a stored stream can be
 * folded without the definition that was in force. `same` leaves the status as it is.
 */
export const EVENT_TARGET: Record<TransitionEvent, Status | 'same'> = {
  TaskStarted: 'PROCESSING',
  TaskStepEntered: 'PROCESSING',
  TaskSucceeded: 'SUCCESS',
  TaskAttemptFailed: 'RETRYING',
  TaskFailed: 'FAILED',
  TaskAttemptTimedOut: 'RETRYING',
  TaskTimedOut: 'FAILED',
  TaskReleased: 'PENDING',
  TaskRequeued: 'PENDING',
  TaskCancelled: 'CANCELLED',
  TaskNoted: 'same',
}

/** Events that answer each trigger, whatever the definition: their data must fit what was asked. */
export const TRIGGER_EVENTS: Record<Trigger, readonly TransitionEvent[]> = {
  START: ['TaskStarted'],
  STEP: ['TaskStepEntered'],
  SUCCEED: ['TaskSucceeded'],
  FAIL: ['TaskAttemptFailed', 'TaskFailed'],
  RELEASE: ['TaskReleased'],
  RETRY: ['TaskRequeued'],
  CANCEL: ['TaskCancelled'],
  NOTE: ['TaskNoted'],
  'TIMEOUT:queue': ['TaskTimedOut'],
  'TIMEOUT:execution': ['TaskAttemptTimedOut', 'TaskTimedOut'],
  'TIMEOUT:step': ['TaskAttemptTimedOut', 'TaskTimedOut'],
  'TIMEOUT:lease': ['TaskAttemptTimedOut', 'TaskTimedOut'],
  'TIMEOUT:total': ['TaskTimedOut'],
}

/**
 * Triggers a definition may answer in a status. The fold gives each event one meaning, so a definition can
 * leave triggers out and choose by guards, but not, say, start an attempt that has ended (RETRYING on START) or
 * give a run a second outcome (SUCCESS on CANCEL).
 */
const STATUS_TRIGGERS: Record<Status, readonly Trigger[]> = {
  PENDING: ['START', 'CANCEL', 'NOTE', 'TIMEOUT:queue', 'TIMEOUT:total'],
  PROCESSING: [
    'STEP',
    'SUCCEED',
    'FAIL',
    'RELEASE',
    'CANCEL',
    'NOTE',
    'TIMEOUT:execution',
    'TIMEOUT:step',
    'TIMEOUT:lease',
    'TIMEOUT:total',
  ],
  RETRYING: ['RETRY', 'CANCEL', 'NOTE', 'TIMEOUT:total'],
  SUCCESS: ['NOTE'],
  FAILED: ['RETRY', 'NOTE'],
  CANCELLED: ['NOTE'],
}

const EVENT_SOURCES = new Map(
  TRANSITION_EVENTS.map(event => [
    event,
    new Set(
      STATUSES.filter(status =>
        STATUS_TRIGGERS[status].some(trigger => TRIGGER_EVENTS[trigger].includes(event)),
      ),
    ),
  ]),
)

/** Whether an event can follow in a status under any definition; the fold refuses a stream where it cannot. */
export const eventFits = (status: Status, event: TransitionEvent): boolean =>
  EVENT_SOURCES.get(event)?.has(status) ?? false

/** Timers that make sense in a status: each needs a date that the status carries. */
const STATUS_TIMERS: Record<Status, readonly Timer[]> = {
  PENDING: ['queue', 'total'],
  PROCESSING: ['execution', 'step', 'lease', 'total'],
  RETRYING: ['retry', 'total'],
  SUCCESS: [],
  FAILED: [],
  CANCELLED: [],
}

/**
 * Timers whose date every task carries in their status: a definition that left one out would be asked for an
 * answer it does not have. `step` exists only where a step has a limit.
 */
const CERTAIN_TIMERS: readonly Timer[] = ['queue', 'execution', 'lease', 'total', 'retry']

/** Events after which an attempt follows; without a guard they would outlive the budget of attempts. */
const RETRY_EVENTS: readonly TransitionEvent[] = ['TaskAttemptFailed', 'TaskAttemptTimedOut']

const targetSchema = z.strictObject({
  to: z.enum(STATUSES),
  event: z.enum(TRANSITION_EVENTS),
  guard: z.enum(Object.keys(GUARDS) as [GuardName, ...GuardName[]]).optional(),
})

const stateSchema = z.strictObject({
  timers: z.array(z.enum(TIMERS)).max(TIMERS.length),
  on: z.partialRecord(z.enum(TRIGGERS), z.array(targetSchema).min(1).max(8)),
})

const stepSchema = z.strictObject({
  /** Steps that may follow; an attempt may end from any step. */
  next: z.array(z.string().regex(STEP_PATTERN)).max(64),
  /** How long the step may last, in milliseconds; without it only the execution timer limits it. */
  limitMs: z.int().min(LIMITS.timeoutMs.min).max(LIMITS.timeoutMs.max).optional(),
})

/** A definition as it is read back from the log: it was checked when it was configured, by the rules of its day. */
export const storedLifecycleSchema = z.strictObject({
  name: z.string().regex(NAME_PATTERN),
  version: z.int().min(1).max(1_000_000),
  initial: z.literal('PENDING'),
  states: z.partialRecord(z.enum(STATUSES), stateSchema),
  /** Absent: any step name in any order. Present: only these, in this order. */
  steps: z
    .strictObject({
      first: z.array(z.string().regex(STEP_PATTERN)).min(1).max(64),
      all: z.record(z.string().regex(STEP_PATTERN), stepSchema),
    })
    .optional(),
})

export type LifecycleDefinition = z.infer<typeof storedLifecycleSchema>
type Target = z.infer<typeof targetSchema>

/** A definition, checked: its shape, and that no state is a trap. Messages name the state at fault. */
export const lifecycleSchema = storedLifecycleSchema.check(payload => {
  for (const message of faultsOf(payload.value)) {
    payload.issues.push({ code: 'custom', message, input: payload.value, path: ['states'] })
  }
})

function faultsOf(definition: LifecycleDefinition): string[] {
  const states = Object.entries(definition.states) as [Status, z.infer<typeof stateSchema>][]
  return [
    ...states.flatMap(([status, state]) => targetFaults(definition, status, state)),
    ...states.flatMap(([status, state]) => timerFaults(status, state)),
    ...reachFaults(definition),
    ...stepFaults(definition),
  ]
}

function targetFaults(
  definition: LifecycleDefinition,
  status: Status,
  state: z.infer<typeof stateSchema>,
): string[] {
  const faults: string[] = []
  for (const [trigger, targets] of Object.entries(state.on) as [Trigger, Target[]][]) {
    const where = `${status} on ${trigger}`
    if (!STATUS_TRIGGERS[status].includes(trigger)) faults.push(`${where}: ${status} cannot answer it`)
    targets.forEach((target, index) => {
      const last = index === targets.length - 1
      const expected = EVENT_TARGET[target.event] === 'same' ? status : EVENT_TARGET[target.event]
      if (!definition.states[target.to]) faults.push(`${where}: state ${target.to} is not defined`)
      if (target.to !== expected)
        faults.push(`${where}: ${target.event} leads to ${expected}, not ${target.to}`)
      if (!TRIGGER_EVENTS[trigger].includes(target.event))
        faults.push(`${where}: ${target.event} does not answer ${trigger}`)
      if (RETRY_EVENTS.includes(target.event) && !target.guard)
        faults.push(`${where}: ${target.event} needs a guard that counts the attempts`)
      if (last && target.guard) faults.push(`${where}: the last target must be unconditional`)
      if (!last && !target.guard)
        faults.push(`${where}: a target behind an unconditional one is never chosen`)
    })
  }
  return faults
}

function timerFaults(status: Status, state: z.infer<typeof stateSchema>): string[] {
  const faults: string[] = []
  for (const timer of state.timers) {
    if (!STATUS_TIMERS[status].includes(timer))
      faults.push(`${status}: the timer ${timer} cannot be armed here`)
    const trigger: Trigger = timer === 'retry' ? 'RETRY' : `TIMEOUT:${timer}`
    const targets = state.on[trigger]
    if (!targets) faults.push(`${status}: nothing answers its timer ${timer}`)
    else if (targets.some(target => target.to === status))
      faults.push(`${status}: its timer ${timer} does not leave it`)
  }
  for (const trigger of Object.keys(state.on) as Trigger[]) {
    const timer = trigger.startsWith('TIMEOUT:') ? (trigger.slice('TIMEOUT:'.length) as Timer) : null
    if (timer && !state.timers.includes(timer))
      faults.push(`${status}: ${trigger} is answered but its timer is not armed`)
  }
  for (const timer of CERTAIN_TIMERS)
    if (STATUS_TIMERS[status].includes(timer) && !state.timers.includes(timer))
      faults.push(`${status}: an open state needs its timers; ${timer} is missing`)
  return faults
}

function reachFaults(definition: LifecycleDefinition): string[] {
  const faults: string[] = []
  const next = (status: Status): Status[] =>
    Object.values(definition.states[status]?.on ?? {}).flatMap(targets => targets.map(target => target.to))
  const reachable = (from: Status): Set<Status> => {
    const seen = new Set<Status>([from])
    for (const status of seen) for (const to of next(status)) seen.add(to)
    return seen
  }
  if (!definition.states[definition.initial])
    return [`the initial state ${definition.initial} is not defined`]
  const fromInitial = reachable(definition.initial)
  for (const status of Object.keys(definition.states) as Status[]) {
    if (!fromInitial.has(status)) faults.push(`${status}: cannot be reached from ${definition.initial}`)
    if (isOpenStatus(status) && ![...reachable(status)].some(to => !isOpenStatus(to)))
      faults.push(`${status}: no final state can be reached from it`)
  }
  return faults
}

function stepFaults(definition: LifecycleDefinition): string[] {
  const { steps } = definition
  if (!steps) return []
  const known = new Set(Object.keys(steps.all))
  const named = [...steps.first, ...Object.values(steps.all).flatMap(step => step.next)]
  const seen = new Set(steps.first)
  for (const name of seen) for (const to of steps.all[name]?.next ?? []) seen.add(to)
  return [
    ...[...new Set(named)]
      .filter(name => !known.has(name))
      .map(name => `step ${name} is named but not defined`),
    ...[...known].filter(name => !seen.has(name)).map(name => `step ${name} cannot be reached`),
    ...(Object.values(steps.all).some(step => step.limitMs) &&
    !definition.states.PROCESSING?.timers.includes('step')
      ? ['PROCESSING: a step has a limit but the timer step is not armed']
      : []),
  ]
}

/** Where a trigger leads, or null where the status does not answer it. */
export function transition(
  definition: LifecycleDefinition,
  status: Status,
  trigger: Trigger,
  facts: GuardFacts = { retryable: true, attemptsLeft: true },
): { to: Status; event: TransitionEvent } | null {
  const targets = definition.states[status]?.on[trigger]
  const chosen = targets?.find(target => !target.guard || GUARDS[target.guard](facts))
  return chosen ? { to: chosen.to, event: chosen.event } : null
}

/**
 * Whether an attempt may enter a step.
 *
 * @param from the step the attempt is in, null before its first
 */
export function mayEnterStep(definition: LifecycleDefinition, from: string | null, to: string): boolean {
  const { steps } = definition
  if (!steps) return true
  const allowed = from === null ? steps.first : (steps.all[from]?.next ?? [])
  return allowed.includes(to)
}

/** The limit of a step in milliseconds, null where only the execution timer limits it. */
export function stepLimitMs(definition: LifecycleDefinition, step: string): number | null {
  return definition.steps?.all[step]?.limitMs ?? null
}

const noted = (to: Status): Target[] => [{ to, event: 'TaskNoted' }]

const attemptTimedOut: Target[] = [
  { to: 'RETRYING', event: 'TaskAttemptTimedOut', guard: 'attempts_left' },
  { to: 'FAILED', event: 'TaskTimedOut' },
]

/** DESIGN 3, as data. */
export const STANDARD_LIFECYCLE: LifecycleDefinition = lifecycleSchema.parse({
  name: 'standard',
  version: 1,
  initial: 'PENDING',
  states: {
    PENDING: {
      timers: ['queue', 'total'],
      on: {
        START: [{ to: 'PROCESSING', event: 'TaskStarted' }],
        CANCEL: [{ to: 'CANCELLED', event: 'TaskCancelled' }],
        NOTE: noted('PENDING'),
        'TIMEOUT:queue': [{ to: 'FAILED', event: 'TaskTimedOut' }],
        'TIMEOUT:total': [{ to: 'FAILED', event: 'TaskTimedOut' }],
      },
    },
    PROCESSING: {
      timers: ['execution', 'step', 'lease', 'total'],
      on: {
        STEP: [{ to: 'PROCESSING', event: 'TaskStepEntered' }],
        SUCCEED: [{ to: 'SUCCESS', event: 'TaskSucceeded' }],
        FAIL: [
          { to: 'RETRYING', event: 'TaskAttemptFailed', guard: 'may_retry' },
          { to: 'FAILED', event: 'TaskFailed' },
        ],
        RELEASE: [{ to: 'PENDING', event: 'TaskReleased' }],
        CANCEL: [{ to: 'CANCELLED', event: 'TaskCancelled' }],
        NOTE: noted('PROCESSING'),
        'TIMEOUT:execution': attemptTimedOut,
        'TIMEOUT:step': attemptTimedOut,
        'TIMEOUT:lease': attemptTimedOut,
        'TIMEOUT:total': [{ to: 'FAILED', event: 'TaskTimedOut' }],
      },
    },
    RETRYING: {
      timers: ['retry', 'total'],
      on: {
        RETRY: [{ to: 'PENDING', event: 'TaskRequeued' }],
        CANCEL: [{ to: 'CANCELLED', event: 'TaskCancelled' }],
        NOTE: noted('RETRYING'),
        'TIMEOUT:total': [{ to: 'FAILED', event: 'TaskTimedOut' }],
      },
    },
    SUCCESS: { timers: [], on: { NOTE: noted('SUCCESS') } },
    FAILED: {
      timers: [],
      on: { RETRY: [{ to: 'PENDING', event: 'TaskRequeued' }], NOTE: noted('FAILED') },
    },
    CANCELLED: { timers: [], on: { NOTE: noted('CANCELLED') } },
  },
})
