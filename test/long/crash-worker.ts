/** A worker of a crash run, as a process of its own: `crash-worker.ts <url> <name>`. What it does is in the payload. */
import { setTimeout as sleep } from 'node:timers/promises'
import {
  createWorker,
  type HandlerContext,
  PermanentError,
  runWorkerUntilSignal,
  type Task,
} from '../../src/sdk/worker.ts'
import type { CrashPayload } from './crash-runs.ts'

const [url = '', name = ''] = process.argv.slice(2)
const quiet = () => {}

const worker = createWorker({
  url,
  worker: name,
  concurrency: 8,
  drainMs: 1_000,
  logger: { debug: quiet, info: quiet, warn: quiet, error: quiet },
  types: {
    'crash.task': async (
      { payload, attempt }: Task<CrashPayload>,
      { signal, step, progress }: HandlerContext,
    ) => {
      if (payload.steps) await step('DOWNLOADING', { attempt })
      await sleep(payload.workMs, undefined, { signal })
      progress(0.5)
      if (payload.ends === 'fails' || (payload.ends === 'fails_first' && attempt === 1))
        throw new Error(`attempt ${attempt} of ${payload.number} fails, as it was told to`)
      if (payload.ends === 'fails_for_good') throw new PermanentError('there is no help')
      return { number: payload.number }
    },
  },
})

worker.start()
process.stdout.write('{"ready":true}\n')
await runWorkerUntilSignal(worker)
