/** A worker as a process of its own, for the tests that send it signals. It tells its parent what happens. */
import { createWorker, type HandlerContext, runWorkerUntilSignal, type Task } from '../../src/sdk/worker.ts'

const [url = '', drainMs = '10000', quick = 'process.quick', endless = 'process.endless', ...kafka] =
  process.argv.slice(2)
/** With brokers it is fed by Kafka; with a deadly type nobody confirms, and whatever comes of it ends this process. */
const [brokers = '', deadly = ''] = kafka

const worker = createWorker({
  ...(deadly === '' ? { url } : {}),
  kafka:
    brokers === '' ? undefined : { brokers: brokers.split(','), confirm: deadly === '' ? 'api' : 'none' },
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
    ...(deadly === '' ? {} : { [deadly]: () => process.kill(process.pid, 'SIGKILL') }),
  },
})

await runWorkerUntilSignal(worker)
process.send?.({ stopped: worker.counts })
process.disconnect?.()
