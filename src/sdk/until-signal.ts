/** Ties a worker to the signals of its process. */
import type { Worker } from './worker.ts'

const SIGNALS = ['SIGTERM', 'SIGINT'] as const

/**
 * Starts the worker and resolves when it has stopped: by a SIGTERM or SIGINT, or because its `stop` was called.
 * The second signal cuts the drain short, the third is left to Node, which ends the process.
 */
export async function runWorkerUntilSignal(worker: Worker): Promise<void> {
  let signals = 0
  const onSignal = () => {
    signals++
    if (signals > 1) release()
    void worker.stop(signals > 1 ? { drainMs: 0 } : {})
  }
  const release = () => {
    for (const signal of SIGNALS) process.off(signal, onSignal)
  }
  for (const signal of SIGNALS) process.on(signal, onSignal)
  try {
    worker.start()
    await worker.stopped
  } finally {
    release()
  }
}
