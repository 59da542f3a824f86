import type { Command } from 'commander'
import { connect } from '../connection.ts'
import { brief } from '../task-text.ts'

export function addCancel(program: Command): void {
  program
    .command('cancel')
    .description('cancel a task; its worker is told to stop')
    .argument('<id>', 'id of the task')
    .option('--reason <text>', 'kept in the history and shown with the task')
    .action(async (id: string, { reason }: { reason?: string }, command: Command) => {
      const { client, terminal } = connect(command)
      const task = await client.cancel(id, reason === undefined ? {} : { reason })
      terminal.result(task, () => brief(task, terminal))
    })
}
