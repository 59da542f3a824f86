/** The read model in Postgres: the statements are in `../migrations`, what a row is beside the table's name. */
import type { Task } from '../../domain/task.ts'
import { advance, advanceArguments, fenced } from '../checkpoint.ts'
import { inTransaction, isUnfit } from '../database.ts'
import { projectArguments, projectEach, whichMoved } from '../projection.ts'
import type { ReadModel, SetAside, Step, Written } from '../read-model.ts'
import { PostgresPlaces } from './postgres-places.ts'

export class PostgresReadModel extends PostgresPlaces implements ReadModel {
  /** One statement where nothing is at fault, which is its own transaction. */
  async write(tasks: readonly Task[], unread: readonly SetAside[], step: Step): Promise<Written> {
    if (unread.length > 0) return this.#writeEach(tasks, unread, step)
    try {
      return await this.#writeTogether(tasks, step)
    } catch (error) {
      if (!isUnfit(error)) throw error
      return this.#writeEach(tasks, unread, step)
    }
  }

  async #writeTogether(tasks: readonly Task[], step: Step): Promise<Written> {
    const written = await this.pool
      .query<{ moved: string[] | null }>({
        name: 'project-and-advance',
        // All of them in most cases, whose ids then need not be written out and read.
        text: `SELECT CASE WHEN cardinality(moved) < $17 THEN moved END AS moved,
                      rollcall.advance_projector($9, $10, $11, $12, $13, $14, $15, $16)
                 FROM rollcall.project($1, $2, $3, $4, $5, $6, $7, $8) AS moved`,
        values: [...projectArguments(tasks), ...advanceArguments(step), tasks.length],
      })
      .catch(fenced)
    const { moved } = written.rows[0]!
    return { moved: moved ? whichMoved(tasks, moved) : [...tasks], aside: [] }
  }

  /** Task by task, so that the one at fault is set aside and the others are written. */
  #writeEach(tasks: readonly Task[], unread: readonly SetAside[], step: Step): Promise<Written> {
    return inTransaction(
      this.pool,
      async client => {
        const { moved, aside: unfit } = await projectEach(client, tasks)
        const aside = [...unread, ...unfit]
        for (const one of aside)
          await client.query(
            `INSERT INTO rollcall.set_aside (task_id, revision, reason) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
            [one.taskId, one.revision, one.reason],
          )
        await advance(client, step)
        return { moved, aside }
      },
      // A process that is stopped in the middle of it must not keep the others waiting longer than its lease.
      step.leaseMs,
    )
  }
}
