/** How far the read model is behind the log. */
import type { Pool } from 'pg'
import { z } from 'zod'
import {
  type Checkpoint,
  type EventLog,
  LogUnavailableError,
  LogWentBackwardsError,
  READ_LIMITS,
  type StoredEvent,
} from '../eventlog/event-log.ts'
import { PROJECTOR_NAME } from './projector.ts'

export interface Lag {
  /** Events that are not projected, counted up to the limit that was asked for; null where the log no longer holds the place. */
  events: number | null
  /** 0 when every event is projected, else about how long the oldest of the others has been waiting. */
  seconds: number
  caughtUp: boolean
}

/** More than these are not counted. */
export const LAG_EVENTS_MAX = 10_000
/** Below this the age of the newest projected event, which is never too small, is near enough. */
const NEAR_SECONDS = 1
const FIRST_INSTANT_MS = 2_000

/**
 * @param eventsMax how far events are counted: EventStoreDB sends every one that is
 * @throws when log or read model cannot be reached
 */
export async function readLag(pool: Pool, log: EventLog, eventsMax = LAG_EVENTS_MAX): Promise<Lag> {
  const { checkpoint, ageSeconds, now } = await readPlace(pool)
  const events = await log.countAfter(checkpoint, eventsMax).catch(error => {
    if (error instanceof LogWentBackwardsError) return null
    throw error
  })
  if (events === 0) return { events, seconds: 0, caughtUp: true }
  // After a quiet time the newest projected event is old, while what waits may have come just now.
  const at = events === null || ageSeconds < NEAR_SECONDS ? null : await readFirstInstant(log, checkpoint)
  return {
    events,
    seconds: at === null ? finite(ageSeconds) : Math.max(0, (now - at) / 1_000),
    caughtUp: false,
  }
}

/** What waits where nothing is projected and nothing has a time is no task's. */
const finite = (seconds: number): number => (Number.isFinite(seconds) ? seconds : 0)

interface Place {
  checkpoint: Checkpoint | null
  /** Of the newest projected event; infinite where nothing is projected yet. */
  ageSeconds: number
  /** By the database's clock. */
  now: number
}

async function readPlace(pool: Pool): Promise<Place> {
  const found = await pool.query<{
    log_id: string | null
    position: string | null
    event_id: string | null
    age_seconds: number | null
    now: number
  }>({
    name: 'projector-place',
    text: `SELECT p.log_id, p.position, p.event_id,
                  extract(epoch FROM c.now - coalesce(p.event_at, p.moved_at))::float8 AS age_seconds,
                  extract(epoch FROM c.now)::float8 * 1000 AS now
             FROM (SELECT clock_timestamp() AS now) c LEFT JOIN rollcall.projectors p ON p.name = $1`,
    values: [PROJECTOR_NAME],
  })
  const { log_id: logId, position, event_id: eventId, age_seconds: age, now } = found.rows[0]!
  const checkpoint = logId && position && eventId ? { logId, position, eventId } : null
  return { checkpoint, ageSeconds: checkpoint ? Math.max(0, age ?? 0) : Number.POSITIVE_INFINITY, now }
}

/** Where the projector stands, null where it has not begun. */
export const readProjectorCheckpoint = async (pool: Pool): Promise<Checkpoint | null> =>
  (await readPlace(pool)).checkpoint

/**
 * When the first event after a place happened; null where none comes any more, or none of the next page has a time,
 * as the definitions of lifecycles have none.
 *
 * @throws LogUnavailableError, LogWentBackwardsError
 */
async function readFirstInstant(log: EventLog, from: Checkpoint | null): Promise<number | null> {
  const done = new AbortController()
  let first: number | null = null
  let read = 0
  await log.follow(
    from,
    async batch => {
      for (const stored of batch) if (first === null) first = instantOf(stored)
      read += batch.length
      if (first !== null || batch.length === 0 || read >= READ_LIMITS.events) done.abort()
    },
    AbortSignal.any([done.signal, AbortSignal.timeout(FIRST_INSTANT_MS)]),
  )
  if (!done.signal.aborted) throw new LogUnavailableError('the log could not be read in time')
  return first
}

const metadataSchema = z.object({ at: z.number() })

function instantOf({ metadata }: StoredEvent): number | null {
  try {
    return metadataSchema.safeParse(JSON.parse(metadata)).data?.at ?? null
  } catch {
    return null
  }
}
