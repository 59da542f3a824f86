/**
 * Wakes claims that wait when work of their type becomes ready in this process. It is a hint: a claim also
 * looks by itself at short intervals, so work that another process made ready is found as well.
 */
interface Waiter {
  types: ReadonlySet<string>
  wants: number
  wake: () => void
}

export class WorkSignal {
  readonly #waiters = new Set<Waiter>()

  /** Tells that so many tasks of each type became ready: wakes as many waiters as can use them, oldest first. */
  ready(counts: ReadonlyMap<string, number>): void {
    const left = new Map(counts)
    for (const waiter of this.#waiters) {
      const type = [...waiter.types].find(candidate => (left.get(candidate) ?? 0) > 0)
      if (type === undefined) continue
      left.set(type, left.get(type)! - waiter.wants)
      waiter.wake()
    }
  }

  /** Waits until work of one of these types is announced, the time is over or the signal is aborted. */
  wait(types: readonly string[], wants: number, ms: number, signal: AbortSignal): Promise<void> {
    return new Promise(resolve => {
      if (signal.aborted) return resolve()
      const done = (): void => {
        clearTimeout(timer)
        this.#waiters.delete(waiter)
        signal.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, ms)
      const waiter: Waiter = { types: new Set(types), wants, wake: done }
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
