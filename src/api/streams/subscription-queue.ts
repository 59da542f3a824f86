/** What is told while a stream is still being begun: it goes out behind the beginning, in its order. */
import type { Change } from '../../engine/changes.ts'
import { STREAM_LIMITS } from './event-stream.ts'

export class SubscriptionQueue {
  readonly #send: (change: Change) => void
  #waiting: Change[] | null = []
  /** More was told than is kept. */
  overflowed = false

  constructor(send: (change: Change) => void) {
    this.#send = send
  }

  add(change: Change): void {
    if (!this.#waiting) this.#send(change)
    else if (this.#waiting.length < STREAM_LIMITS.messages) this.#waiting.push(change)
    else this.overflowed = true
  }

  /** Forgets what was told so far. */
  clear(): void {
    this.#waiting = []
    this.overflowed = false
  }

  /** From now on everything is sent at once. */
  release(): void {
    const waiting = this.#waiting ?? []
    this.#waiting = null
    for (const change of waiting) this.#send(change)
  }
}
