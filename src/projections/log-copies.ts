/** How far a log was copied, kept beside the read model that is moved with it. */
import type { Pool } from 'pg'
import { z } from 'zod'
import type { Checkpoint } from '../eventlog/event-log.ts'
import type { Queryable } from './database.ts'

/** One event, where it stands in both logs. */
export interface Places {
  source: Checkpoint
  target: Checkpoint
}

export interface CopyProgress {
  /** Everything up to here was stored in the target; null is nothing. */
  copied: Places | null
  /** Everything up to here was compared: the target's head then. */
  verified: Places | null
  /** Copied, in all. */
  events: number
  moved: boolean
}

export const NOTHING_COPIED: CopyProgress = { copied: null, verified: null, events: 0, moved: false }

const placeSchema = z.strictObject({ logId: z.guid(), position: z.string(), eventId: z.guid() })
const placesSchema = z.strictObject({ source: placeSchema, target: placeSchema }).nullable()

export async function loadCopy(pool: Pool, sourceId: string, targetId: string): Promise<CopyProgress> {
  const { rows } = await pool.query<{ copied: unknown; verified: unknown; events: string; moved: boolean }>(
    `SELECT copied, verified, events::text, moved_at IS NOT NULL AS moved
       FROM rollcall.log_copies WHERE source_id = $1 AND target_id = $2`,
    [sourceId, targetId],
  )
  const row = rows[0]
  if (!row) return NOTHING_COPIED
  return {
    copied: placesSchema.parse(row.copied),
    verified: placesSchema.parse(row.verified),
    events: Number(row.events),
    moved: row.moved,
  }
}

export async function saveCopy(
  db: Queryable,
  sourceId: string,
  targetId: string,
  { copied, verified, events, moved }: CopyProgress,
): Promise<void> {
  await db.query(
    `INSERT INTO rollcall.log_copies AS c (source_id, target_id, copied, verified, events, moved_at)
     VALUES ($1, $2, $3, $4, $5, CASE WHEN $6 THEN clock_timestamp() END)
     ON CONFLICT (source_id, target_id) DO UPDATE SET
       copied = excluded.copied, verified = excluded.verified, events = excluded.events,
       moved_at = excluded.moved_at, updated_at = clock_timestamp()`,
    [
      sourceId,
      targetId,
      copied && JSON.stringify(copied),
      verified && JSON.stringify(verified),
      events,
      moved,
    ],
  )
}
