/** A worker as a process of its own, for the tests that send it signals. It tells its parent what happens. */
import { createWorker, type HandlerContext, runWorkerUntilSignal, type Task } from '../../src/sdk/worker.ts'

/** With brokers it is fed by Kafka. */
const [url = '', drainMs = '10000', quick = 'process.quick', endless = 'process.endless', brokers = ''] =
  process.argv.slice(2)

const worker = createWorker({
  url,
  kafka: brokers === '' ? undefined : { brokers: brokers.split(',') },
  drainMs: Number(drainMs),
  types: {
    [quick]: async (_: unknown, { taskId }: HandlerContext) => {
      process.send?.({ started: taskId })
      await new Promise(resolve => setTimeout(resolve, 300))
      return 'done before the end'
    },
    [endless]: async (task: Task<unknown>, { signal, save }: HandlerContext) => {
      save({ page: 7 })
      process.send?.({ started: task.taskId })
      await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
    },
  },
})

await runWorkerUntilSignal(worker)
process.send?.({ stopped: worker.counts })
process.disconnect?.()
