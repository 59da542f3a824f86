/** The leases of running tasks as they are shown. */
import type { Pool } from 'pg'
import type { LeaseSignals } from '../../domain/signals.ts'
import type { ProcessingTask } from '../../domain/task.ts'

interface Row {
  task_id: string
  held_until: Date
  lost: boolean
  last_heartbeat_at: Date | null
  progress: number | null
}

export async function leaseSignals(
  pool: Pool,
  tasks: readonly Pick<ProcessingTask, 'taskId' | 'attempt'>[],
): Promise<Map<string, LeaseSignals>> {
  const found = await pool.query<Row>({
    name: 'signals-leases',
    text: `SELECT l.task_id, l.held_until, l.lost, l.last_heartbeat_at, l.progress
             FROM unnest($1::uuid[], $2::int[]) AS t (task_id, attempt)
             JOIN rollcall.leases l USING (task_id, attempt)`,
    values: [tasks.map(({ taskId }) => taskId), tasks.map(({ attempt }) => attempt)],
  })
  return new Map(
    found.rows.map(row => [
      row.task_id,
      {
        heldUntil: row.held_until.getTime(),
        lost: row.lost,
        lastHeartbeatAt: row.last_heartbeat_at?.getTime() ?? null,
        progress: row.progress,
      },
    ]),
  )
}
