import type { Command } from 'commander'
import { connect } from '../connection.ts'
import { brief } from '../task-text.ts'

export function addRetry(program: Command): void {
  program
    .command('retry')
    .description(
      'put a failed task back to the queue, or end the backoff of one that waits for its next attempt',
    )
    .argument('<id>', 'id of the task')
    .option('--reason <text>', 'kept in the history')
    .action(async (id: string, { reason }: { reason?: string }, command: Command) => {
      const { client, terminal } = connect(command)
      const task = await client.retry(id, reason === undefined ? {} : { reason })
      terminal.result(task, () => brief(task, terminal))
    })
}
