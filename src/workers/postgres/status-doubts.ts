/** `status_doubts` in Postgres. */
import type { Pool } from 'pg'
import type { StatusDoubt, StatusDoubts } from '../status-amends.ts'

export class PostgresStatusDoubts implements StatusDoubts {
  readonly #pool: Pool

  constructor(pool: Pool) {
    this.#pool = pool
  }

  async add(taskIds: readonly string[], afterMs: number): Promise<void> {
    await this.#pool.query({
      name: 'status-doubts-add',
      text: `INSERT INTO rollcall.status_doubts (task_id, arrived, due_at)
             SELECT asked, $2 = 0, clock_timestamp() + $2 * interval '1 millisecond' FROM unnest($1::uuid[]) AS asked
             ON CONFLICT (task_id, arrived) DO UPDATE SET due_at = greatest(excluded.due_at, status_doubts.due_at)`,
      values: [taskIds, afterMs],
    })
  }

  async takeDue(limit: number, againMs: number): Promise<StatusDoubt[]> {
    const { rows } = await this.#pool.query<StatusDoubt>({
      name: 'status-doubts-take',
      text: `UPDATE rollcall.status_doubts SET due_at = clock_timestamp() + $2 * interval '1 millisecond'
              WHERE (task_id, arrived) IN (SELECT task_id, arrived FROM rollcall.status_doubts
                                            WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT $1)
              RETURNING task_id AS "taskId", arrived, due_at::text AS mark`,
      values: [limit, againMs],
    })
    return rows
  }

  async settle(taken: readonly StatusDoubt[]): Promise<void> {
    await this.#pool.query({
      name: 'status-doubts-settle',
      text: `DELETE FROM rollcall.status_doubts AS doubt
              USING unnest($1::uuid[], $2::boolean[], $3::timestamptz[]) AS taken (task_id, arrived, due_at)
              WHERE doubt.task_id = taken.task_id AND doubt.arrived = taken.arrived AND doubt.due_at = taken.due_at`,
      values: [
        taken.map(({ taskId }) => taskId),
        taken.map(({ arrived }) => arrived),
        taken.map(({ mark }) => mark),
      ],
    })
  }
}
