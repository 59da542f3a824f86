/** A bound for what may never end. */
import { LogUnavailableError } from './event-log.ts'

/** The promise's result, or LogUnavailableError after the time. */
export async function within<T>(timeoutMs: number, promise: Promise<T>, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new LogUnavailableError(`the log did not answer ${what} within ${timeoutMs} ms`)),
      timeoutMs,
    )
  })
  // Whatever the promise does after the time has been answered for.
  promise.catch(() => {})
  try {
    return await Promise.race([promise, timeout])
  } finally {
    clearTimeout(timer)
  }
}
