/** Bounds on waits for a client whose own can be without end (PITFALLS K12, K13). */

export class DeadlineError extends Error {}

/**
 * What the promise gives, or a DeadlineError when it has not settled in time. The work itself is not ended by that; a
 * rejection that comes later is ignored.
 */
export async function within<T>(promise: Promise<T>, ms: number, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new DeadlineError(`${what} took longer than ${ms} ms`)), ms)
  })
  promise.catch(() => {})
  try {
    return await Promise.race([promise, late])
  } finally {
    clearTimeout(timer)
  }
}

/** Waits; ends early, and without an error, when the signal fires. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise(resolve => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, ms)
    signal.addEventListener('abort', end)
  })
}

/** Doubles from the first to the last, with the count of failures in a row; a quarter of it is random. */
export function growing(failures: number, { firstMs, lastMs }: { firstMs: number; lastMs: number }): number {
  const full = Math.min(lastMs, firstMs * 2 ** Math.min(failures - 1, 30))
  return full * (0.75 + Math.random() / 4)
}
