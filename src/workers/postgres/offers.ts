/** `ready` and `offers`: what may be handed out, and what was and is not yet seen started. */
import type { Pool } from 'pg'
import type { PendingTask } from '../../domain/task.ts'
import { readyRow } from '../../projections/work-state.ts'
import {
  type DispatchQuery,
  dispatchId,
  OFFER_HOLD_MAX_MS,
  OFFER_HOLD_MS,
  type Taken,
  type TakeQuery,
  type ToDispatch,
} from '../work-state.ts'

export async function take(pool: Pool, { claimId, types, max, tenant }: TakeQuery): Promise<Taken[]> {
  const { rows } = await pool.query<{ taken_id: string; its_attempt: number; again: boolean }>({
    name: 'claim-take',
    text: 'SELECT * FROM rollcall.take($1, $2, $3, $4, $5, $6)',
    values: [types, max, claimId, OFFER_HOLD_MS, OFFER_HOLD_MAX_MS, tenant],
  })
  return rows.map(row => ({ taskId: row.taken_id, attempt: row.its_attempt, again: row.again }))
}

export async function takeToDispatch(
  pool: Pool,
  { type, max, maxOutstanding, holdMs }: DispatchQuery,
): Promise<ToDispatch> {
  const { rows } = await pool.query<{
    taken: ToDispatch['taken']
    outstanding: number
    offered_at: Date
  }>({
    name: 'take-to-dispatch',
    text: 'SELECT * FROM rollcall.take_to_dispatch($1, $2, $3, $4, $5, $6)',
    values: [type, dispatchId(type), max, maxOutstanding, holdMs, Math.max(holdMs, OFFER_HOLD_MAX_MS)],
  })
  const { taken, outstanding, offered_at } = rows[0]!
  return { taken, outstanding, offeredAt: offered_at.getTime() }
}

export async function dropOffers(pool: Pool, claimId: string, taskIds: readonly string[]): Promise<void> {
  if (taskIds.length === 0) return
  await pool.query({
    name: 'offers-drop',
    text: 'DELETE FROM rollcall.offers WHERE task_id = ANY ($1::uuid[]) AND claim_id = $2',
    values: [taskIds, claimId],
  })
}

export async function returnOverdueOffers(
  pool: Pool,
  limit: number,
): Promise<{ type: string; tenant: string | null }[]> {
  const returned = await pool.query<{ type: string; tenant: string | null }>({
    name: 'offers-return',
    text: `WITH overdue AS (
             DELETE FROM rollcall.offers
              WHERE task_id = ANY (ARRAY (
                    SELECT task_id FROM rollcall.offers WHERE held_until <= statement_timestamp()
                     ORDER BY held_until LIMIT $1 FOR UPDATE SKIP LOCKED))
             RETURNING *)
           INSERT INTO rollcall.ready (task_id, type, priority, pending_since, attempt, times_offered, tenant)
           SELECT task_id, type, priority, pending_since, attempt, times_offered, tenant FROM overdue
           ON CONFLICT (task_id) DO NOTHING
           RETURNING type, tenant`,
    values: [limit],
  })
  return returned.rows
}

export async function makeReady(pool: Pool, tasks: readonly PendingTask[]): Promise<void> {
  if (tasks.length === 0) return
  await pool.query({
    name: 'make-ready-again',
    text: 'SELECT rollcall.make_ready_again($1)',
    values: [JSON.stringify(tasks.map(readyRow))],
  })
}
