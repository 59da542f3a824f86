/**
 * The database's clock, without asking it each time: its offset to this process's monotonic clock, sampled now
 * and then. Wall clocks of hosts never meet; a step of this host's wall clock changes nothing (PITFALLS T3).
 */
import type { Pool } from 'pg'
import type { Logger } from 'pino'
import type { Instant } from '../domain/events.ts'
import type { Clock } from '../engine/clock.ts'

const SAMPLE_EVERY_MS = 30_000
/** Of several samples the one with the shortest round trip is the most exact. */
const SAMPLES = 3

export class DatabaseClock implements Clock {
  readonly #pool: Pool
  readonly #logger: Logger
  /** Database milliseconds minus performance.now(). */
  #offsetMs = Number.NaN
  #latest = 0
  #timer: NodeJS.Timeout | null = null

  private constructor(pool: Pool, logger: Logger) {
    this.#pool = pool
    this.#logger = logger
  }

  /** Samples the clock and keeps sampling until it is stopped. @throws when the database does not answer */
  static async start(pool: Pool, logger: Logger): Promise<DatabaseClock> {
    const clock = new DatabaseClock(pool, logger)
    await clock.#sample()
    clock.#timer = setInterval(() => {
      clock.#sample().catch(error => logger.warn({ err: error }, 'the database clock could not be sampled'))
    }, SAMPLE_EVERY_MS)
    clock.#timer.unref()
    return clock
  }

  /** Whole milliseconds since 1970 by the database's clock; never goes back in this process. */
  now(): Instant {
    this.#latest = Math.max(this.#latest, Math.floor(performance.now() + this.#offsetMs))
    return this.#latest
  }

  stop(): void {
    if (this.#timer) clearInterval(this.#timer)
  }

  async #sample(): Promise<void> {
    let best = { roundTripMs: Number.POSITIVE_INFINITY, offsetMs: Number.NaN }
    for (let sample = 0; sample < SAMPLES; sample++) {
      const asked = performance.now()
      const answer = await this.#pool.query<{ ms: string }>(
        'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::text AS ms',
      )
      const answered = performance.now()
      const roundTripMs = answered - asked
      if (roundTripMs < best.roundTripMs)
        best = { roundTripMs, offsetMs: Number(answer.rows[0]!.ms) - (asked + roundTripMs / 2) }
    }
    const driftMs = best.offsetMs - this.#offsetMs
    if (Math.abs(driftMs) > 1_000) this.#logger.warn({ driftMs }, 'the database clock moved against ours')
    this.#offsetMs = best.offsetMs
  }
}
