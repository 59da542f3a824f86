/** A worker as a process of its own, for the tests that send it signals. It tells its parent what happens. */
import { createWorker, type HandlerContext, runWorkerUntilSignal, type Task } from '../../src/sdk/worker.ts'

const [url = '', drainMs = '10000'] = process.argv.slice(2)

const worker = createWorker({
  url,
  drainMs: Number(drainMs),
  types: {
    'process.quick': async (_: unknown, { taskId }: HandlerContext) => {
      process.send?.({ started: taskId })
      await new Promise(resolve => setTimeout(resolve, 300))
      return 'done before the end'
    },
    'process.endless': async (task: Task<unknown>, { signal, save }: HandlerContext) => {
      save({ page: 7 })
      process.send?.({ started: task.taskId })
      await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    },
  },
})

await runWorkerUntilSignal(worker)
process.send?.({ stopped: worker.counts })
process.disconnect?.()
