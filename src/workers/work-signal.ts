/**
 * Wakes claims that wait when work of their type becomes ready in this process. It is a hint: a claim also
 * looks by itself at short intervals, so work that another process made ready is found as well.
 */
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
  end(): void
}

export class WorkSignal {
  readonly #waiters = new Set<Waiter>()
  readonly #looks = new Set<{ types: ReadonlySet<string>; missed: boolean }>()

  /** Tells that so many tasks of each type became ready: wakes as many waiters as can use them, oldest first. */
  ready(counts: ReadonlyMap<string, number>): void {
    const left = new Map(counts)
    const found = (types: ReadonlySet<string>) => [...types].find(type => (left.get(type) ?? 0) > 0)
    for (const look of this.#looks) if (found(look.types) !== undefined) look.missed = true
    for (const waiter of this.#waiters) {
      const type = found(waiter.types)
      if (type === undefined) continue
      left.set(type, left.get(type)! - waiter.wants)
      waiter.wake()
    }
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
