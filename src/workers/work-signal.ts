/**
 * Wakes claims that wait when work of their type becomes ready in this process. It is a hint: a claim also
 * looks by itself at short intervals, so work that another process made ready is found as well.
 */
import { LRUCache } from 'lru-cache'

/** How often work is looked for without an announcement. */
export const LOOK_MS = 500
/** Types are users' words: how many are remembered as empty. */
const EMPTY_MAX = 1_000

interface Waiter {
  types: ReadonlySet<string>
  wants: number
  wake: () => void
}

/** A look for work. It ends by `wait` or by `end`. */
export interface Look {
  /**
   * Waits until work of the look's types is announced, the time is over or the signal is aborted; not at all where
   * it was announced since the look began.
   */
  wait(wants: number, ms: number, signal: AbortSignal): Promise<void>
  /** It took all there was: until something is announced, the next look may rest. */
  foundEnd(): void
  end(): void
}

export class WorkSignal {
  readonly #waiters = new Set<Waiter>()
  readonly #looks = new Set<{ types: ReadonlySet<string>; missed: boolean }>()
  /** Types of which the last look took all there was, and when. */
  readonly #empty = new LRUCache<string, number>({ max: EMPTY_MAX })
  readonly #hearsAll: () => boolean

  /** @param hearsAll whether whatever becomes ready is announced here, since this process is the one that projects */
  constructor(hearsAll: () => boolean = () => false) {
    this.#hearsAll = hearsAll
  }

  /** Tells that so many tasks of each type became ready: wakes as many waiters as can use them, oldest first. */
  ready(counts: ReadonlyMap<string, number>): void {
    const left = new Map(counts)
    for (const type of counts.keys()) this.#empty.delete(type)
    const found = (types: ReadonlySet<string>) => [...types].find(type => (left.get(type) ?? 0) > 0)
    for (const waiter of this.#waiters) {
      const type = found(waiter.types)
      if (type === undefined) continue
      left.set(type, left.get(type)! - waiter.wants)
      waiter.wake()
    }
    // What no waiter was woken for.
    for (const look of this.#looks) if (found(look.types) !== undefined) look.missed = true
  }

  /** For how long a look would find nothing, as far as is known: all was taken and nothing announced since. */
  restMs(types: readonly string[]): number {
    if (!this.#hearsAll()) return 0
    const since = Math.min(...types.map(type => this.#empty.get(type) ?? Number.NEGATIVE_INFINITY))
    return Math.max(0, since + LOOK_MS - performance.now())
  }

  /** Begins a look: what is announced while it is under way may have come too late for it (S74). */
  look(types: readonly string[]): Look {
    const look = { types: new Set(types), missed: false }
    this.#looks.add(look)
    return {
      wait: async (wants, ms, signal) => {
        this.#looks.delete(look)
        if (!look.missed) await this.#wait(look.types, wants, ms, signal)
      },
      foundEnd: () => {
        if (!look.missed) for (const type of look.types) this.#empty.set(type, performance.now())
      },
      end: () => this.#looks.delete(look),
    }
  }

  #wait(types: ReadonlySet<string>, wants: number, ms: number, signal: AbortSignal): Promise<void> {
    return new Promise(resolve => {
      if (signal.aborted) return resolve()
      const done = (): void => {
        clearTimeout(timer)
        this.#waiters.delete(waiter)
        signal.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, ms)
      const waiter: Waiter = { types, wants, wake: done }
      this.#waiters.add(waiter)
      signal.addEventListener('abort', done)
    })
  }
}

/** Counts by type, as `ready` takes them. */
export function countByType(tasks: Iterable<{ type: string }>): Map<string, number> {
  const counts = new Map<string, number>()
  for (const { type } of tasks) counts.set(type, (counts.get(type) ?? 0) + 1)
  return counts
}
