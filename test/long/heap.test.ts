/** Nightly: the service's heap after a collection is flat between the 20,000th and the 200,000th task. */
import t from 'tap'
import { runWorkers, startBenchService } from '../../bench/lifecycle.ts'
import { poster } from '../../bench/support.ts'

const FIRST = 20_000
const LAST = 200_000
const BATCH = 500
/** How many may be open at once: less than what the clients could pile up. */
const OPEN_MAX = 4 * BATCH
const TOLERANCE = 0.1
const LIMIT_MS = 30 * 60_000
const MIB = 2 ** 20

t.test('heap after a collection is flat', { timeout: LIMIT_MS }, async t => {
  const service = await startBenchService()
  const { post, close } = poster(service.url, 16)
  let done = 0
  const waiting: { count: number; resolve: () => void }[] = []
  const crew = runWorkers(post, 3, () => {
    done++
    for (const one of waiting.splice(0))
      if (done >= one.count) one.resolve()
      else waiting.push(one)
  })
  const doneBy = (count: number) =>
    done >= count
      ? Promise.resolve()
      : new Promise<void>(resolve => {
          waiting.push({ count, resolve })
        })
  const submission = { type: 'bench.task', payload: { prompt: 'a lighthouse on a cliff', width: 1024 } }

  let submitted = 0
  const submitUpTo = async (count: number): Promise<void> => {
    for (; submitted < count; submitted += BATCH) {
      await doneBy(submitted - OPEN_MAX)
      const { status } = await post('/v1/tasks/batch', { tasks: Array(BATCH).fill(submission) })
      if (status !== 200) throw new Error(`a batch was answered ${status}`)
    }
    await doneBy(count)
  }
  const heapMiB = async (): Promise<number> =>
    (await service.ask<{ heapBytes: number }>('usage')).heapBytes / MIB

  try {
    await submitUpTo(FIRST)
    const first = await heapMiB()
    await submitUpTo(LAST)
    const last = await heapMiB()
    t.comment(`after ${FIRST} tasks ${first.toFixed(1)} MiB, after ${LAST} tasks ${last.toFixed(1)} MiB`)
    t.ok(Math.abs(last - first) <= first * TOLERANCE, `${first.toFixed(1)} MiB, then ${last.toFixed(1)} MiB`)
  } finally {
    await crew.stop()
    close()
    await service.stop()
  }
})
