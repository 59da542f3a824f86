import type { Instant } from '../domain/events.ts'

/** The one clock that arms and fires deadlines: the database's, as `src/runtime` builds it. */
export interface Clock {
  now(): Instant
}
