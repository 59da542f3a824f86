/**
 * The stream of one task: its state of now, or what has happened since the Last-Event-ID; then each event of it, and between
 * them its progress and its place among those that wait. It ends with the task.
 *
 * It subscribes before it reads, so that nothing is missed, and passes over what it has sent already.
 */
import type { FastifyReply } from 'fastify'
import type { Signals } from '../../domain/signals.ts'
import { isOpen, type Task } from '../../domain/task.ts'
import type { Change, EndReason, Subscription } from '../../engine/changes.ts'
import { type Folded, TaskFolds } from '../../engine/task-folds.ts'
import { readTask } from '../read-task.ts'
import type { ResyncMessage } from '../schemas/streams.ts'
import type { TaskView } from '../schemas/tasks.ts'
import { signalsOf, taskAnswer } from '../task-answer.ts'
import type { EventStream } from './event-stream.ts'
import { end, resync, stateMessage, taskEventId } from './messages.ts'
import type { StreamParts } from './parts.ts'
import type { Admission, StreamOwner } from './streams.ts'
import { SubscriptionQueue } from './subscription-queue.ts'

/** Events of the past that are sent to one that comes back. */
const REPLAYED_MAX = 1_000
/** Folds of one task need no memory for others. */
const FOLDS_KEPT = { tasks: 1, bytes: 4 * 1024 * 1024 }

type Beginning =
  | { kind: 'state'; task: Task; signals: Signals; view: TaskView; resync: ResyncMessage['reason'] | null }
  | { kind: 'replay'; task: Task; signals: Signals; changes: Change[] }
  /** There is nothing to tell, and never will be. */
  | { kind: 'over' }

export class TaskStream implements StreamOwner {
  readonly #parts: StreamParts
  readonly #taskId: string
  readonly #queue = new SubscriptionQueue(change => this.#send(change))
  #subscription: Subscription | null = null
  #unwatch: (() => void) | null = null
  #stream: EventStream | null = null
  /** Told before it was open. */
  #ended: EndReason | null = null
  /** Of the last event that was sent, or is in the state that was sent. */
  #revision = -1

  constructor(parts: StreamParts, taskId: string) {
    this.#parts = parts
    this.#taskId = taskId
  }

  /**
   * Answers the request. What cannot be read is answered before a stream is.
   *
   * @param lastEventId null begins with the state of now
   * @throws Problem; LogUnavailableError
   */
  async begin(lastEventId: string | null, admission: Admission, reply: FastifyReply): Promise<void> {
    const beginning = await this.#prepare(lastEventId).catch(error => {
      this.#subscription?.end()
      throw error
    })
    if (beginning.kind === 'over') {
      this.#subscription?.end()
      admission.leave()
      reply.code(204).send()
      return
    }
    const stream = admission.open(reply, this)
    this.#stream = stream
    if (this.#ended) this.ended(this.#ended)
    if (beginning.kind === 'state') this.#sendState(stream, beginning)
    else await this.#replay(stream, beginning.changes)
    if (!stream.isOpen) return
    const { task, signals } = beginning
    this.#unwatch = this.#parts.signalWatch.add(task, signals, view => this.#sendSignals(view))
    if (this.#queue.overflowed) stream.overflow()
    this.#queue.release()
    if (this.#revision === task.revision) this.#endIfFinal(task)
  }

  left(): void {
    this.#subscription?.end()
    this.#unwatch?.()
  }

  changed(change: Change): void {
    this.#queue.add(change)
  }

  ended(reason: EndReason): void {
    this.#ended = reason
    this.#stream?.end(reason === 'shutting_down' ? end(reason) : resync(reason))
  }

  async #prepare(lastEventId: string | null): Promise<Beginning> {
    const { changes, engine } = this.#parts.app
    this.#subscription = await changes.subscribe(this.#taskId, this)
    const task = await readTask(this.#parts.app, this.#taskId)
    const signals = await signalsOf(this.#parts.app, task)
    const view = await taskAnswer(this.#parts.app, task, signals)
    const state = { kind: 'state', task, signals, view } as const
    if (lastEventId === null) return { ...state, resync: null }
    const past = await this.#past()
    const at = past.findIndex(folded => taskEventId(folded.task) === lastEventId)
    const newest = past.at(-1)
    if (at === -1 || !newest) return { ...state, resync: 'unknown_id' }
    const later = past.slice(at + 1)
    if (later.length === 0 && !isOpen(newest.task)) return { kind: 'over' }
    if (later.length > REPLAYED_MAX) return { ...state, resync: 'too_old' }
    this.#revision = past[at]!.task.revision
    const definition = await engine.definitionOf(task)
    return {
      kind: 'replay',
      task: newest.task,
      signals,
      changes: later.map(folded => ({ ...folded, definition })),
    }
  }

  async #past(): Promise<Folded[]> {
    const folds = new TaskFolds(this.#parts.app.log, () => {}, FOLDS_KEPT)
    for await (const folded of folds.of([this.#taskId])) return folded
    return []
  }

  #sendState(stream: EventStream, state: Extract<Beginning, { kind: 'state' }>): void {
    const { task, view } = state
    if (state.resync) stream.send(resync(state.resync))
    this.#revision = task.revision
    stream.send(stateMessage(view, taskEventId(task)))
  }

  async #replay(stream: EventStream, changes: readonly Change[]): Promise<void> {
    for (const change of changes) {
      this.#sendChange(stream, change)
      await stream.room()
    }
  }

  #send(change: Change): void {
    if (!this.#stream || change.task.revision <= this.#revision) return
    this.#sendChange(this.#stream, change)
    this.#endIfFinal(change.task)
  }

  #sendChange(stream: EventStream, change: Change): void {
    this.#revision = change.task.revision
    stream.send(this.#parts.messages.transition(change, null))
    this.#parts.signalWatch.moved(change.task)
  }

  /** Of another revision than the one that was told they would show a state before its event. */
  #sendSignals(view: TaskView): void {
    if (view.revision === this.#revision) this.#stream?.send(this.#parts.messages.signals(view))
  }

  /** A failed task that is tried again by hand goes on in a stream of its own. */
  #endIfFinal(task: Task): void {
    if (!isOpen(task)) this.#stream?.end(end('final'))
  }
}
