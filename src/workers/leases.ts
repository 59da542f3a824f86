/**
 * Leases: the signals of running tasks. A heartbeat moves the end of a lease and keeps the progress; the timers
 * take a lease by one conditional update. Either is first, and the row says which. What becomes of the task is
 * decided at the log.
 */
import type { Pool } from 'pg'
import type { ProcessingTask, Task } from '../domain/task.ts'
import type { Engine } from '../engine/engine.ts'
import { grantLeases } from '../projections/work-state.ts'

export interface Heartbeat {
  taskId: string
  attempt: number
  leaseTokenHash: string
  /** 0 to 1; null keeps what was said last. */
  progress: number | null
}

export type HeartbeatResult =
  | { state: 'held'; until: Date }
  | { state: 'cancelled'; reason: string | null }
  | { state: 'lost'; reason: string }

/** What is known of a running task beside its stream. */
export interface Signals {
  heldUntil: Date
  lost: boolean
  lastHeartbeatAt: Date | null
  progress: number | null
}

const BEAT = {
  name: 'leases-beat',
  text: `
    UPDATE rollcall.leases l
       SET held_until = clock_timestamp() + l.lease_ms * interval '1 millisecond',
           last_heartbeat_at = clock_timestamp(), progress = COALESCE(b.progress, l.progress)
      FROM json_to_recordset($1::json) AS b (task_id uuid, attempt integer, token_hash text, progress real)
     WHERE l.task_id = b.task_id AND l.attempt = b.attempt AND l.token_hash = b.token_hash AND NOT l.lost
     RETURNING l.task_id, l.attempt, l.token_hash, l.held_until`,
}

interface BeatRow {
  task_id: string
  attempt: number
  token_hash: string
  held_until: Date
}

/** What a beat is for: one worker may hold a task's attempt and still believe in an earlier one of the same task. */
const leaseOf = (taskId: string, attempt: number, leaseTokenHash: string): string =>
  `${taskId}/${attempt}/${leaseTokenHash}`
const leaseOfBeat = (beat: Heartbeat): string => leaseOf(beat.taskId, beat.attempt, beat.leaseTokenHash)

export class Leases {
  readonly #pool: Pool
  readonly #engine: Engine

  constructor(pool: Pool, engine: Engine) {
    this.#pool = pool
    this.#engine = engine
  }

  /** Takes heartbeats; the results stand in the order of the beats. */
  async heartbeat(beats: readonly Heartbeat[]): Promise<HeartbeatResult[]> {
    const held = await this.#beat(beats)
    const missing = beats.filter(beat => !held.has(leaseOfBeat(beat)))
    const tasks = await this.#read(missing)
    // The row is missing, or not this attempt's yet, while the log says the worker runs it: a full lease first.
    const entitled = missing.filter(beat => holds(tasks.get(beat.taskId), beat))
    if (entitled.length > 0) {
      // One row per task, however often it is named.
      const running = new Map(entitled.map(({ taskId }) => [taskId, tasks.get(taskId) as ProcessingTask]))
      await grantLeases(this.#pool, [...running.values()])
      const granted = await this.#beat(entitled)
      // A row also goes missing because its attempt ends, and that may have been after the task was read. Whatever
      // removed it was in the log before, so the log is asked again now that the row stands.
      for (const [taskId, task] of await this.#read(entitled)) tasks.set(taskId, task)
      const over = entitled.filter(beat => !holds(tasks.get(beat.taskId), beat))
      await this.#withdraw(over)
      for (const beat of over) granted.delete(leaseOfBeat(beat))
      for (const [lease, until] of granted) held.set(lease, until)
    }
    return beats.map(beat => {
      const until = held.get(leaseOfBeat(beat))
      return until ? { state: 'held', until } : notHeld(tasks.get(beat.taskId), beat)
    })
  }

  /** The tasks of these beats as the log says now; those that are not there, or cannot be read, are left out. */
  async #read(beats: readonly Heartbeat[]): Promise<Map<string, Task>> {
    if (beats.length === 0) return new Map()
    const loaded = await this.#engine.readMany(beats.map(beat => beat.taskId))
    return new Map([...loaded].flatMap(([id, one]) => (one.kind === 'task' ? [[id, one.task] as const] : [])))
  }

  /** Takes back leases that were granted to attempts which were over. */
  async #withdraw(beats: readonly Heartbeat[]): Promise<void> {
    if (beats.length === 0) return
    await this.#pool.query({
      name: 'leases-withdraw',
      text: `DELETE FROM rollcall.leases l
              USING json_to_recordset($1::json) AS b (task_id uuid, attempt integer)
              WHERE l.task_id = b.task_id AND l.attempt = b.attempt`,
      values: [JSON.stringify(beats.map(({ taskId, attempt }) => ({ task_id: taskId, attempt })))],
    })
  }

  /** The ends of the leases that were held. */
  async #beat(beats: readonly Heartbeat[]): Promise<Map<string, Date>> {
    const rows = beats.map(beat => ({
      task_id: beat.taskId,
      attempt: beat.attempt,
      token_hash: beat.leaseTokenHash,
      progress: beat.progress,
    }))
    const beaten = await this.#pool.query<BeatRow>({
      ...BEAT,
      values: [JSON.stringify(rows)],
    })
    return new Map(
      beaten.rows.map(row => [leaseOf(row.task_id, row.attempt, row.token_hash), row.held_until]),
    )
  }

  /** The signals of a running task, null where there are none for its attempt. */
  async signals(task: ProcessingTask): Promise<Signals | null> {
    const found = await this.#pool.query<{
      held_until: Date
      lost: boolean
      last_heartbeat_at: Date | null
      progress: number | null
    }>({
      name: 'leases-signals',
      text: `SELECT held_until, lost, last_heartbeat_at, progress FROM rollcall.leases
              WHERE task_id = $1 AND attempt = $2`,
      values: [task.taskId, task.attempt],
    })
    const row = found.rows[0]
    if (!row) return null
    return {
      heldUntil: row.held_until,
      lost: row.lost,
      lastHeartbeatAt: row.last_heartbeat_at,
      progress: row.progress,
    }
  }
}

const holds = (task: Task | undefined, beat: Heartbeat): task is ProcessingTask =>
  task?.status === 'PROCESSING' &&
  task.attempt === beat.attempt &&
  task.leaseTokenHash === beat.leaseTokenHash

function notHeld(task: Task | undefined, beat: Heartbeat): HeartbeatResult {
  if (!task) return { state: 'lost', reason: 'No task has this id.' }
  if (task.status === 'CANCELLED' && task.attempt === beat.attempt)
    return { state: 'cancelled', reason: task.reason }
  if (holds(task, beat)) return { state: 'lost', reason: 'The lease ended before this heartbeat.' }
  return {
    state: 'lost',
    reason: `The task is ${task.status}; attempt ${beat.attempt} is over or another's.`,
  }
}
