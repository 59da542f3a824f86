/**
 * The plan of a fault run: which fault strikes what and when, who submits what and what else is asked of it. Pure:
 * the same seed and seconds give the same plan. What the processes make of it, step by step, is the machine's.
 */
import { type BrokerKind, type FaultKind, type FaultKindPlan, kindsOf, type LogKind } from './kinds.ts'
import { bagOf, Random } from './random.ts'

export interface Fault {
  kind: FaultKind
  target: string
  atMs: number
  forMs: number
  amount: number
}

/** What a worker does with a task; what must become of it where nobody cancels it. */
export const PROGRAMS = {
  succeeds: { share: 290, ends: ['SUCCESS'] },
  steps: { share: 40, ends: ['SUCCESS'] },
  delayed: { share: 16, ends: ['SUCCESS'] },
  fails_first: { share: 40, ends: ['SUCCESS'] },
  /** The worker's process dies in the first attempt, and whatever else it has in hand is left behind. */
  dies_first: { share: 2, ends: ['SUCCESS'] },
  /** Stops the whole worker for longer than a lease, without a heartbeat, and reports then. */
  late: { share: 4, ends: ['SUCCESS'] },
  fails: { share: 24, ends: ['FAILED'] },
  fails_for_good: { share: 24, ends: ['FAILED'] },
  dies: { share: 1, ends: ['FAILED'] },
  /** Goes on until it is aborted. */
  hangs: { share: 16, ends: ['FAILED'] },
  /** Works beyond its execution limit and heeds no signal: it is in time only where the timers were not. */
  ignores_abort: { share: 8, ends: ['FAILED', 'SUCCESS'] },
  /** No worker claims its type. */
  unclaimed: { share: 12, ends: ['FAILED'] },
  /** In its backoff when the total time is over. */
  overall: { share: 12, ends: ['FAILED'] },
} as const satisfies Record<string, { share: number; ends: readonly ('SUCCESS' | 'FAILED')[] }>
export type Program = keyof typeof PROGRAMS

export interface Payload {
  number: number
  program: Program
  workMs: number
  text: string
}

/** What a client asks of a task it has submitted, some time after the answer. */
export interface Act {
  what: 'cancel' | 'retry' | 'note' | 'read'
  afterMs: number
  commandId: string
}

export interface PlannedTask {
  key: string
  type: string
  payload: Payload
  priority: number
  delayMs: number
  timeouts: { leaseMs: number; queueMs?: number; executionMs?: number; totalMs?: number }
  retry: { maxAttempts: number; initialDelayMs: number; maxDelayMs: number }
  acts: Act[]
}

export interface PlannedSubmit {
  atMs: number
  /** One is submitted alone, more in a batch. */
  tasks: PlannedTask[]
  /** The client does not ask again when it gets no answer, and never knows. */
  givesUp: boolean
}

export interface Plan {
  log: LogKind
  /** Left out where there is none. */
  broker?: Exclude<BrokerKind, 'none'>
  seed: number
  seconds: number
  faults: Fault[]
  submits: PlannedSubmit[]
}

/** What workers claim, and a broker hands out. */
export const TASK_TYPE = 'faults.task'
const TASKS_PER_SECOND = 15
const QUIET_START_MS = 2_000
const GAP_MS = [200, 2_400] as const
export const AT_ONCE_MAX = 2
/** Whatever these parts are told to survive, the attempts of a task that is to succeed do not run out. */
const MANY_ATTEMPTS = 50
const TEXTS = [
  'plain',
  'naïve 漢字 🙂',
  'quote " and \\ and\nline',
  'nul \u0000 inside',
  'lone \ud800 one',
  '',
]

/** @throws RangeError for seconds that leave no room for faults */
export function makePlan(
  seed: number,
  seconds: number,
  log: LogKind = 'postgres',
  broker: BrokerKind = 'none',
): Plan {
  if (!(seconds >= 10)) throw new RangeError(`a fault run takes 10 seconds at least, not ${seconds}`)
  // Two sources, so that neither list changes when the other draws more.
  return {
    log,
    ...(broker === 'none' ? {} : { broker }),
    seed,
    seconds,
    faults: planFaults(new Random(seed), seconds * 1_000, kindsOf(log, broker)),
    submits: planSubmits(new Random(seed ^ 0x5bd1e995), seed, seconds * 1_000),
  }
}

/** Every kind comes up before one comes up again; at most two at a time, on different targets. */
function planFaults(random: Random, endMs: number, kinds: Record<string, FaultKindPlan>): Fault[] {
  const faults: Fault[] = []
  const nextKind = bagOf(random, Object.keys(kinds) as FaultKind[])
  for (let atMs = QUIET_START_MS; ; atMs += random.whole(...GAP_MS)) {
    const kind = nextKind()
    const { targets, forMs, amount } = kinds[kind]!
    const target = random.pick(targets)
    for (;;) {
      const active = faults.filter(fault => fault.atMs + fault.forMs >= atMs)
      const inTheWay = active.filter(fault => fault.target === target)
      const room = active.length < AT_ONCE_MAX ? [] : active
      const waitFor = [...inTheWay, ...room].map(fault => fault.atMs + fault.forMs + 1)
      if (waitFor.length === 0) break
      atMs = Math.min(...waitFor)
    }
    const leftMs = endMs - atMs
    if (leftMs < forMs[0]) return faults
    // Short ones are more frequent, so that there is room for many.
    const lasts = Math.round(forMs[0] + random.next() ** 2 * (Math.min(leftMs, forMs[1]) - forMs[0]))
    faults.push({ kind, target, atMs, forMs: lasts, amount: amount ? random.whole(...amount) : 0 })
  }
}

function planSubmits(random: Random, seed: number, endMs: number): PlannedSubmit[] {
  const submits: PlannedSubmit[] = []
  const programs = Object.entries(PROGRAMS).flatMap(([program, { share }]) =>
    Array.from({ length: share }, () => program as Program),
  )
  const nextProgram = bagOf(random, programs)
  for (let atMs = 0, number = 0; atMs < endMs; ) {
    const size = random.chance(0.1) ? random.whole(2, 20) : 1
    const tasks = Array.from({ length: size }, () => planTask(random, seed, number++, nextProgram()))
    submits.push({ atMs: Math.round(atMs), tasks, givesUp: random.chance(0.02) })
    atMs += random.between(0, (2 * 1_000 * size) / TASKS_PER_SECOND)
  }
  return submits
}

function planTask(random: Random, seed: number, number: number, program: Program): PlannedTask {
  const key = `faults-${seed}-${number}`
  const acts: Act[] = []
  const act = (what: Act['what'], withinMs: number): void => {
    acts.push({ what, afterMs: random.whole(0, withinMs), commandId: `${key}-${what}` })
  }
  if (random.chance(0.06)) act('cancel', 3_000)
  if (random.chance(program === 'fails_for_good' ? 0.5 : 0.01)) act('retry', 1_000)
  if (random.chance(0.1)) act('note', 4_000)
  if (random.chance(0.1)) act('read', 8_000)
  const long = random.chance(0.02)
  return {
    key,
    type: program === 'unclaimed' ? 'faults.nobody' : TASK_TYPE,
    payload: {
      number,
      program,
      workMs: workMsOf(random, program),
      text: long ? random.pick(TEXTS).repeat(random.whole(1, 2_000)) : random.pick(TEXTS),
    },
    priority: random.whole(-2, 2),
    delayMs: program === 'delayed' ? random.whole(200, 4_000) : 0,
    timeouts: timeoutsOf(random, program),
    retry: {
      maxAttempts: retriesOf(program),
      initialDelayMs: program === 'overall' ? 60_000 : 50,
      maxDelayMs: program === 'overall' ? 60_000 : 500,
    },
    acts,
  }
}

function workMsOf(random: Random, program: Program): number {
  if (program === 'late') return random.whole(2_500, 4_500)
  if (program === 'ignores_abort') return random.whole(4_000, 7_000)
  return random.whole(0, 500)
}

function timeoutsOf(random: Random, program: Program): PlannedTask['timeouts'] {
  const leaseMs = program === 'late' ? 2_000 : random.whole(2_000, 5_000)
  if (program === 'hangs' || program === 'ignores_abort')
    return { leaseMs, executionMs: random.whole(1_000, 3_000) }
  if (program === 'unclaimed') return { leaseMs, queueMs: random.whole(1_000, 5_000) }
  if (program === 'overall') return { leaseMs, totalMs: random.whole(3_000, 6_000) }
  return { leaseMs }
}

function retriesOf(program: Program): number {
  if (program === 'fails' || program === 'hangs' || program === 'ignores_abort' || program === 'dies')
    return 2
  return MANY_ATTEMPTS
}

/** How many faults of each kind a plan has; those that do not occur are left out. */
export function countKinds(faults: readonly Fault[]): Partial<Record<FaultKind, number>> {
  const counts: Partial<Record<FaultKind, number>> = {}
  for (const { kind } of faults) counts[kind] = (counts[kind] ?? 0) + 1
  return counts
}
