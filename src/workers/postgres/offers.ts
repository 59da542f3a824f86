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

/**
 * Arrays instead of joins: what is taken is few, and is found by its ids whatever the planner thinks of the table.
 *
 * @param own what holds a claim to the tasks of one tenant, those among them that another tenant's claim of the same id
 * has taken; a lease does not say whose its task is
 */
const taking = (own: '' | 'AND tenant = $6') => ({
  name: own ? 'claim-take-own' : 'claim-take',
  text: `
    WITH again AS (
      SELECT task_id, attempt FROM rollcall.leases WHERE claim_id = $3
         ${own && 'AND (SELECT tenant FROM rollcall.tasks t WHERE t.task_id = leases.task_id) = $6'}
      UNION
      SELECT task_id, attempt FROM rollcall.offers WHERE claim_id = $3 ${own}
    ), picked AS (
      SELECT r.task_id
        FROM (SELECT DISTINCT type FROM unnest($1::text[]) AS named (type)) AS asked
       CROSS JOIN LATERAL (
             SELECT task_id, priority, pending_since FROM rollcall.ready
              WHERE type = asked.type ${own}
              ORDER BY priority DESC, pending_since, task_id
              LIMIT $2 FOR UPDATE SKIP LOCKED) AS r
       WHERE NOT EXISTS (SELECT 1 FROM again)
       ORDER BY r.priority DESC, r.pending_since, r.task_id
       LIMIT $2
    ), taken AS (
      DELETE FROM rollcall.ready WHERE task_id = ANY (ARRAY (SELECT task_id FROM picked)) RETURNING *
    ), offered AS (
      INSERT INTO rollcall.offers
             (task_id, type, priority, pending_since, attempt, times_offered, claim_id, held_until, tenant)
      SELECT task_id, type, priority, pending_since, attempt, times_offered + 1, $3,
             clock_timestamp()
               + least($4 * 2.0 ^ least(times_offered, 30), $5) * interval '1 millisecond',
             tenant
        FROM taken
      ON CONFLICT (task_id) DO UPDATE SET
        attempt = excluded.attempt, times_offered = excluded.times_offered, claim_id = excluded.claim_id,
        pending_since = excluded.pending_since, held_until = excluded.held_until
      RETURNING task_id, attempt, priority, pending_since
    )
    SELECT task_id, attempt, true AS again FROM again
    UNION ALL
    (SELECT task_id, attempt, false FROM offered ORDER BY priority DESC, pending_since, task_id)`,
})

const TAKE = taking('')
const TAKE_OWN = taking('AND tenant = $6')

export async function take(pool: Pool, { claimId, types, max, tenant }: TakeQuery): Promise<Taken[]> {
  const values = [types, max, claimId, OFFER_HOLD_MS, OFFER_HOLD_MAX_MS]
  const taken = await pool.query<{ task_id: string; attempt: number; again: boolean }>(
    tenant === null ? { ...TAKE, values } : { ...TAKE_OWN, values: [...values, tenant] },
  )
  return taken.rows.map(row => ({ taskId: row.task_id, attempt: row.attempt, again: row.again }))
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
