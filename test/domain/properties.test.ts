/**
 * The promises under random sequences of commands: valid and not, early and late, from workers that hold the
 * lease, held it once or never did, with command ids new and used. fast-check prints seed and path of a
 * failure and the shortest sequence that still fails.
 */
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import type { Command, CommandEnvelope } from '../../src/domain/commands.ts'
import { deadlinesOf, nextDeadline } from '../../src/domain/deadlines.ts'
import { type Decision, decide } from '../../src/domain/decide.ts'
import type { RecordedEvent, TaskEvent } from '../../src/domain/events.ts'
import { evolve, fold } from '../../src/domain/evolve.ts'
import { effectOf, forecast } from '../../src/domain/forecast.ts'
import { isOpenStatus, type LifecycleDefinition, STANDARD_LIFECYCLE } from '../../src/domain/lifecycle.ts'
import { LIMITS } from '../../src/domain/limits.ts'
import { NO_SIGNALS, type Signals } from '../../src/domain/signals.ts'
import type { OpenTask, Task } from '../../src/domain/task.ts'
import { why } from '../../src/domain/why.ts'
import { decodeEvent, encodeEvent, streamOf } from '../../src/eventlog/codec.ts'
import type { StoredEvent } from '../../src/eventlog/event-log.ts'
import {
  CLIENT,
  cancel,
  fail,
  note,
  PERSON,
  release,
  retry,
  STEPPED_LIFECYCLE,
  start,
  step,
  submit,
  succeed,
  T0,
  TASK_ID,
  TIMER,
  timeout,
  WORKER,
} from './specification.ts'

const RUNS = 1_000
const STREAM = streamOf(TASK_ID)

// What is asked

/** As it would come in: what JSON.parse makes, with no null prototype and no -0. */
const asJson = <V>(value: V): V => JSON.parse(JSON.stringify(value)) as V

const action = fc.record({
  // Weighted so that tasks live long enough to grow a history; what ends one is rare.
  ask: fc.oneof(
    { weight: 12, arbitrary: fc.constant('START' as const) },
    { weight: 6, arbitrary: fc.constantFrom('FAIL' as const, 'STEP' as const) },
    { weight: 6, arbitrary: fc.constantFrom('RETRY' as const, 'due timer' as const) },
    { weight: 4, arbitrary: fc.constantFrom('RELEASE' as const, 'TIMEOUT' as const) },
    {
      weight: 2,
      arbitrary: fc.constantFrom('SUCCEED' as const, 'CANCEL' as const, 'NOTE' as const, 'SUBMIT' as const),
    },
  ),
  /** Milliseconds that pass before. */
  passing: fc.oneof(fc.constant(0), fc.nat(20), fc.nat(1_000)),
  /** Attempt, counted from the current one. */
  offset: fc.oneof(
    { weight: 9, arbitrary: fc.constant(0) },
    { weight: 1, arbitrary: fc.integer({ min: -6, max: 1 }) },
  ),
  /** Null is the worker that holds the lease, if any does. */
  worker: fc.oneof({ weight: 3, arbitrary: fc.constant(null) }, { weight: 1, arbitrary: fc.nat(2) }),
  timer: fc.constantFrom(
    'queue' as const,
    'execution' as const,
    'step' as const,
    'lease' as const,
    'total' as const,
  ),
  /** Whether the worker was heard before its lease ended. */
  heard: fc.boolean(),
  step: fc.constantFrom('DOWNLOADING', 'GENERATING', 'UPLOADING'),
  retryable: fc.oneof(
    { weight: 4, arbitrary: fc.constant(true) },
    { weight: 1, arbitrary: fc.constant(false) },
  ),
  retryAfterMs: fc.option(fc.nat(500), { freq: 3 }),
  content: fc.option(fc.jsonValue({ maxDepth: 2 }).map(asJson), { nil: undefined }),
  byTimer: fc.oneof(
    { weight: 3, arbitrary: fc.constant(false) },
    { weight: 1, arbitrary: fc.constant(true) },
  ),
  random: fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
  /** How many commands back the command id was used before; null is a new one. */
  usedId: fc.oneof({ weight: 9, arbitrary: fc.constant(null) }, { weight: 1, arbitrary: fc.nat(4) }),
  ifRevision: fc.oneof(
    { weight: 9, arbitrary: fc.constant(null) },
    { weight: 1, arbitrary: fc.integer({ min: -1, max: 0 }) },
  ),
})
type Action = typeof action extends fc.Arbitrary<infer A> ? A : never

const setting = fc
  .record({
    stepped: fc.boolean(),
    delayMs: fc.oneof(fc.constant(null), fc.nat(200)),
    timeouts: fc.record({
      queueMs: fc.integer({ min: 1, max: 3_000 }),
      executionMs: fc.integer({ min: 1, max: 2_000 }),
      leaseMs: fc.integer({ min: 1, max: 1_000 }),
      totalMs: fc.integer({ min: 1, max: 40_000 }),
    }),
    retry: fc.record({
      maxAttempts: fc.integer({ min: 1, max: 8 }),
      initialDelayMs: fc.nat(200),
      factor: fc.double({ min: 1, max: 100, noNaN: true }),
      maxDelayMs: fc.nat(1_000),
      jitter: fc.double({ min: 0, max: 1, noNaN: true }),
    }),
  })
  .map(asJson)
type Setting = typeof setting extends fc.Arbitrary<infer S> ? S : never

const tokenOf = (worker: number, attempt: number): string =>
  `${worker}${attempt.toString(16).padStart(8, '0')}`.padStart(64, '0')

/** What may be known of a task beside its stream, whatever its status. */
const everySignals = (now: number): Signals[] => [
  NO_SIGNALS,
  {
    lease: { heldUntil: now + 10, lost: false, lastHeartbeatAt: now, progress: 0.5 },
    offer: { heldUntil: now + 10, timesOffered: 1 },
    position: { rank: 3, exact: true },
    cancelNotice: { attempt: 1, worker: 'worker-1', toldAt: now },
  },
  {
    lease: { heldUntil: now, lost: true, lastHeartbeatAt: null, progress: null },
    offer: { heldUntil: null, timesOffered: 2 },
    position: { rank: 1_001, exact: false },
    cancelNotice: { attempt: 1, worker: 'worker-1', toldAt: null },
  },
]

// One task's world

const FINAL_EVENTS: readonly string[] = ['TaskSucceeded', 'TaskFailed', 'TaskTimedOut', 'TaskCancelled']

function must(condition: boolean, what: string, detail?: unknown): asserts condition {
  if (!condition)
    throw new Error(detail === undefined ? what : `${what}: ${JSON.stringify(detail, undefined, 1)}`)
}

class World {
  task: Task | null = null
  now = T0
  readonly stored: StoredEvent[] = []
  readonly commandIds: string[] = []
  readonly startedAttempts = new Set<number>()
  readonly finalsOfRun = new Map<number, number>()
  readonly definition: LifecycleDefinition
  readonly setting: Setting
  private readonly holders = new Map<number, number>()
  /** A copy to try something on; it does not count as a sequence of its own. */
  private readonly trial: boolean = false

  constructor(setting: Setting) {
    this.setting = setting
    this.definition = setting.stepped ? STEPPED_LIFECYCLE : STANDARD_LIFECYCLE
    this.ask(this.submission(), 0.5, 'submit')
  }

  copy(): World {
    const copy = Object.create(World.prototype) as World
    return Object.assign(copy, this, {
      trial: true,
      stored: [...this.stored],
      startedAttempts: new Set(this.startedAttempts),
      finalsOfRun: new Map(this.finalsOfRun),
      holders: new Map(this.holders),
      commandIds: [...this.commandIds],
    })
  }

  /** Resolves an action against the task as it stands, then asks and checks what came of it. */
  do(action: Action): void {
    this.now += action.passing
    if (action.ask === 'due timer') return void this.fireNext(action.random, !action.heard)
    const used = action.usedId === null ? undefined : this.commandIds.at(-1 - action.usedId)
    this.ask(this.commandOf(action), action.random, used ?? `id-${this.commandIds.length}`, {
      ifRevision: action.ifRevision === null ? null : this.task!.revision + action.ifRevision,
      byTimer: action.byTimer,
    })
  }

  private submission(): Command {
    const { delayMs, timeouts, retry } = this.setting
    return submit({ delayMs, timeouts, retry })
  }

  private commandOf(action: Action): Command {
    const attempt = Math.max(1, this.task!.attempt + action.offset)
    const worker = action.worker ?? this.holders.get(attempt) ?? 0
    const fence = { attempt, leaseTokenHash: tokenOf(worker, attempt) }
    const context = action.content === undefined ? {} : { context: action.content as never }
    switch (action.ask) {
      case 'START':
        return start({ ...fence, worker: `worker-${worker}` })
      case 'STEP':
        return step(action.step, { ...fence, ...context })
      case 'SUCCEED':
        return succeed({ ...fence, result: (action.content ?? null) as never })
      case 'FAIL':
        return fail({
          ...fence,
          ...context,
          retryable: action.retryable,
          retryAfterMs: action.retryAfterMs,
        })
      case 'RELEASE':
        return release({ ...fence, ...context })
      case 'RETRY':
        return retry()
      case 'CANCEL':
        return cancel()
      case 'NOTE':
        return note()
      case 'SUBMIT':
        return this.submission()
      default:
        return timeout(action.timer, {
          attempt: action.timer === 'queue' || action.timer === 'total' ? null : attempt,
          lastHeartbeatAt: action.timer === 'lease' && action.heard ? this.now : null,
        })
    }
  }

  private envelope(command: Command, commandId: string, ifRevision: number | null, byTimer: boolean) {
    const actor =
      command.trigger === 'TIMEOUT' || (command.trigger === 'RETRY' && byTimer)
        ? TIMER
        : command.trigger === 'SUBMIT'
          ? CLIENT
          : 'leaseTokenHash' in command
            ? WORKER
            : PERSON
    return {
      taskId: TASK_ID,
      command,
      commandId,
      actor,
      source: 'http',
      correlationId: null,
      causationId: null,
      trace: null,
      ifRevision,
    } satisfies CommandEnvelope
  }

  ask(
    command: Command,
    random: number,
    commandId = `id-${this.commandIds.length}`,
    { ifRevision = null as number | null, byTimer = false } = {},
  ): Decision {
    this.commandIds.push(commandId)
    const envelope = this.envelope(command, commandId, ifRevision, byTimer)
    const given = { now: this.now, random, definition: this.definition }
    const decision = decide(this.task, envelope, given)
    const before = this.task
    const event = decision.kind === 'repeated' ? undefined : decision.event
    if (event) this.append(event, envelope)
    this.check(before, command, decision)

    // A late result moves the revision, which an If-Match would notice before anything else.
    const kept = decision.kind === 'refused' && decision.event !== undefined
    const again = decide(this.task, kept ? { ...envelope, ifRevision: null } : envelope, given)
    const afresh = decide(this.task, { ...envelope, commandId: 'another', ifRevision: null }, given)
    if (decision.kind === 'accepted') {
      must(again.kind === 'repeated', 'a command accepted is repeated when asked again', { command, again })
      if (command.trigger !== 'NOTE' && command.trigger !== 'TIMEOUT')
        must(afresh.kind === 'repeated', 'so is the same ask under another id', { command, afresh })
    } else {
      const { event: _, ...same } = decision as Decision & { kind: 'refused' }
      must(
        isDeepStrictEqual(again, same),
        'what was not accepted is answered the same again, without event',
        {
          command,
          again,
        },
      )
    }
    return decision
  }

  private append(event: TaskEvent, envelope: CommandEnvelope): void {
    const revision = this.stored.length
    const { actor, source, commandId } = envelope
    const metadata = {
      at: this.now,
      actor,
      source,
      commandId,
      correlationId: null,
      causationId: null,
      trace: null,
      prevHash: this.task?.hash ?? null,
    }
    const { encoded, recorded } = encodeEvent(STREAM, revision, `event-${revision}`, event, metadata)
    this.stored.push({ ...encoded, stream: STREAM, revision, position: String(revision) })
    if (!this.trial) seen.set(event.type, (seen.get(event.type) ?? 0) + 1)
    if (FINAL_EVENTS.includes(event.type)) {
      const { run } = this.task!
      this.finalsOfRun.set(run, (this.finalsOfRun.get(run) ?? 0) + 1)
      must(this.finalsOfRun.get(run) === 1, 'a run has at most one final event')
    }
    if (event.type === 'TaskStarted') {
      const { attempt, worker } = event.data
      must(!this.startedAttempts.has(attempt), 'no attempt starts twice', attempt)
      this.startedAttempts.add(attempt)
      this.holders.set(attempt, Number(worker.slice('worker-'.length)))
    }
    this.task = evolve(TASK_ID, this.task, recorded)
  }

  private check(before: Task | null, command: Command, decision: Decision): void {
    const task = this.task!
    if (decision.kind === 'refused' && decision.event)
      must(decision.event.type === 'LateResultRecorded', 'a refusal keeps nothing but a late result')
    if (decision.kind !== 'accepted' && before)
      must(before.status === task.status, 'only what is accepted moves a task')
    if (before && !isOpenStatus(before.status) && before.status !== task.status)
      must(
        before.status === 'FAILED' && task.status === 'PENDING' && command.trigger === 'RETRY',
        'a final status is left only by RETRY of a failed task',
        { from: before.status, to: task.status, command },
      )
    must((before?.attempt ?? 1) <= task.attempt, 'attempt numbers never decrease')
    must((before?.run ?? 1) <= task.run, 'runs never decrease')
    must((before?.revision ?? -1) <= task.revision, 'revisions never decrease')
    must(task.attemptsCharged <= task.retry.maxAttempts, 'the budget of attempts holds', task.attemptsCharged)
    must(task.endedAttempts.length <= LIMITS.rememberedAttempts, 'remembered attempts are bounded')
    must(task.recentCommands.length <= LIMITS.rememberedCommands, 'remembered commands are bounded')
    must(task.lateResults <= LIMITS.lateResultsPerTask, 'late results are bounded')
    must(task.releasesInRun <= LIMITS.releasesPerRun, 'releases are bounded')
    must(task.silentLeasesInRun <= LIMITS.silentLeasesPerRun, 'leases that cost nothing are bounded')
    if (before && task.silentLeasesInRun > before.silentLeasesInRun)
      must(
        command.trigger === 'TIMEOUT' && command.timer === 'lease' && command.lastHeartbeatAt === null,
        'only a lease without a heartbeat costs nothing',
        command,
      )
    must(isOpenStatus(task.status) === (nextDeadline(task) !== null), 'an open task has a next deadline')
    if (!this.trial) this.checkAccounted()
  }

  /** Whatever is known of it, an open task says why it is where it is, what fires next and what that will do. */
  private checkAccounted(): void {
    const task = this.task!
    const open = isOpenStatus(task.status)
    for (const signals of everySignals(this.now))
      for (const now of [this.now, this.now + 1_000_000]) {
        must(/\S{3}/.test(why(task, signals, now)), 'a task says why', task)
        const next = forecast(task, signals, this.definition, now)
        must(open === (next !== null), 'what is open has a next deadline, what is finished none', task)
        must(!open || Boolean(next?.to && next.effect), 'with what it will do', { task, next })
      }
  }

  /** What the timers would ask for this timer. */
  private commandFor(timer: ReturnType<typeof deadlinesOf>[number]['timer'] | 'lease'): Command {
    if (timer === 'retry') return retry()
    must(timer !== 'not_before', 'not_before asks nothing')
    const { attempt } = this.task!
    return timeout(timer, { attempt: timer === 'queue' || timer === 'total' ? null : attempt })
  }

  /** Fires one timer at its date; it must be accepted, leave the status and lead where that was foretold. */
  fire(timer: ReturnType<typeof deadlinesOf>[number]['timer'] | 'lease', at: number, random: number): void {
    const from = this.task!.status
    const { to } = effectOf(this.task as OpenTask, timer, NO_SIGNALS, this.definition)
    this.now = Math.max(this.now, at)
    const decision = this.ask(this.commandFor(timer), random, undefined, { byTimer: true })
    must(decision.kind === 'accepted', `the timer ${timer} is accepted at its date`, { from, decision })
    must(this.task!.status !== from, `the timer ${timer} leaves ${from}`)
    must(this.task!.status === to, `the timer ${timer} does what was foretold`, { from, to })
  }

  /** Fires what is due first; the lease among it where the worker is silent. */
  fireNext(random: number, silentWorker = false): void {
    const task = this.task!
    const next = nextDeadline(task, 'not_before')
    if (silentWorker && next && task.status === 'PROCESSING' && task.leaseDeadlineAt < next.at)
      this.fire('lease', task.leaseDeadlineAt, random)
    else if (next && next.timer !== 'not_before') this.fire(next.timer, next.at, random)
  }

  /** Every armed timer, and the lease, is a way out of the status. */
  checkWaysOut(): void {
    const task = this.task!
    for (const { timer, at } of deadlinesOf(task)) if (timer !== 'not_before') this.copy().fire(timer, at, 0)
    if (task.status === 'PROCESSING') this.copy().fire('lease', task.leaseDeadlineAt, 0)
  }

  /** Timers alone end the task; so do they when a silent worker starts every attempt. */
  checkEnds(silentWorker: boolean): void {
    const world = this.copy()
    const attempts = world.task!.retry.maxAttempts + LIMITS.silentLeasesPerRun
    const bound = silentWorker ? 3 * attempts + 3 : 4
    for (let fired = 0; fired <= bound; fired++) {
      const task = world.task!
      reached.silentLeasesInRun = Math.max(reached.silentLeasesInRun, task.silentLeasesInRun)
      if (!isOpenStatus(task.status)) return
      if (silentWorker && task.status === 'PENDING') {
        world.now = Math.max(world.now, task.runAt)
        world.ask(
          start({
            worker: 'worker-2',
            attempt: task.attempt,
            leaseTokenHash: tokenOf(2, task.attempt),
          }),
          0,
        )
      }
      world.fireNext(0, silentWorker)
    }
    must(false, `timers end every task within ${bound} firings`, world.task)
  }

  checkFold(cut: number): void {
    const decoded: RecordedEvent[] = this.stored.map(decodeEvent)
    const whole = fold(TASK_ID, null, decoded)
    must(isDeepStrictEqual(whole, this.task), 'the stored events fold to the same task', {
      whole,
      task: this.task,
    })
    const at = cut % (decoded.length + 1)
    const head = fold(TASK_ID, null, decoded.slice(0, at))
    const kept = structuredClone(head)
    must(
      isDeepStrictEqual(fold(TASK_ID, head, decoded.slice(at)), whole),
      'a fold in two parts is the fold in one',
    )
    must(isDeepStrictEqual(head, kept), 'the fold changes no task in place')
  }
}

/** What all sequences reached: a property that is never put to the test says nothing. */
const seen = new Map<TaskEvent['type'], number>()
const reached = { attempt: 0, run: 0, lateResults: 0, releasesInRun: 0, silentLeasesInRun: 0 }

t.test('the promises hold for every sequence of commands', async t => {
  t.doesNotThrow(() =>
    fc.assert(
      fc.property(
        setting,
        fc.array(action, { maxLength: 60, size: 'max' }),
        fc.nat(100),
        (setting, actions, cut) => {
          const world = new World(setting)
          for (const each of actions) {
            world.do(each)
            world.checkWaysOut()
          }
          world.checkFold(cut)
          world.checkEnds(false)
          world.checkEnds(true)
          const task = world.task!
          for (const field of Object.keys(reached) as (keyof typeof reached)[])
            reached[field] = Math.max(reached[field], task[field])
        },
      ),
      { numRuns: RUNS },
    ),
  )
})

t.test('the sequences reached every event and the bounds', async t => {
  t.comment([...seen].map(([type, count]) => `${type} ${count}`).join(', '))
  t.comment(reached)
  t.equal(seen.size, 13)
  t.strictSame(
    [...seen].filter(([, count]) => count < 20),
    [],
    'no event is rare',
  )
  t.ok(reached.attempt > LIMITS.rememberedAttempts, 'more attempts than are remembered')
  t.ok(reached.run > 1, 'more than one run')
  t.equal(reached.silentLeasesInRun, LIMITS.silentLeasesPerRun, 'every lease that costs nothing')
})
