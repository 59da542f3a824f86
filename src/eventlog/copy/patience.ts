/** Outages while a log is copied: waited for, up to a bound. */
import { setTimeout as sleep } from 'node:timers/promises'
import { LogSealedError, LogUnavailableError } from '../event-log.ts'

export interface Patience {
  /** How long a log may not answer before the copy ends; it can be begun again. */
  patienceMs: number
  signal: AbortSignal
}

const PAUSE_MS = { first: 100, longest: 2_000 }

/**
 * Asks a log until it answers. What is asked must be safe to repeat.
 *
 * @throws LogUnavailableError when it did not answer for `patienceMs`; LogSealedError at once
 */
export async function patiently<T>({ patienceMs, signal }: Patience, ask: () => Promise<T>): Promise<T> {
  const giveUpAt = performance.now() + patienceMs
  for (let pauseMs = PAUSE_MS.first; ; pauseMs = Math.min(pauseMs * 2, PAUSE_MS.longest)) {
    signal.throwIfAborted()
    try {
      return await ask()
    } catch (error) {
      const passing = error instanceof LogUnavailableError && !(error instanceof LogSealedError)
      if (!passing || performance.now() + pauseMs > giveUpAt) throw error
      await sleep(pauseMs, undefined, { signal }).catch(() => {})
    }
  }
}
