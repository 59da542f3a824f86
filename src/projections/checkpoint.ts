/**
 * A projector's place and its lease, one row. Whoever holds the lease projects; the others stand by. There is
 * no session lock that a stopped process could keep: the lease ends by the database's clock, and whoever comes
 * back late finds that the row has moved without it.
 */
import type { Checkpoint } from '../eventlog/event-log.ts'
import { type Queryable, timestamp } from './database.ts'
import { ProjectorFencedError, type Step } from './read-model.ts'

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

/** The arguments of `rollcall.advance_projector`. */
export const advanceArguments = ({ name, holder, leaseMs, from, to, eventAt }: Step) => [
  name,
  holder,
  from?.position ?? null,
  to.logId,
  to.position,
  to.eventId,
  timestamp(eventAt),
  leaseMs,
]

/**
 * Moves the checkpoint by compare-and-set and renews the lease, in the transaction that wrote the rows.
 *
 * @throws ProjectorFencedError when the row is not where this projector left it
 */
export async function advance(db: Queryable, step: Step): Promise<void> {
  await db
    .query('SELECT rollcall.advance_projector($1, $2, $3, $4, $5, $6, $7, $8)', advanceArguments(step))
    .catch(fenced)
}

const TAKEN_OVER = 'RC001'

/** Names the error by which the database says that another projector has taken over. */
export function fenced(error: Error & { code?: string }): never {
  throw error.code === TAKEN_OVER ? new ProjectorFencedError(error.message, { cause: error }) : error
}

/**
 * Renews the lease where nothing is new.
 *
 * @throws ProjectorFencedError when the row is not where this projector left it: taken over, or emptied for a rebuild
 */
export async function renew(
  db: Queryable,
  name: string,
  holder: string,
  leaseMs: number,
  at: Checkpoint | null,
): Promise<void> {
  const renewed = await db.query({
    name: 'projector-renew',
    text: `UPDATE rollcall.projectors SET held_until = clock_timestamp() + $3 * interval '1 millisecond'
            WHERE name = $1 AND holder = $2 AND position IS NOT DISTINCT FROM $4`,
    values: [name, holder, leaseMs, at?.position ?? null],
  })
  if (!renewed.rowCount)
    throw new ProjectorFencedError(
      `projector ${name} was taken over by another process, or its place was moved`,
    )
}

/** Gives the lease up, so that another projector need not wait for its end. */
export async function giveUp(db: Queryable, name: string, holder: string): Promise<void> {
  await db.query(
    'UPDATE rollcall.projectors SET holder = NULL, held_until = NULL WHERE name = $1 AND holder = $2',
    [name, holder],
  )
}
