/**
 * What goes wrong on demand. Calls ask here before they store and before they answer; without faults they go
 * straight through.
 */

/** How an append is failed; as the server fails one. */
export type AppendFailure = 'server_busy' | 'server_not_ready' | 'timeout' | 'access_denied' | 'unknown'
export type ReadFailure = 'server_busy' | 'server_not_ready' | 'timeout' | 'unknown'

/** More requests than this are not held while the node stalls: nobody waits for so many. */
const HELD_MAX = 1_000_000

export class Faults {
  /** Where the leader is; null: not known. */
  leader: 'itself' | { host: string; port: number } | null = 'itself'
  acksToLose = 0
  answersToRepeat = 0
  repeatAfterMs = 0
  lateMs = 0
  #failing: { failure: AppendFailure; left: number; store: boolean } | null = null
  #failingReads: { failure: ReadFailure; left: number } | null = null
  #held: (() => void)[] | null = null

  get stalled(): boolean {
    return this.#held !== null
  }

  /** Requests are taken from now on, and neither stored nor answered; subscriptions stand still. */
  stall(): void {
    this.#held ??= []
  }

  /** What was held goes on, in its order. */
  resume(): void {
    const held = this.#held ?? []
    this.#held = null
    for (const go of held) go()
  }

  /** Forgets what is held: the calls it belongs to are gone. */
  drop(): void {
    if (this.#held) this.#held = []
  }

  /** Runs it now, or when the node has resumed. */
  whenRunning(go: () => void): void {
    if (this.#held === null) go()
    else if (this.#held.length < HELD_MAX) this.#held.push(go)
  }

  /** @param store whether the appends are stored although they fail */
  failAppends(failure: AppendFailure, count: number, store: boolean): void {
    this.#failing = count > 0 ? { failure, left: count, store } : null
  }

  failReads(failure: ReadFailure, count: number): void {
    this.#failingReads = count > 0 ? { failure, left: count } : null
  }

  takeAppendFailure(): { failure: AppendFailure; store: boolean } | null {
    const failing = this.#failing
    if (!failing) return null
    failing.left--
    if (failing.left === 0) this.#failing = null
    return failing
  }

  takeReadFailure(): ReadFailure | null {
    const failing = this.#failingReads
    if (!failing) return null
    failing.left--
    if (failing.left === 0) this.#failingReads = null
    return failing.failure
  }

  /** Whether the answer to an append is lost. */
  takeLostAck(): boolean {
    if (this.acksToLose === 0) return false
    this.acksToLose--
    return true
  }

  takeRepeatedAnswer(): boolean {
    if (this.answersToRepeat === 0) return false
    this.answersToRepeat--
    return true
  }
}
