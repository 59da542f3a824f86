import type { Command } from 'commander'
import { connect } from '../connection.ts'
import { describeTask } from '../task-text.ts'
import { parseDuration } from '../values.ts'
import { endOrNow } from '../wait.ts'

export function addGet(program: Command): void {
  program
    .command('get')
    .description('show a task: its status, why, what comes next')
    .argument('<id>', 'id of the task')
    .option('--wait <duration>', 'wait for its end, so long at most (30s, 5m)', parseDuration)
    .action(async (id: string, { wait }: { wait?: number }, command: Command) => {
      const { client, terminal } = connect(command)
      const task = wait === undefined ? await client.get(id) : await endOrNow(client, id, wait)
      terminal.result(task, () => describeTask(task, terminal))
    })
}
