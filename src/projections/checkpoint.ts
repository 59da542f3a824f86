/**
 * A projector's place and its lease, one row. Whoever holds the lease projects; the others stand by. There is
 * no session lock that a stopped process could keep: the lease ends by the database's clock, and whoever comes
 * back late finds that the row has moved without it.
 */
import type { Checkpoint } from '../eventlog/event-log.ts'
import { type Queryable, timestamp } from './database.ts'

/** Another projector has taken over; what was about to be written must be rolled back. */
export class ProjectorFencedError extends Error {
  readonly code = 'projector_fenced'
}

interface CheckpointRow {
  log_id: string | null
  position: string | null
  event_id: string | null
}

/** Takes or renews the lease. @returns where to go on from, or null while another projector holds it */
export async function acquire(
  db: Queryable,
  name: string,
  holder: string,
  leaseMs: number,
): Promise<{ checkpoint: Checkpoint | null } | null> {
  await db.query('INSERT INTO rollcall.projectors (name) VALUES ($1) ON CONFLICT DO NOTHING', [name])
  const taken = await db.query<CheckpointRow>(
    `UPDATE rollcall.projectors
        SET holder = $2, held_until = clock_timestamp() + $3 * interval '1 millisecond'
      WHERE name = $1 AND (holder = $2 OR holder IS NULL OR held_until < clock_timestamp())
      RETURNING log_id, position, event_id`,
    [name, holder, leaseMs],
  )
  const row = taken.rows[0]
  if (!row) return null
  const { log_id: logId, position, event_id: eventId } = row
  return { checkpoint: logId && position && eventId ? { logId, position, eventId } : null }
}

/**
 * Moves the checkpoint by compare-and-set and renews the lease, in the transaction that wrote the rows. A lease
 * that ended meanwhile is no reason to throw the batch away as long as nobody has taken it.
 *
 * @param eventAt when the last event happened, for the lag; null keeps it
 * @throws ProjectorFencedError when the row is not where this projector left it
 */
export async function advance(
  db: Queryable,
  name: string,
  holder: string,
  leaseMs: number,
  from: Checkpoint | null,
  to: Checkpoint,
  eventAt: number | null,
): Promise<void> {
  const moved = await db.query({
    name: 'projector-advance',
    text: `UPDATE rollcall.projectors
              SET log_id = $3, position = $4, event_id = $5, event_at = COALESCE($6, event_at),
                  held_until = clock_timestamp() + $7 * interval '1 millisecond', moved_at = clock_timestamp()
            WHERE name = $1 AND holder = $2 AND position IS NOT DISTINCT FROM $8`,
    values: [
      name,
      holder,
      to.logId,
      to.position,
      to.eventId,
      timestamp(eventAt),
      leaseMs,
      from?.position ?? null,
    ],
  })
  if (moved.rowCount !== 1)
    throw new ProjectorFencedError(`projector ${name} was taken over by another process`)
}

/** Renews the lease where nothing is new. @throws ProjectorFencedError */
export async function renew(db: Queryable, name: string, holder: string, leaseMs: number): Promise<void> {
  if (!(await acquire(db, name, holder, leaseMs)))
    throw new ProjectorFencedError(`projector ${name} was taken over by another process`)
}

/** Gives the lease up, so that another projector need not wait for its end. */
export async function giveUp(db: Queryable, name: string, holder: string): Promise<void> {
  await db.query(
    'UPDATE rollcall.projectors SET holder = NULL, held_until = NULL WHERE name = $1 AND holder = $2',
    [name, holder],
  )
}
