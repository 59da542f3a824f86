/** Waiting with a bound: abortable sleep, growing delays, waking a loop. */

/** Node fires a longer timer after 1 ms. */
export const TIMER_MAX_MS = 2 ** 31 - 1

/** Milliseconds that only go forward; the wall clock may be set back. */
export const monotonicMs = (): number => performance.now()

/** Resolves after `ms`, or at once when the signal is aborted; callers look at the signal. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return Promise.resolve()
  return new Promise(resolve => {
    const end = () => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, Math.min(Math.max(0, ms), TIMER_MAX_MS))
    signal?.addEventListener('abort', end, { once: true })
  })
}

export interface Backoff {
  initialMs: number
  maxMs: number
}

/** The wait after so many failures in a row (from 1). Half of it is random, so that many do not come at once. */
export function backoffMs({ initialMs, maxMs }: Backoff, failures: number): number {
  const grown = Math.min(maxMs, initialMs * 2 ** Math.min(failures - 1, 30))
  return grown * (0.5 + Math.random() / 2)
}

/** Wakes whoever waits for "something changed". A wake without a waiter is forgotten: check first, then wait. */
export class Wakeup {
  #waiters: (() => void)[] = []

  wake(): void {
    const waiters = this.#waiters
    this.#waiters = []
    for (const waiter of waiters) waiter()
  }

  wait(): Promise<void> {
    return new Promise(resolve => this.#waiters.push(resolve))
  }
}

/** Waits until `done()` holds, looking again at each wake; false when the time was up first. */
export async function waitUntil(done: () => boolean, wakeup: Wakeup, ms: number): Promise<boolean> {
  const deadline = monotonicMs() + ms
  while (!done()) {
    const left = deadline - monotonicMs()
    if (left <= 0) return false
    const timer = new AbortController()
    await Promise.race([wakeup.wait(), sleep(left, timer.signal)])
    timer.abort()
  }
  return true
}
