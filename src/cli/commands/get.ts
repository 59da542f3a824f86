import type { Command } from 'commander'
import { connect } from '../connection.ts'
import { describeTask } from '../task-text.ts'

export function addGet(program: Command): void {
  program
    .command('get')
    .description('show a task: its status, why, what comes next')
    .argument('<id>', 'id of the task')
    .action(async (id: string, _options: unknown, command: Command) => {
      const { client, terminal } = connect(command)
      const task = await client.get(id)
      terminal.result(task, () => describeTask(task, terminal))
    })
}
