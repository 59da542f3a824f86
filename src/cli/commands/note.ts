import type { Command } from 'commander'
import { connect } from '../connection.ts'

export function addNote(program: Command): void {
  program
    .command('note')
    .description('add a remark to the history of a task')
    .argument('<id>', 'id of the task')
    .argument('<text>', 'the remark')
    .action(async (id: string, text: string, _options: unknown, command: Command) => {
      const { client, terminal } = connect(command)
      const task = await client.note(id, text)
      terminal.result(task, () => `noted as revision ${task.revision} of ${task.taskId}`)
    })
}
