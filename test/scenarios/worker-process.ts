/**
 * A worker as a process of its own: `worker-process.ts <url> <concurrency> <drainMs>`. A task of the type
 * `scenario.work` takes `workMs` and then succeeds with its number of the attempt. It tells its parent what begins.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { createWorker, type HandlerContext, runWorkerUntilSignal, type Task } from '../../src/sdk/worker.ts'

const [url = '', concurrency = '1', drainMs = '1000'] = process.argv.slice(2)

const worker = createWorker({
  url,
  concurrency: Number(concurrency),
  drainMs: Number(drainMs),
  types: {
    'scenario.work': async (
      { taskId, attempt, payload }: Task<{ workMs: number }>,
      { signal }: HandlerContext,
    ) => {
      process.send?.({ began: taskId, attempt, clock: Date.now() })
      await sleep(payload.workMs, undefined, { signal })
      return { attempt, at: new Date().toISOString() }
    },
  },
})

await runWorkerUntilSignal(worker)
process.send?.({ counts: worker.counts })
process.disconnect?.()
