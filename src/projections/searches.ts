/**
 * Lists and counts look at rows that no index may lead to, on connections that the projector and the claims need as
 * well: each has a time of its own, and few searches run at once.
 */
import pg, { type Pool, type PoolClient } from 'pg'
import { inTransaction } from './database.ts'

/** It was given up; the question asks for too much. */
export class SearchTooSlowError extends Error {
  readonly code = 'search_too_slow'
}

/** Others search, and did not come to an end in time. */
export class SearchesBusyError extends Error {
  readonly code = 'searches_busy'
}

export interface SearchBounds {
  /** Of one look. */
  ms: number
  atOnce: number
  /** How long, and how many, may wait for their turn. */
  waitMs: number
  waiting: number
}

const BOUNDS: SearchBounds = { ms: 4_000, atOnce: 3, waitMs: 4_000, waiting: 100 }
const QUERY_CANCELED = '57014'

export class Searches {
  readonly #pool: Pool
  readonly #bounds: SearchBounds
  readonly #waiting = new Set<() => void>()
  #running = 0

  constructor(pool: Pool, bounds: Partial<SearchBounds> = {}) {
    this.#pool = pool
    this.#bounds = { ...BOUNDS, ...bounds }
  }

  /**
   * A look that indexes answer: it waits for no turn.
   *
   * @throws SearchTooSlowError
   */
  async look<T>(ask: (db: PoolClient) => Promise<T>): Promise<T> {
    try {
      return await inTransaction(this.#pool, async client => {
        await client.query(`SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = ${this.#bounds.ms}`)
        return ask(client)
      })
    } catch (error) {
      if (error instanceof pg.DatabaseError && error.code === QUERY_CANCELED)
        throw new SearchTooSlowError(`no end within ${this.#bounds.ms} ms`, { cause: error })
      throw error
    }
  }

  /**
   * A look that may be long: few at once.
   *
   * @throws SearchTooSlowError, SearchesBusyError
   */
  async search<T>(ask: (db: PoolClient) => Promise<T>): Promise<T> {
    if (this.#running >= this.#bounds.atOnce) await this.#turn()
    else this.#running++
    try {
      return await this.look(ask)
    } finally {
      const [next] = this.#waiting
      // Whoever is next takes the place over, so that nobody who comes now gets before.
      if (next) next()
      else this.#running--
    }
  }

  #turn(): Promise<void> {
    const { waiting, waitMs } = this.#bounds
    if (this.#waiting.size >= waiting) throw new SearchesBusyError('too many searches wait')
    return new Promise((resolve, reject) => {
      const begin = (): void => {
        this.#waiting.delete(begin)
        clearTimeout(timer)
        resolve()
      }
      const timer = setTimeout(() => {
        this.#waiting.delete(begin)
        reject(new SearchesBusyError('others search'))
      }, waitMs)
      this.#waiting.add(begin)
    })
  }
}
