/**
 * What happens to tasks, told to those who wait for it in this process, whichever process did it. While anybody waits, the
 * log is followed from its head, without a lease and once for all of them; what nobody waits for costs a look into a map.
 *
 * Modes: off -> starting (its head is asked) -> following -> off, some seconds after the last one has gone, or when
 * the log went backwards, which ends all of them. A log that is away is no reason to end: it goes on where it stood.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import type { LifecycleDefinition } from '../domain/lifecycle.ts'
import type { Task } from '../domain/task.ts'
import { streamOf } from '../eventlog/codec.ts'
import {
  type Checkpoint,
  type EventLog,
  LogUnavailableError,
  LogWentBackwardsError,
  type StoredEvent,
} from '../eventlog/event-log.ts'
import { type Folded, TaskFolds } from './task-folds.ts'

/** An event of a task, with the task as it was right after it; what is large may be missing, see {@link Folded}. */
export interface Change extends Folded {
  /** The lifecycle of the task; null where it cannot be read. */
  definition: LifecycleDefinition | null
}

/** Why nothing more is told: the log is not the one that was followed, or this process stops. */
export type EndReason = 'log_went_backwards' | 'shutting_down'

interface Endable {
  /** Called once, unless it was ended by itself. */
  ended(reason: EndReason): void
}
/** Told at once and for every event, so neither may wait. */
export interface Watcher extends Endable {
  /** The task's stream has grown. */
  moved(): void
}
export interface Subscriber extends Endable {
  changed(change: Change): void
}

/** Which tasks are meant, each as it is after the event. Those with the same key are asked once for all. */
export interface Filter {
  key: string
  matches(task: Task): boolean
}

export interface Subscription {
  /** Everything after this is told, nothing before it; null is the start of the log. */
  place: Checkpoint | null
  /** Safe to call twice. */
  end(): void
}

export interface TaskChangesOptions {
  log: EventLog
  definitionOf: (task: Task) => Promise<LifecycleDefinition | null>
  logger: Logger
  /** How long it follows on when nobody waits any more. */
  lingerMs?: number
}

const LINGER_MS = 10_000
const RETRY_MS = { first: 50, longest: 2_000 }

export class TaskChanges {
  readonly #options: TaskChangesOptions
  readonly #watchers = new Groups<Watcher>()
  readonly #ofTask = new Groups<Subscriber>()
  readonly #ofFilter = new Groups<Subscriber & { filter: Filter }>()
  #starting: Promise<void> | null = null
  #following: { abort: AbortController; done: Promise<void> } | null = null
  #linger: NodeJS.Timeout | undefined
  #place: Checkpoint | null = null
  /** Where the following began that is under way. */
  #beganAt: Checkpoint | null = null
  #stopped = false

  constructor(options: TaskChangesOptions) {
    this.#options = options
  }

  /** The last event that was told of, null at the start of the log; it moves while anybody waits. */
  get place(): Checkpoint | null {
    return this.#place
  }

  get mode(): 'off' | 'starting' | 'following' {
    if (this.#following) return 'following'
    return this.#starting ? 'starting' : 'off'
  }

  /** How many wait. */
  get size(): number {
    return this.#watchers.size + this.#ofTask.size + this.#ofFilter.size
  }

  /**
   * Tells when a task's stream grows, without folding it. Once this has resolved no event of it is missed, so what is read
   * from then on is never older than what is told.
   *
   * @throws LogUnavailableError when the head of the log cannot be read
   */
  watch(taskId: string, watcher: Watcher): Promise<Subscription> {
    return this.#add(this.#watchers, streamOf(taskId), watcher)
  }

  /** Tells each event of a task, as `watch` does. @throws LogUnavailableError */
  subscribe(taskId: string, subscriber: Subscriber): Promise<Subscription> {
    return this.#add(this.#ofTask, streamOf(taskId), subscriber)
  }

  /** Tells each event of the tasks that match. @throws LogUnavailableError */
  subscribeTo(filter: Filter, subscriber: Subscriber): Promise<Subscription> {
    const one = {
      filter,
      changed: (change: Change) => subscriber.changed(change),
      ended: (reason: EndReason) => subscriber.ended(reason),
    }
    return this.#add(this.#ofFilter, filter.key, one)
  }

  /** Ends all who wait; safe to call twice. */
  async stop(): Promise<void> {
    this.#stopped = true
    clearTimeout(this.#linger)
    this.#endAll('shutting_down')
    await this.#starting?.catch(() => {})
    const following = this.#following
    following?.abort.abort()
    await following?.done
  }

  async #add<One extends Endable>(groups: Groups<One>, key: string, one: One): Promise<Subscription> {
    if (this.#stopped) throw new LogUnavailableError('this process is stopping')
    const remove = groups.add(key, one)
    const end = () => {
      remove()
      this.#lingerIfAlone()
    }
    // With the adding in one step: what is told between the two would be lost.
    if (this.#following) return { place: this.#place, end }
    try {
      await this.#start()
      return { place: this.#beganAt, end }
    } catch (error) {
      end()
      throw error
    }
  }

  #start(): Promise<void> {
    this.#starting ??= this.#begin().finally(() => {
      this.#starting = null
    })
    return this.#starting
  }

  async #begin(): Promise<void> {
    const head = await this.#options.log.head()
    if (this.#stopped) throw new LogUnavailableError('this process is stopping')
    this.#place = head
    this.#beganAt = head
    const abort = new AbortController()
    const done = this.#follow(abort.signal).finally(() => {
      if (this.#following?.abort === abort) this.#following = null
    })
    this.#following = { abort, done }
    this.#options.logger.debug({ from: head }, 'following the log for those who wait')
    this.#lingerIfAlone()
  }

  async #follow(signal: AbortSignal): Promise<void> {
    const { log, logger } = this.#options
    const folds = new TaskFolds(log, (taskId, err) =>
      logger.debug({ err, taskId }, 'the stream of a task cannot be read: nothing of it is told'),
    )
    let pauseMs = RETRY_MS.first
    while (!signal.aborted) {
      try {
        await log.follow(
          this.#place,
          async batch => {
            await this.#tell(batch, folds, signal)
            pauseMs = RETRY_MS.first
          },
          signal,
        )
      } catch (err) {
        if (signal.aborted) return
        if (err instanceof LogWentBackwardsError) {
          logger.error({ err }, 'the log went backwards: all who wait are told to begin anew')
          // Before anybody is told: whoever comes again at once must not join what has ended.
          this.#following = null
          return this.#endAll('log_went_backwards')
        }
        if (pauseMs === RETRY_MS.first)
          logger.warn({ err }, 'telling of changes failed, going on where it stood')
      }
      if (signal.aborted) return
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
      pauseMs = Math.min(pauseMs * 2, RETRY_MS.longest)
    }
  }

  /** All of a batch in one step, when all that is wanted of it is folded. */
  async #tell(batch: readonly StoredEvent[], folds: TaskFolds, signal: AbortSignal): Promise<void> {
    const last = batch.at(-1)
    if (!last) return
    const changes = new Map<StoredEvent, Change | null>()
    // Somebody may come while it is folded, and wants more of it.
    for (;;) {
      const wanted = batch.filter(event => !changes.has(event) && this.#wants(event))
      if (wanted.length === 0) break
      for (const event of wanted) changes.set(event, null)
      for (const folded of await folds.among(wanted))
        changes.set(folded.stored, {
          ...folded,
          definition: await this.#options.definitionOf(folded.task),
        })
    }
    // Another may be following by now.
    if (signal.aborted) return
    for (const event of batch) {
      this.#watchers.each(event.stream, watcher => watcher.moved())
      const change = changes.get(event)
      if (change) this.#tellOf(change)
    }
    this.#place = { logId: this.#options.log.id, position: last.position, eventId: last.id }
  }

  #wants({ stream }: StoredEvent): boolean {
    return this.#ofFilter.size > 0 || this.#ofTask.has(stream)
  }

  #tellOf(change: Change): void {
    const tell = (subscriber: Subscriber) => subscriber.changed(change)
    this.#ofTask.each(change.stored.stream, tell)
    this.#ofFilter.eachGroup(([first]) => first!.filter.matches(change.task), tell)
  }

  #endAll(reason: EndReason): void {
    const all = [...this.#watchers.clear(), ...this.#ofTask.clear(), ...this.#ofFilter.clear()]
    for (const one of all) one.ended(reason)
  }

  #lingerIfAlone(): void {
    clearTimeout(this.#linger)
    if (this.size > 0 || !this.#following) return
    const { abort } = this.#following
    this.#linger = setTimeout(() => {
      if (this.size > 0) return
      // At once: whoever comes now must not join what ends.
      if (this.#following?.abort === abort) this.#following = null
      abort.abort()
    }, this.#options.lingerMs ?? LINGER_MS)
    this.#linger.unref()
  }
}

/** Many by a key each; what is no key costs a look. */
class Groups<One> {
  readonly #groups = new Map<string, Set<One>>()
  size = 0

  /** @returns takes it away again; safe to call twice */
  add(key: string, one: One): () => void {
    const group = this.#groups.get(key) ?? new Set()
    this.#groups.set(key, group.add(one))
    this.size++
    return () => {
      // What was cleared is not there any more, and another may stand under its key.
      if (!group.delete(one)) return
      this.size--
      if (group.size === 0 && this.#groups.get(key) === group) this.#groups.delete(key)
    }
  }

  has(key: string): boolean {
    return this.#groups.has(key)
  }

  /** Those that come meanwhile are not told. */
  each(key: string, tell: (one: One) => void): void {
    const group = this.#groups.get(key)
    if (group) for (const one of [...group]) tell(one)
  }

  eachGroup(isMeant: (group: Iterable<One>) => boolean, tell: (one: One) => void): void {
    for (const [key, group] of this.#groups) if (isMeant(group)) this.each(key, tell)
  }

  clear(): One[] {
    const all = [...this.#groups.values()].flatMap(group => {
      const ones = [...group]
      group.clear()
      return ones
    })
    this.#groups.clear()
    this.size = 0
    return all
  }
}
