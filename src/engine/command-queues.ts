/**
 * Commands that wait, one queue per task, so that those of a task are decided in the order they were asked. Only
 * the head of a queue can be taken.
 *
 * A head is: takeable -> taken -> done, or taken -> takeable again (after a conflict, or when a flight is full).
 */
import type { CommandEnvelope } from '../domain/commands.ts'
import type { Answer } from './answer.ts'

/** What the engine needs beside the envelope where the stored salt decides the fingerprint. */
export type FingerprintOf = (salt: string) => string

export interface Waiting {
  readonly envelope: CommandEnvelope
  readonly fingerprintOf: FingerprintOf | null
  /** performance.now() when it was asked. */
  readonly since: number
  readonly resolve: (answer: Answer) => void
  conflicts: number
  /** Taken by the flight under way and neither answered nor put back. */
  taken: boolean
}

export class CommandQueues {
  /** Every task with a command waiting or taken, its commands in order. */
  readonly #queues = new Map<string, Waiting[]>()
  /** Tasks whose head is not taken, in the order they asked. */
  #takeable: string[] = []
  #size = 0
  readonly #drained: (() => void)[] = []

  /** Commands waiting or taken. */
  get size(): number {
    return this.#size
  }

  /** Tasks whose head can be taken. */
  get takeable(): number {
    return this.#takeable.length
  }

  add(waiting: Waiting): void {
    const { taskId } = waiting.envelope
    this.#size++
    const queue = this.#queues.get(taskId)
    if (queue) queue.push(waiting)
    else {
      this.#queues.set(taskId, [waiting])
      this.#takeable.push(taskId)
    }
  }

  /** Takes the heads of up to so many queues. */
  take(most: number): Waiting[] {
    const taken = this.#takeable.splice(0, most).map(taskId => this.#queues.get(taskId)![0]!)
    for (const waiting of taken) waiting.taken = true
    return taken
  }

  /** Puts a head back, ahead of those that asked later. */
  putBack(waiting: Waiting): void {
    waiting.taken = false
    this.#takeable.unshift(waiting.envelope.taskId)
  }

  /** Ends a head; the next of its task can be taken. */
  done(waiting: Waiting): void {
    const { taskId } = waiting.envelope
    const queue = this.#queues.get(taskId)
    if (queue?.[0] !== waiting) throw new Error('bug: a command is answered out of turn')
    queue.shift()
    waiting.taken = false
    if (queue.length > 0) this.#takeable.push(taskId)
    else this.#queues.delete(taskId)
    this.#size--
    if (this.#size === 0) for (const resolve of this.#drained.splice(0)) resolve()
  }

  /** Resolves when nothing waits. */
  async drained(): Promise<void> {
    if (this.#size === 0) return
    await new Promise<void>(resolve => this.#drained.push(resolve))
  }
}
