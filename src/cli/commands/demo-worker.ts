import type { Command } from 'commander'
import { urlOf } from '../connection.ts'
import { collect, wholeNumber } from '../values.ts'

interface Options {
  name: string
  folder: string
  picturesUrl: string
  concurrency: number
  kafkaBrokers?: string[]
}

/** Started by the demo, as a process of its own. */
export function addDemoWorker(program: Command): void {
  program
    .command('demo-worker', { hidden: true })
    .requiredOption('--name <name>', 'its name in histories')
    .requiredOption('--folder <folder>', 'where the pictures go')
    .requiredOption('--pictures-url <address>', 'where they are served')
    .requiredOption('--concurrency <n>', 'tasks at once', wholeNumber(1, 100))
    .option('--kafka-brokers <addresses>', 'where tasks come from, if not from the service', collect)
    .action(async (options: Options, command: Command) => {
      const { runDemoWorker } = await import('../demo/worker.ts')
      await runDemoWorker({ ...options, url: urlOf(command) })
    })
}
