/** Clients that open streams and vanish, thousands of them, of a service in a process of its own: nothing of them stays. */
import type { Test } from 'tap'
import { startBenchService } from '../../bench/lifecycle.ts'
import { poster } from '../../bench/support.ts'
import { until } from '../api/fixture.ts'
import { openRawStreams } from '../support/raw-streams.ts'

const MIB = 2 ** 20
/** What a collection leaves one time and not another. */
const NOISE_BYTES = 2 * MIB
/** A stream that stays behind holds ten times as much. */
const PER_STREAM_BYTES = 1_024

export async function vanish(t: Test, count: number, rounds: number): Promise<void> {
  const service = await startBenchService()
  const { post, close } = poster(service.url, 8)
  const metrics = async () => (await fetch(`${service.url}/metrics`)).text()
  const settled = async (): Promise<number> => {
    await until('all are gone', async () => /^rollcall_streams_open 0$/m.test(await metrics()))
    // A connection that was cut is forgotten in a turn of its own.
    await service.ask('usage')
    return (await service.ask<{ heapBytes: number }>('usage')).heapBytes
  }
  try {
    const ids: string[] = []
    while (ids.length < Math.min(count / 5, 1_000)) {
      const { body } = await post('/v1/tasks/batch', { tasks: Array(100).fill({ type: 'vanish' }) })
      ids.push(...(body as { results: { taskId: string }[] }).results.map(({ taskId }) => taskId))
    }
    const paths = Array.from({ length: count }, (_, index) =>
      index % 5 === 0
        ? `/v1/events?type=vanish&label.n=n${index % 50}`
        : `/v1/tasks/${ids[index % ids.length]}/events`,
    )
    const round = async () => {
      const streams = await openRawStreams(service.url, paths)
      const open = Number(/^rollcall_streams_open (\d+)$/m.exec(await metrics())?.[1])
      if (open !== count) throw new Error(`${open} of ${count} streams are open`)
      // Something is on its way to them when they vanish.
      await post(`/v1/tasks/${ids[0]}/notes`, { note: 'x' })
      for (const { socket } of streams) socket.resetAndDestroy()
      return settled()
    }
    // What is made once, and the caches.
    for (let warm = 0; warm < 2; warm++) await round()
    const base = await settled()
    let heap = base
    for (let time = 0; time < rounds; time++) heap = await round()
    const grown = heap - base
    t.ok(
      grown < NOISE_BYTES + rounds * count * PER_STREAM_BYTES,
      `${rounds} times ${count}: ${(base / MIB).toFixed(1)} MiB, then ${(heap / MIB).toFixed(1)} MiB`,
    )
  } finally {
    close()
    await service.stop()
  }
}
