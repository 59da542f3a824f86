/**
 * Command -> load -> decide -> append -> answer.
 *
 * Commands of one task form a queue; heads of different queues travel together in a flight. Whatever waits when its
 * append returns goes in the next one (group commit with no added delay); two are under way only under load.
 *
 * A flight's members each go through: taken -> loaded -> decided -> appended -> answered. A conflict takes a
 * member back to `taken`, a bounded number of times. An answer that stores nothing (repeated, refused) is given
 * only after the task was caught up with its stream, so that no stale cache can say no. With a submit another command
 * can travel, in the same append (`followUp`).
 */
import type { Logger } from 'pino'
import type { CommandEnvelope } from '../domain/commands.ts'
import { type Decision, decide } from '../domain/decide.ts'
import type { Instant, LifecycleRef } from '../domain/events.ts'
import { type LifecycleDefinition, STANDARD_LIFECYCLE } from '../domain/lifecycle.ts'
import type { Task } from '../domain/task.ts'
import {
  type AppendResult,
  EVENT_BYTES_MAX,
  type EventLog,
  LogSealedError,
  LogUnavailableError,
} from '../eventlog/event-log.ts'
import { type Answer, type AnswerObserver, logAnswer, refused } from './answer.ts'
import { AppendRetrier } from './append-retrier.ts'
import type { Clock } from './clock.ts'
import { CommandQueues, type FingerprintOf, type Waiting } from './command-queues.ts'
import { type Lifecycles, UnknownLifecycleError } from './lifecycles.ts'
import {
  answerWithoutEvent,
  appendOf,
  type Decided,
  dropFollowUp,
  eventOf,
  type FollowUp,
  isSubmit,
  type Stage,
  type Staged,
  stageEvent,
  stagesOf,
} from './staged.ts'
import { TaskCache } from './task-cache.ts'
import { type Loaded, TaskReader, taskIn } from './task-reader.ts'

export interface EngineOptions {
  log: EventLog
  clock: Clock
  lifecycles: Lifecycles
  logger: Logger
  /** Shared with the projector of the same process. */
  cache?: TaskCache
  /** In [0, 1), for retry jitter. */
  random?: () => number
  /** How long an append of unknown outcome is repeated before the command is answered `log_unavailable`. */
  appendDeadlineMs?: number
  observer?: AnswerObserver
  /** Asked for each submit that is about to be stored: whether somebody has a command for the task that it makes. */
  followUp?: (task: Task) => FollowUp | null
}

export const ENGINE_LIMITS = {
  /** Commands waiting or in flight; more are refused as overloaded. */
  waiting: 20_000,
  flightTasks: 1_000,
  flights: 2,
  secondFlightTasks: 100,
  flightBytes: 6 * 1024 * 1024,
  conflicts: 5,
  /** A command that waited this long for its turn is answered `overloaded`; nothing of it was stored. */
  waitMs: 15_000,
} as const

export class Engine {
  readonly #options: EngineOptions
  readonly #cache: TaskCache
  readonly #reader: TaskReader
  readonly #retrier: AppendRetrier
  readonly #queues = new CommandQueues()
  #scheduled = false
  #flights = 0
  #stopped = false
  #observerFailed = false

  constructor(options: EngineOptions) {
    this.#options = options
    this.#cache = options.cache ?? new TaskCache()
    this.#reader = new TaskReader(options.log, this.#cache)
    this.#retrier = new AppendRetrier(options.log, options.appendDeadlineMs ?? 10_000, options.logger)
  }

  /** Executes one command. Never rejects for reasons outside this process: those are refusals too. */
  execute(envelope: CommandEnvelope, fingerprintOf: FingerprintOf | null = null): Promise<Answer> {
    if (this.#stopped) return Promise.resolve(this.#turnAway(envelope, 'shutting_down'))
    if (this.#queues.size >= ENGINE_LIMITS.waiting)
      return Promise.resolve(this.#turnAway(envelope, 'overloaded'))
    return new Promise(resolve => {
      const since = performance.now()
      this.#queues.add({ envelope, fingerprintOf, conflicts: 0, since, taken: false, resolve })
      this.#schedule()
    })
  }

  /** Executes many commands at once; the answers stand in the order of the commands. */
  executeMany(envelopes: readonly CommandEnvelope[]): Promise<Answer[]> {
    return Promise.all(envelopes.map(envelope => this.execute(envelope)))
  }

  /** The task as its stream says now. @throws LogUnavailableError */
  read(taskId: string): Promise<Loaded> {
    return this.#reader.read(taskId)
  }

  /** Many tasks as their streams say now. @throws LogUnavailableError */
  readMany(taskIds: readonly string[]): Promise<Map<string, Loaded>> {
    return this.#reader.readMany(taskIds)
  }

  /** The definition a task was submitted with; null where the log does not have it or cannot be asked. */
  async definitionOf({ lifecycle }: Task): Promise<LifecycleDefinition | null> {
    const { lifecycles } = this.#options
    // It only explains the task here; a command that needs it says what is wrong.
    if (!lifecycles.known(lifecycle)) await lifecycles.fetch(lifecycle).catch(() => undefined)
    return lifecycles.known(lifecycle)
  }

  /** The task as this process has seen it last, without asking the log; its stream may be further. */
  known(taskId: string): Task | null {
    return this.#cache.get(taskId)
  }

  /** Takes no more commands and waits for those under way; safe to call twice. */
  async stop(): Promise<void> {
    this.#stopped = true
    await this.#queues.drained()
  }

  /**
   * Begins a flight at the end of this turn of the event loop: commands of one request or one read of the socket
   * gather first. Behind the one under way a second begins only for many, so that deciding and encoding go on
   * while the log commits; few wait and share the next commit.
   */
  #schedule(): void {
    if (this.#scheduled || !this.#mayBegin()) return
    this.#scheduled = true
    setImmediate(() => {
      this.#scheduled = false
      if (!this.#mayBegin()) return
      this.#flights++
      this.#fly().finally(() => {
        this.#flights--
        this.#schedule()
      })
      this.#schedule()
    })
  }

  #mayBegin(): boolean {
    const { takeable } = this.#queues
    if (this.#flights === 0) return takeable > 0
    return this.#flights < ENGINE_LIMITS.flights && takeable >= ENGINE_LIMITS.secondFlightTasks
  }

  async #fly(): Promise<void> {
    const members = this.#queues.take(ENGINE_LIMITS.flightTasks)
    const staged: Staged[] = []
    try {
      this.#answerOverdue(members)
      let bytes = 0
      for (const one of await this.#decideAll(members)) {
        const event = eventOf(one.decision)
        if (!event) {
          this.#answer(one.member, answerWithoutEvent(one))
          continue
        }
        const stage = this.#alone(one.member, () => stageEvent(one.member.envelope, one.task, event, one.now))
        if (!stage) continue
        if (staged.length > 0 && bytes + stage.bytes > ENGINE_LIMITS.flightBytes) this.#takeBack(one.member)
        else {
          bytes += stage.bytes
          staged.push({ ...one, stage, followed: null })
        }
      }
      this.#followUp(staged, bytes)
      await this.#append(staged)
    } catch (error) {
      this.#failFlight(members, error)
      for (const { followed } of staged) if (followed) this.#tell(followed, failed(error))
    }
  }

  /** Lets others follow the submits of a flight, the most urgent first, as far as it has room. */
  #followUp(staged: readonly Staged[], bytes: number): void {
    const { followUp } = this.#options
    if (!followUp) return
    const urgency = ({ stage }: Staged): number => stage.task.priority
    for (const one of staged.filter(isSubmit).sort((a, b) => urgency(b) - urgency(a))) {
      if (bytes > ENGINE_LIMITS.flightBytes) return
      const asked = followUp(one.stage.task)
      if (!asked) continue
      const stage = this.#stageFollowUp(one.stage, asked.envelope)
      if (!stage) asked.resolve(null)
      else {
        bytes += stage.bytes
        one.followed = { ...asked, stage, since: performance.now() }
      }
    }
  }

  /** @returns null where it fails or is refused, or has no room in the append: that costs the submit nothing */
  #stageFollowUp({ task, bytes }: Stage, envelope: CommandEnvelope): Stage | null {
    try {
      const { decision, now } = this.#decide(envelope, task, null)
      if (decision.kind !== 'accepted') return null
      const stage = stageEvent(envelope, task, decision.event, now)
      return bytes + stage.bytes > EVENT_BYTES_MAX ? null : stage
    } catch (error) {
      this.#options.logger.error({ taskId: envelope.taskId, err: error }, 'a follow-up failed')
      return null
    }
  }

  #answerOverdue(members: readonly Waiting[]): void {
    const latest = performance.now() - ENGINE_LIMITS.waitMs
    for (const member of members) if (member.since < latest) this.#answer(member, refused('overloaded'))
  }

  /** Decides every member on cached state, and again on current state where the answer would store nothing. */
  async #decideAll(members: readonly Waiting[]): Promise<Decided[]> {
    const unknown = members.filter(({ envelope, conflicts }) => {
      // After a conflict the stream is read before anything is decided again, whatever the cache has by now.
      if (conflicts > 0) return true
      // A submit expects no stream; should there be one, the append says so.
      return envelope.command.trigger !== 'SUBMIT' && !this.#cache.get(envelope.taskId)
    })
    const decided = await this.#decideOn(members, await this.#load(unknown))
    const doubtful = decided.filter(({ decision, current }) => decision.kind !== 'accepted' && !current)
    if (doubtful.length === 0) return decided
    const asked = doubtful.map(({ member }) => member)
    const again = await this.#decideOn(asked, await this.#load(asked))
    const open = new Set(doubtful)
    return [...decided.filter(one => !open.has(one)), ...again]
  }

  /** Decides on what was loaded, else on the cache. Members answered on the way are left out. */
  async #decideOn(members: readonly Waiting[], loaded: Map<string, Loaded>): Promise<Decided[]> {
    const pairs = members
      .filter(member => member.taken)
      .map(member => {
        const { taskId } = member.envelope
        const fresh = loaded.get(taskId)
        return { member, task: fresh ? taskIn(fresh) : this.#cache.get(taskId), current: fresh !== undefined }
      })
    for (const { member, task } of pairs) await this.#learnLifecycle(member, task)
    return pairs
      .filter(({ member }) => member.taken)
      .flatMap(({ member, task, current }) => {
        const { envelope, fingerprintOf } = member
        const decided = this.#alone(member, () => this.#decide(envelope, task, fingerprintOf))
        return decided ? [{ member, task, current, ...decided }] : []
      })
  }

  /** Does one member's part; what fails there is a bug, and costs that member alone. */
  #alone<T>(member: Waiting, part: () => T): T | null {
    try {
      return part()
    } catch (error) {
      this.#options.logger.error({ taskId: member.envelope.taskId, err: error }, 'a command failed')
      this.#answer(member, refused('internal_error'))
      return null
    }
  }

  /** Definitions that left the configuration are read from the log once; without one nothing can be decided. */
  async #learnLifecycle(member: Waiting, task: Task | null): Promise<void> {
    const ref = refOf(member.envelope, task)
    if (!ref || this.#options.lifecycles.known(ref)) return
    try {
      await this.#options.lifecycles.fetch(ref)
    } catch (error) {
      if (!(error instanceof UnknownLifecycleError)) throw error
      this.#answer(member, refused('set_aside', task, error.message))
    }
  }

  /** Reads what members need; a task whose stream is broken is answered at once. */
  async #load(members: readonly Waiting[]): Promise<Map<string, Loaded>> {
    if (members.length === 0) return new Map()
    const loaded = await this.#reader.readMany(members.map(({ envelope }) => envelope.taskId))
    for (const member of members) {
      const one = loaded.get(member.envelope.taskId)!
      if (one.kind !== 'broken') continue
      this.#options.logger.error(
        { taskId: member.envelope.taskId, err: one.error },
        'stream cannot be folded',
      )
      this.#answer(member, refused('set_aside', null, one.error.message))
    }
    return loaded
  }

  #decide(
    envelope: CommandEnvelope,
    task: Task | null,
    fingerprintOf: FingerprintOf | null,
  ): { decision: Decision; now: Instant } {
    const { command } = envelope
    // Clocks of two processes differ a little; a stream's time never goes back.
    const now = Math.max(this.#options.clock.now(), task?.updatedAt ?? 0)
    const ref = refOf(envelope, task)
    const definition = (ref && this.#options.lifecycles.known(ref)) ?? STANDARD_LIFECYCLE
    const asked =
      command.trigger === 'SUBMIT' && task && fingerprintOf
        ? { ...envelope, command: { ...command, fingerprint: fingerprintOf(task.salt) } }
        : envelope
    const random = (this.#options.random ?? Math.random)()
    return { decision: decide(task, asked, { now, random, definition }), now }
  }

  async #append(staged: readonly Staged[]): Promise<void> {
    const storable = this.#options.lifecycles.stored ? staged : await this.#withDefinitions(staged)
    if (storable.length === 0) return
    const results = await this.#retrier.append(storable.map(one => appendOf(one.task, stagesOf(one))))
    storable.forEach((one, index) => {
      this.#settle(one, results[index]!)
    })
  }

  /** A task pins its definition, so that has to be in the log first: without it submits are refused. */
  async #withDefinitions(staged: readonly Staged[]): Promise<readonly Staged[]> {
    if (!staged.some(isSubmit)) return staged
    try {
      await this.#options.lifecycles.store()
      return staged
    } catch (error) {
      if (!(error instanceof LogUnavailableError))
        this.#options.logger.error({ err: error }, 'the lifecycles cannot be stored')
      for (const one of staged.filter(isSubmit)) {
        dropFollowUp(one)
        this.#answer(one.member, failed(error))
      }
      return staged.filter(one => !isSubmit(one))
    }
  }

  #settle(one: Staged, result: AppendResult): void {
    const { member, decision, stage, followed } = one
    const { taskId } = member.envelope
    if (result.kind !== 'appended') dropFollowUp(one)
    switch (result.kind) {
      case 'appended': {
        const { task, recorded } = stage
        for (const { task, encoded } of stagesOf(one)) this.#cache.set(task, encoded.data.length)
        const answer: Answer =
          decision.kind === 'refused'
            ? { kind: 'refused', ...decision.refusal, task }
            : { kind: 'accepted', from: one.task?.status ?? null, task, event: recorded }
        this.#answer(member, answer)
        if (!followed) return
        const { task: next, recorded: event } = followed.stage
        this.#tell(followed, { kind: 'accepted', from: task.status, task: next, event })
        return
      }
      case 'conflict':
        this.#cache.delete(taskId)
        member.conflicts++
        if (member.conflicts > ENGINE_LIMITS.conflicts) this.#answer(member, refused('conflict', one.task))
        else this.#takeBack(member)
        return
      case 'rejected':
        // What is too large is the asker's matter; anything else that the log cannot store is a bug of ours.
        if (result.reason === 'too_large')
          this.#answer(member, refused('too_large', one.task, result.message))
        else this.#answer(member, refused('internal_error', one.task))
        return
    }
  }

  /** Leaves a member for the next flight. */
  #takeBack(member: Waiting): void {
    this.#queues.putBack(member)
    this.#schedule()
  }

  #failFlight(members: readonly Waiting[], error: unknown): void {
    if (!(error instanceof LogUnavailableError)) this.#options.logger.error({ err: error }, 'a flight failed')
    for (const member of members) {
      if (!member.taken) continue
      this.#cache.delete(member.envelope.taskId)
      this.#answer(member, failed(error))
    }
  }

  #answer(member: Waiting, answer: Answer): void {
    this.#queues.done(member)
    this.#tell(member, answer)
  }

  #tell({ envelope, since, resolve }: Pick<Waiting, 'envelope' | 'since' | 'resolve'>, answer: Answer): void {
    logAnswer(this.#options.logger, envelope, answer)
    this.#observe(envelope, answer, since)
    resolve(answer)
  }

  #turnAway(envelope: CommandEnvelope, code: 'shutting_down' | 'overloaded'): Answer {
    const answer = refused(code)
    this.#observe(envelope, answer, performance.now())
    return answer
  }

  /** An observer that fails costs no answer; it is said once, or it would be said for every command. */
  #observe(envelope: CommandEnvelope, answer: Answer, since: number): void {
    try {
      this.#options.observer?.(envelope, answer, performance.now() - since)
    } catch (error) {
      if (this.#observerFailed) return
      this.#observerFailed = true
      this.#options.logger.error({ err: error }, 'the observer of answers failed')
    }
  }
}

/** The definition that decides: the task's own, or the one it is submitted with; null for a task that is not there. */
function refOf({ command }: CommandEnvelope, task: Task | null): LifecycleRef | null {
  if (task) return task.lifecycle
  return command.trigger === 'SUBMIT' ? command.lifecycle : null
}

/** A log that was moved does not come back, so its answer says where it went. */
function failed(error: unknown): Answer {
  if (error instanceof LogSealedError) return refused('log_unavailable', null, error.message)
  return refused(error instanceof LogUnavailableError ? 'log_unavailable' : 'internal_error')
}
