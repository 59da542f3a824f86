/**
 * Requests that wait for a task to move. Whoever waits hears of everything from the beginning of its wait, so what it
 * reads after that is never too old to wait on (S74).
 */
import type { AppParts } from './parts.ts'
import { Problem } from './problems.ts'

/** Requests that wait at once in this process. More are refused: answered at once, a client that asks in a loop spins. */
const WAITS_MAX = 10_000

/** One request's wait. */
export interface Wait {
  /** Its time is over, its caller has gone, or the service stops: it is answered as the task stands. */
  readonly over: boolean
  /** Resolves when the task has moved since the last time, and once it is over. */
  next(): Promise<void>
  /** The task has moved in a way that its stream does not tell. */
  moved(): void
  end(): void
}

export class Waits {
  readonly #parts: Pick<AppParts, 'changes' | 'metrics'>
  #open = 0

  constructor(parts: Pick<AppParts, 'changes' | 'metrics'>) {
    this.#parts = parts
  }

  /**
   * @param signal ends the wait early
   * @throws Problem too_many_waits
   * @throws LogUnavailableError
   */
  async begin(taskId: string, ms: number, signal: AbortSignal): Promise<Wait> {
    if (this.#open >= WAITS_MAX) throw new Problem('too_many_waits')
    const wake = new Wake()
    const timer = setTimeout(wake.finish, ms)
    signal.addEventListener('abort', wake.finish)
    if (signal.aborted) wake.finish()
    this.#count(1)
    const release = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', wake.finish)
      this.#count(-1)
    }
    try {
      const told = await this.#parts.changes.watch(taskId, { moved: wake.moved, ended: wake.finish })
      return Object.assign(wake, {
        end: () => {
          told.end()
          release()
        },
      })
    } catch (error) {
      release()
      throw error
    }
  }

  #count(change: 1 | -1): void {
    this.#open += change
    this.#parts.metrics.opened('wait', change)
  }
}

class Wake {
  over = false
  #moved = false
  #resume: (() => void) | null = null

  readonly moved = (): void => {
    this.#moved = true
    this.#resume?.()
  }
  readonly finish = (): void => {
    this.over = true
    this.#resume?.()
  }

  next(): Promise<void> {
    return new Promise(resolve => {
      const resume = () => {
        this.#resume = null
        this.#moved = false
        resolve()
      }
      if (this.#moved || this.over) return resume()
      this.#resume = resume
    })
  }
}
