/** How far the read model is behind the log. */
import type { Pool } from 'pg'
import type { EventLog } from '../eventlog/event-log.ts'
import { PROJECTOR_NAME } from './projector.ts'

export interface Lag {
  /** 0 when every event is projected, else the age of the newest projected one. */
  seconds: number
  caughtUp: boolean
}

/** @throws when log or read model cannot be reached */
export async function readLag(pool: Pool, log: EventLog): Promise<Lag> {
  const head = await log.head()
  const found = await pool.query<{ event_id: string | null; age_seconds: string | null }>({
    name: 'projector-lag',
    text: `SELECT event_id, extract(epoch FROM clock_timestamp() - COALESCE(event_at, moved_at)) AS age_seconds
             FROM rollcall.projectors WHERE name = $1`,
    values: [PROJECTOR_NAME],
  })
  const row = found.rows[0]
  const caughtUp = head === null || row?.event_id === head.eventId
  return { caughtUp, seconds: caughtUp ? 0 : Math.max(0, Number(row?.age_seconds ?? 0)) }
}
