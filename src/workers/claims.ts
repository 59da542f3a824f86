/**
 * Claims: HTTP workers take tasks from `ready` and find them started. A claim is taken, then started at the log,
 * then answered; it can break off between any two of these and be asked again with its id, which finds the tasks
 * by their offers (taken, not seen started) and leases (seen started).
 */
import type { Pool } from 'pg'
import type { CommandEnvelope } from '../domain/commands.ts'
import type { Source } from '../domain/events.ts'
import type { ProcessingTask } from '../domain/task.ts'
import type { Answer, AnyRefusalCode } from '../engine/answer.ts'
import type { Engine } from '../engine/engine.ts'
import { LOOK_MS, type WorkSignal } from './work-signal.ts'

export interface Claim {
  worker: string
  types: readonly string[]
  max: number
  waitMs: number
  claimId: string
  leaseTokenHash: string
  source: Source
}

/** How long a taken task stays out of `ready` before it is offered again; START comes milliseconds later. */
const OFFER_HOLD_MS = 10_000

const TAKE = {
  name: 'claim-take',
  text: `
    WITH again AS (
      SELECT task_id, attempt FROM rollcall.leases WHERE claim_id = $3
      UNION
      SELECT task_id, attempt FROM rollcall.offers WHERE claim_id = $3
    ), picked AS (
      SELECT r.task_id
        FROM (SELECT DISTINCT type FROM unnest($1::text[]) AS named (type)) AS asked
       CROSS JOIN LATERAL (
             SELECT task_id, priority, pending_since FROM rollcall.ready
              WHERE type = asked.type
              ORDER BY priority DESC, pending_since, task_id
              LIMIT $2 FOR UPDATE SKIP LOCKED) AS r
       WHERE NOT EXISTS (SELECT 1 FROM again)
       ORDER BY r.priority DESC, r.pending_since, r.task_id
       LIMIT $2
    ), taken AS (
      DELETE FROM rollcall.ready r USING picked WHERE r.task_id = picked.task_id RETURNING r.*
    ), offered AS (
      INSERT INTO rollcall.offers (task_id, type, priority, pending_since, attempt, times_offered, claim_id, held_until)
      SELECT task_id, type, priority, pending_since, attempt, times_offered + 1, $3,
             clock_timestamp() + $4 * interval '1 millisecond'
        FROM taken
      ON CONFLICT (task_id) DO UPDATE SET
        attempt = excluded.attempt, times_offered = excluded.times_offered, claim_id = excluded.claim_id,
        pending_since = excluded.pending_since, held_until = excluded.held_until
      RETURNING task_id, attempt, priority, pending_since
    )
    SELECT task_id, attempt, true AS again FROM again
    UNION ALL
    (SELECT task_id, attempt, false FROM offered ORDER BY priority DESC, pending_since, task_id)`,
}

/** Refusals that say nothing about the task: its offer stands and is asked again, or ends by itself. */
const PASSING: ReadonlySet<AnyRefusalCode> = new Set([
  'conflict',
  'overloaded',
  'log_unavailable',
  'shutting_down',
  'internal_error',
])

/** Tasks were taken and none of them could be started, for a reason that passes; the claim may be asked again. */
export class ClaimNotStartedError extends Error {
  readonly code: AnyRefusalCode

  constructor(code: AnyRefusalCode, message: string) {
    super(message)
    this.code = code
  }
}

interface Taking {
  started: ProcessingTask[]
  /** Nothing of the claim's types was left in `ready`. */
  tookAll: boolean
}

export class Claims {
  readonly #pool: Pool
  readonly #engine: Engine
  readonly #signal: WorkSignal
  readonly #taking = new Map<string, Promise<Taking>>()

  constructor(pool: Pool, engine: Engine, signal: WorkSignal) {
    this.#pool = pool
    this.#engine = engine
    this.#signal = signal
  }

  /**
   * Takes and starts up to `max` tasks; waits for the first one up to `waitMs`.
   *
   * @throws ClaimNotStartedError
   * @param signal ends the waiting (the worker went away, the service stops); what was taken is still started
   */
  async claim(claim: Claim, signal: AbortSignal): Promise<ProcessingTask[]> {
    const until = performance.now() + claim.waitMs
    for (;;) {
      const look = this.#signal.look(claim.types)
      try {
        const restMs = this.#signal.restMs(claim.types)
        // A round trip that is known to find nothing is spared, unless it is the last one.
        if (restMs === 0 || performance.now() + restMs > until) {
          const { started, tookAll } = await this.#takeAndStart(claim)
          if (tookAll) look.foundEnd()
          if (started.length > 0 || signal.aborted || performance.now() >= until) return started
        }
        const leftMs = until - performance.now()
        await look.wait(claim.max, Math.min(leftMs, restMs || LOOK_MS), signal)
      } finally {
        look.end()
      }
      if (signal.aborted) return []
    }
  }

  async #takeAndStart(claim: Claim): Promise<Taking> {
    const before = this.#taking.get(claim.claimId) ?? Promise.resolve()
    const taking = before.catch(() => {}).then(() => this.#takeAndStartNow(claim))
    this.#taking.set(claim.claimId, taking)
    try {
      return await taking
    } finally {
      if (this.#taking.get(claim.claimId) === taking) this.#taking.delete(claim.claimId)
    }
  }

  async #takeAndStartNow(claim: Claim): Promise<Taking> {
    const taken = await this.#pool.query<{ task_id: string; attempt: number; again: boolean }>({
      ...TAKE,
      values: [claim.types, claim.max, claim.claimId, OFFER_HOLD_MS],
    })
    const tookAll = taken.rows.length < claim.max && !taken.rows[0]?.again
    if (taken.rows.length === 0) return { started: [], tookAll }
    const answers = await this.#engine.executeMany(
      taken.rows.map(row => startOf(row.task_id, row.attempt, claim)),
    )
    const useless = taken.rows.filter((_, index) => isUseless(answers[index]!)).map(row => row.task_id)
    if (useless.length > 0)
      await this.#pool.query(
        'DELETE FROM rollcall.offers WHERE task_id = ANY ($1::uuid[]) AND claim_id = $2',
        [useless, claim.claimId],
      )
    const started = answers.flatMap(answer => (isHeldBy(answer, claim) ? [answer.task] : []))
    const passing = answers.find(isPassing)
    // Nothing to answer, and not for want of tasks: asked again with its id, the claim finds its offers.
    if (started.length === 0 && passing) throw new ClaimNotStartedError(passing.code, passing.message)
    return { started, tookAll }
  }
}

function startOf(taskId: string, attempt: number, claim: Claim): CommandEnvelope {
  return {
    taskId,
    command: { trigger: 'START', worker: claim.worker, attempt, leaseTokenHash: claim.leaseTokenHash },
    commandId: claim.claimId,
    actor: { kind: 'worker', id: claim.worker },
    source: claim.source,
    correlationId: null,
    causationId: null,
    trace: null,
    ifRevision: null,
  }
}

type Refused = Extract<Answer, { kind: 'refused' }>
const isPassing = (answer: Answer): answer is Refused => answer.kind === 'refused' && PASSING.has(answer.code)
const isUseless = (answer: Answer): boolean => answer.kind === 'refused' && !PASSING.has(answer.code)

/** A claim asked again may find a task that has ended since: it is not handed out a second time. */
function isHeldBy(answer: Answer, claim: Claim): answer is Answer & { task: ProcessingTask } {
  return (
    answer.kind !== 'refused' &&
    answer.task.status === 'PROCESSING' &&
    answer.task.leaseTokenHash === claim.leaseTokenHash
  )
}
