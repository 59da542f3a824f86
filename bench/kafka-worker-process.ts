/** A worker of the bench through Kafka, as a process of its own, that does nothing but succeed. */
import { createWorker, runWorkerUntilSignal } from '../src/sdk/worker.ts'
import type { Way } from './kafka.ts'

const [way, type, url, brokers] = process.argv.slice(2) as [Way, string, string, string]
const kafka = {
  brokers: brokers.split(','),
  confirm: way === 'unanswered' ? ('none' as const) : ('api' as const),
}
await runWorkerUntilSignal(
  createWorker({
    url,
    ...(way === 'http' ? {} : { kafka }),
    worker: `bench-${way}`,
    concurrency: 200,
    types: { [type]: () => ({ width: 1024, height: 768, bytes: 734_003 }) },
  }),
)
