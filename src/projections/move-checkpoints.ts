/**
 * Makes the read model follow another log that holds the same events: each projector's place in the one becomes a place in
 * the other, in one transaction.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Pool, PoolClient } from 'pg'
import { CopyError } from '../eventlog/copy/copy-error.ts'
import type { Patience } from '../eventlog/copy/patience.ts'
import { isSamePlace, placeOf, walk } from '../eventlog/copy/walk.ts'
import { type Checkpoint, type EventLog, LogUnavailableError } from '../eventlog/event-log.ts'
import { inTransaction } from './database.ts'
import { NOTHING_COPIED, type Places, saveCopy } from './log-copies.ts'

export interface Move {
  from: EventLog
  to: EventLog
  pool: Pool
  /** The last event of both: the source is sealed, and nobody appends to the target yet. */
  heads: Places | null
  /** Events of the whole copy, kept with the move. */
  events: number
}

interface ProjectorRow {
  name: string
  log_id: string | null
  position: string | null
  event_id: string | null
  holder: string | null
  held: boolean
}

/** A projector that moves gets this long for its next step before it is stopped where it is. */
const STANDSTILL_MS = 5_000
const LOOK_MS = 100
/** A projector is kept from moving for this long at a time. */
const HOLD_MS = 60_000
const STEAL_TRIES = 5
/** Streams that a projector has before it; with more its place cannot be told and it begins anew. */
const UNHANDLED_MAX = 100_000

/**
 * Waits for projectors that run to reach the end of the source, and moves them all. One that does not run or stands still
 * goes on in the target before the first event it has not handled; some that it has may come again, which changes nothing.
 *
 * @returns the projectors' names
 * @throws CopyError where a projector's place cannot be told
 */
export async function moveCheckpoints(move: Move, patience: Patience): Promise<string[]> {
  const { pool, from } = move
  const holder = randomUUID()
  const places = new Map<string, Checkpoint | null>()
  let seen = ''
  let seenAt = performance.now()
  for (let steals = 0; ; ) {
    patience.signal.throwIfAborted()
    const names = await tryMove(move, places)
    if (names) return names
    const rows = (await projectorRows(pool)).filter(row => mustMove(row, move))
    const now = JSON.stringify(rows.map(({ position, event_id }) => [position, event_id]))
    if (now !== seen) {
      seen = now
      seenAt = performance.now()
    }
    // The source takes no appends any more, so a projector that runs comes to its end.
    const isMoving = rows.some(row => row.held) && performance.now() - seenAt < STANDSTILL_MS
    if (isMoving) {
      await sleep(LOOK_MS, undefined, { signal: patience.signal }).catch(() => {})
      continue
    }
    const idle = rows.find(row => row.log_id === null)
    if (idle)
      throw new CopyError(
        'copy_refused',
        `projector ${idle.name} has not begun and stands still: see what hinders it, or stop the services, and run the ` +
          'same command again',
      )
    if (++steals > STEAL_TRIES)
      throw new LogUnavailableError(
        'the projector moves again and again while it is stopped; try again later',
      )
    for (const row of rows) {
      const at = await holdStill(pool, row.name, holder)
      if (!at || at.logId !== from.id) continue
      places.set(keyOf(row.name, at), await placeInTarget(move, row, at, holder, patience))
    }
  }
}

/** A projector that has not begun has no place to move, but must not begin on the source while it runs there. */
const mustMove = ({ log_id, held }: ProjectorRow, { from, heads }: Move): boolean =>
  log_id === from.id || (log_id === null && held && heads !== null)

const keyOf = (name: string, { position, eventId }: Checkpoint): string => `${name} ${position} ${eventId}`

async function projectorRows(db: Pool | PoolClient, lock = ''): Promise<ProjectorRow[]> {
  const { rows } = await db.query<ProjectorRow>(
    `SELECT name, log_id, position, event_id, holder, coalesce(held_until > clock_timestamp(), false) AS held
       FROM rollcall.projectors ORDER BY name ${lock}`,
  )
  return rows
}

const checkpointOf = ({ log_id: logId, position, event_id: eventId }: ProjectorRow): Checkpoint | null =>
  logId && position && eventId ? { logId, position, eventId } : null

/** Moves all or none. @returns null while the place of one is not known */
function tryMove(move: Move, places: ReadonlyMap<string, Checkpoint | null>): Promise<string[] | null> {
  const { pool, from, to, heads, events } = move
  return inTransaction(pool, async db => {
    const rows = (await projectorRows(db, 'FOR UPDATE')).filter(row => mustMove(row, move))
    const moved: [string, Checkpoint | null][] = []
    for (const row of rows) {
      const at = checkpointOf(row)
      const target = isSamePlace(at, heads?.source ?? null)
        ? (heads?.target ?? null)
        : at && places.get(keyOf(row.name, at))
      if (target === undefined || at === null) return null
      moved.push([row.name, target])
    }
    // Without a holder: positions of two logs may read the same, so whoever projects the source is told by that.
    for (const [name, place] of moved)
      await db.query(
        `UPDATE rollcall.projectors SET log_id = $2, position = $3, event_id = $4, holder = NULL, held_until = NULL,
                moved_at = clock_timestamp() WHERE name = $1`,
        [name, place?.logId ?? null, place?.position ?? null, place?.eventId ?? null],
      )
    // A walk of the verifier stands in the source, too.
    await db.query('UPDATE rollcall.verification SET place = NULL')
    await saveCopy(db, from.id, to.id, { copied: heads, verified: heads, events, moved: true })
    // The way back begins here.
    const back = heads && { source: heads.target, target: heads.source }
    await saveCopy(db, to.id, from.id, { ...NOTHING_COPIED, copied: back, verified: back })
    return moved.map(([name]) => name)
  })
}

/** Takes the projector's lease from whoever has it. @returns where it stands now */
async function holdStill(pool: Pool, name: string, holder: string): Promise<Checkpoint | null> {
  const { rows } = await pool.query<ProjectorRow>(
    `UPDATE rollcall.projectors SET holder = $2, held_until = clock_timestamp() + $3 * interval '1 millisecond'
      WHERE name = $1 RETURNING name, log_id, position, event_id, holder, true AS held`,
    [name, holder, HOLD_MS],
  )
  return rows[0] ? checkpointOf(rows[0]) : null
}

/** The last place in the target before everything that a projector has not handled; null is the start. */
async function placeInTarget(
  { pool, from, to, heads }: Move,
  row: ProjectorRow,
  at: Checkpoint,
  holder: string,
  patience: Patience,
): Promise<Checkpoint | null> {
  const unhandled = new Map<string, number>()
  await walk({ log: from, after: at, until: heads?.source ?? null }, patience, async batch => {
    for (const { stream, revision } of batch) if (!unhandled.has(stream)) unhandled.set(stream, revision)
    return unhandled.size <= UNHANDLED_MAX
  })
  let place: Checkpoint | null = null
  let heldAt = performance.now()
  if (unhandled.size <= UNHANDLED_MAX)
    await walk({ log: to, after: null, until: heads?.target ?? null }, patience, async batch => {
      if (performance.now() - heldAt > HOLD_MS / 4) {
        await holdStill(pool, row.name, holder)
        heldAt = performance.now()
      }
      for (const event of batch) {
        if (event.revision >= (unhandled.get(event.stream) ?? Number.POSITIVE_INFINITY)) return false
        place = placeOf(to, event)
      }
      return true
    })
  // Without a place nothing would keep a projector of the source from going on there.
  if (place === null && row.held)
    throw new CopyError(
      'copy_refused',
      `projector ${row.name} stands still far behind the log and its place in the other one cannot be told: see what ` +
        'hinders it, or stop the services, and run the same command again',
    )
  return place
}
