/**
 * Heartbeats of everything in hand, in one request: leases are renewed at a third of their length, progress
 * goes along. The answers say what was cancelled or lost.
 *
 * While the service is away nothing is aborted, even when a lease must have ended by this clock: the service
 * gives leases a grace after its own gaps, and the log decides an outcome, not the clock of a worker.
 */
import type { Beat, BeatResult } from '../api/schemas/workers.ts'
import { type Attempt, attemptKey } from './attempt.ts'
import type { Link } from './link.ts'
import type { Outage } from './outage.ts'
import { backoffMs, monotonicMs } from './waiting.ts'

const BEATS_MAX = 1_000
/** Also how late a worker may hear of a cancel, so it is short however long the lease. */
const INTERVAL = { minMs: 50, maxMs: 5_000 }
/** Progress goes out early, but not oftener than this for a task. */
const PROGRESS_MS = 250
/** A beat that is nearly due joins one that is sent anyway. */
const JOIN_SHARE = 0.25
const TIMEOUT_MAX_MS = 10_000
const BACKOFF = { initialMs: 100, maxMs: 2_000 }

interface Pulse {
  attempt: Attempt
  intervalMs: number
  /** When the lease was last known to be held: the claim, or the sending of an answered beat. */
  heldAt: number
  /** When the lease is to be renewed; it moves when a beat is answered. */
  renewAt: number
  /** When a beat was last sent, answered or not. */
  sentAt: number
  warned: boolean
}

/** What a beat's answer may say of an attempt. */
export type OnBeatEnd = (attempt: Attempt, how: 'cancelled' | 'lost', reason: string | null) => void

export class Heartbeats {
  readonly #link: Pick<Link, 'beat'>
  readonly #outage: Outage
  readonly #onEnd: OnBeatEnd
  readonly #onOverdue: (attempt: Attempt, silentMs: number) => void
  readonly #pulses = new Map<string, Pulse>()
  readonly #ending = new AbortController()
  #timer: NodeJS.Timeout | null = null
  #timerAt = Number.POSITIVE_INFINITY
  #sending = false
  #failures = 0
  #notBefore = 0

  constructor(
    link: Pick<Link, 'beat'>,
    outage: Outage,
    onEnd: OnBeatEnd,
    onOverdue: (attempt: Attempt, silentMs: number) => void,
  ) {
    this.#link = link
    this.#outage = outage
    this.#onEnd = onEnd
    this.#onOverdue = onOverdue
  }

  /** Keeps an attempt's lease until it is removed. `heldAt`: since when it runs, at the least. */
  add(attempt: Attempt, heldAt: number): void {
    const third = attempt.task.leaseMs / 3
    const intervalMs = Math.min(INTERVAL.maxMs, Math.max(INTERVAL.minMs, third))
    const renewAt = heldAt + intervalMs
    const pulse = { attempt, intervalMs, heldAt, renewAt, sentAt: monotonicMs(), warned: false }
    this.#pulses.set(attempt.key, pulse)
    this.#arm(dueAt(pulse))
  }

  remove(attempt: Attempt): void {
    this.#pulses.delete(attempt.key)
  }

  progressChanged(attempt: Attempt): void {
    const pulse = this.#pulses.get(attempt.key)
    if (pulse) this.#arm(dueAt(pulse))
  }

  stop(): void {
    this.#pulses.clear()
    this.#ending.abort(new Error('the worker has ended'))
    if (this.#timer) clearTimeout(this.#timer)
  }

  #arm(at: number): void {
    if (this.#sending || this.#ending.signal.aborted) return
    const when = Math.max(at, this.#notBefore)
    if (when >= this.#timerAt) return
    if (this.#timer) clearTimeout(this.#timer)
    this.#timerAt = when
    this.#timer = setTimeout(() => void this.#beat(), Math.max(0, when - monotonicMs()))
  }

  async #beat(): Promise<void> {
    this.#timer = null
    this.#timerAt = Number.POSITIVE_INFINITY
    this.#sending = true
    const now = monotonicMs()
    const due = [...this.#pulses.values()]
      .filter(pulse => dueAt(pulse) <= now + pulse.intervalMs * JOIN_SHARE)
      .slice(0, BEATS_MAX)
    if (due.some(pulse => dueAt(pulse) <= now)) await this.#send(due, now)
    this.#sending = false
    const next = Math.min(...[...this.#pulses.values()].map(dueAt))
    if (next < Number.POSITIVE_INFINITY) this.#arm(next)
  }

  async #send(pulses: readonly Pulse[], now: number): Promise<void> {
    const beats = pulses.map(pulse => beatOf(pulse, now))
    const shortest = Math.min(...pulses.map(pulse => pulse.intervalMs))
    try {
      // A beat that hangs must leave time for another before the lease ends.
      const timeoutMs = Math.min(TIMEOUT_MAX_MS, Math.max(1_000, shortest))
      const results = await this.#link.beat(beats, timeoutMs, this.#ending.signal)
      this.#failures = 0
      this.#notBefore = 0
      this.#outage.over()
      for (const pulse of pulses) pulse.renewAt = now + pulse.intervalMs
      this.#take(results, now)
    } catch (error) {
      if (this.#ending.signal.aborted) return
      pulses.forEach((pulse, index) => {
        pulse.attempt.unsentProgress ??= beats[index]?.progress ?? null
      })
      this.#notBefore = monotonicMs() + Math.min(backoffMs(BACKOFF, ++this.#failures), shortest)
      this.#outage.failed(error, { tasks: this.#pulses.size })
      this.#warnOverdue()
    }
  }

  #take(results: readonly BeatResult[], sentAt: number): void {
    for (const { taskId, attempt, state, reason } of results) {
      const pulse = this.#pulses.get(attemptKey(taskId, attempt))
      // It was settled and reported while the beat was on its way.
      if (!pulse) continue
      if (state === 'held') {
        pulse.heldAt = sentAt
        pulse.warned = false
      } else this.#onEnd(pulse.attempt, state, reason)
    }
  }

  #warnOverdue(): void {
    const now = monotonicMs()
    for (const pulse of this.#pulses.values()) {
      if (pulse.warned || now - pulse.heldAt <= pulse.attempt.task.leaseMs) continue
      pulse.warned = true
      this.#onOverdue(pulse.attempt, now - pulse.heldAt)
    }
  }
}

function dueAt({ attempt, renewAt, sentAt }: Pulse): number {
  return attempt.unsentProgress === null ? renewAt : Math.min(renewAt, sentAt + PROGRESS_MS)
}

/** The beat of a pulse; what it says counts as sent from here. */
function beatOf(pulse: Pulse, now: number): Beat {
  const { attempt } = pulse
  const { taskId, attempt: number } = attempt.task
  const progress = attempt.unsentProgress
  attempt.unsentProgress = null
  pulse.sentAt = now
  const beat = { taskId, attempt: number, leaseToken: attempt.leaseToken }
  return progress === null ? beat : { ...beat, progress }
}
