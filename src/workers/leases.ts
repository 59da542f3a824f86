/**
 * Leases: the signals of running tasks. A heartbeat moves the end of a lease and keeps the progress; the timers
 * take a lease by one conditional update. Either is first, and the row says which. What becomes of the task is
 * decided at the log.
 */
import type { Instant } from '../domain/events.ts'
import { isOpen, type ProcessingTask, type Task } from '../domain/task.ts'
import type { Engine } from '../engine/engine.ts'
import { type Heartbeat, leaseKey, type WorkState } from './work-state.ts'

export type HeartbeatResult =
  | { state: 'held'; until: Instant }
  | { state: 'cancelled'; reason: string | null }
  | { state: 'lost'; reason: string }

export class Leases {
  readonly #workState: WorkState
  readonly #engine: Engine

  constructor(workState: WorkState, engine: Engine) {
    this.#workState = workState
    this.#engine = engine
  }

  /**
   * Takes heartbeats; the results stand in the order of the beats.
   *
   * An attempt that is over is told so from the moment this process knows it, which is at once where the command
   * passed through here, and otherwise when the projector, of whichever process, has taken its lease away.
   *
   * @param answered whether the workers get these results; by records they do not, so nobody is told of a cancel
   */
  async heartbeat(beats: readonly Heartbeat[], answered = true): Promise<HeartbeatResult[]> {
    const tasks = new Map<string, Task>()
    for (const { taskId } of beats) {
      const known = this.#engine.known(taskId)
      if (known) tasks.set(taskId, known)
    }
    const open = beats.filter(beat => !isOver(tasks.get(beat.taskId), beat))
    const held = await this.#workState.beat(open)
    const missing = open.filter(beat => !held.has(leaseKey(beat)))
    await this.#read(missing, tasks)
    // The row is missing, or not this attempt's yet, while the log says the worker runs it: a full lease first.
    const entitled = missing.filter(beat => holds(tasks.get(beat.taskId), beat))
    if (entitled.length > 0) {
      // One row per task, however often it is named.
      const running = new Map(entitled.map(({ taskId }) => [taskId, tasks.get(taskId) as ProcessingTask]))
      await this.#workState.grantLeases([...running.values()])
      const granted = await this.#workState.beat(entitled)
      // A row also goes missing because its attempt ends, and that may have been after the task was read. Whatever
      // removed it was in the log before, so the log is asked again now that the row stands.
      await this.#read(entitled, tasks)
      const over = entitled.filter(beat => !holds(tasks.get(beat.taskId), beat))
      if (over.length > 0) await this.#workState.withdrawLeases(over)
      for (const beat of over) granted.delete(leaseKey(beat))
      for (const [lease, until] of granted) held.set(lease, until)
    }
    if (answered) await this.markTold(beats.map(beat => ({ ...beat, task: tasks.get(beat.taskId) ?? null })))
    return beats.map(beat => {
      const until = held.get(leaseKey(beat))
      return until === undefined ? notHeld(tasks.get(beat.taskId), beat) : { state: 'held', until }
    })
  }

  /**
   * Keeps that workers have heard of it where they were answered about an attempt that a cancel ended. They are told
   * whether this can be kept or not; a worker that asks again gives another chance.
   */
  async markTold(
    answered: readonly { task: Task | null; attempt: number; leaseTokenHash: string }[],
  ): Promise<void> {
    const told = answered.flatMap(({ task, attempt, leaseTokenHash }) => {
      if (task?.status !== 'CANCELLED') return []
      const ended = task.endedAttempts.find(one => one.attempt === attempt && one.ended === 'cancelled')
      if (ended?.leaseTokenHash !== leaseTokenHash) return []
      return [{ taskId: task.taskId, attempt, worker: ended.worker }]
    })
    if (told.length > 0) await this.#workState.markTold(told).catch(() => {})
  }

  /** Puts the tasks of these beats as the log says now; those that are not there, or cannot be read, stay as known. */
  async #read(beats: readonly Heartbeat[], tasks: Map<string, Task>): Promise<void> {
    if (beats.length === 0) return
    const loaded = await this.#engine.readMany(beats.map(beat => beat.taskId))
    for (const [id, one] of loaded) if (one.kind === 'task') tasks.set(id, one.task)
  }
}

const holds = (task: Task | undefined, beat: Heartbeat): task is ProcessingTask =>
  task?.status === 'PROCESSING' &&
  task.attempt === beat.attempt &&
  task.leaseTokenHash === beat.leaseTokenHash

/** Whether the attempt has ended, on a fold that may be behind its stream: what has ended stays so. */
const isOver = (task: Task | undefined, { attempt }: Heartbeat): boolean =>
  task !== undefined &&
  (attempt < task.attempt || (attempt === task.attempt && (!isOpen(task) || task.status === 'RETRYING')))

/** What is said of a task that is not there. */
export const NO_TASK: HeartbeatResult = { state: 'lost', reason: 'No task has this id.' }

function notHeld(task: Task | undefined, beat: Heartbeat): HeartbeatResult {
  if (!task) return NO_TASK
  if (task.status === 'CANCELLED' && task.attempt === beat.attempt)
    return { state: 'cancelled', reason: task.reason }
  if (holds(task, beat)) return { state: 'lost', reason: 'The lease ended before this heartbeat.' }
  return {
    state: 'lost',
    reason: `The task is ${task.status}; attempt ${beat.attempt} is over or another's.`,
  }
}
