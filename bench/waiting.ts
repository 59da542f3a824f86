/**
 * How soon those who wait hear of what another process took: two services on one database, commands to the one, waits and
 * streams at the other; first with few of them, then with 5,000 streams open. And what an open stream costs.
 */
import { Agent, get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { openRawStreams } from '../test/support/raw-streams.ts'
import { startBenchService } from './lifecycle.ts'
import { payload } from './load.ts'
import { type BenchResult, machine, poster, quantile, round } from './support.ts'

const WAITS = 600
const AT_ONCE = 20
const STREAMS = 50
const EVENTS = 600
const OPEN = { tasks: 4_000, filters: 1_000 }
const FANOUTS = 20
const IDLE_S = 10
/** A request has arrived and waits by then. */
const SETTLE_MS = 50

type Http = ReturnType<typeof poster>
interface Usage {
  heapBytes: number
  cpuMicros: number
}

export async function bench(): Promise<BenchResult> {
  const writer = await startBenchService()
  const waiter = await startBenchService({ databaseUrl: writer.databaseUrl, roles: ['api'] })
  const http = poster(writer.url, AT_ONCE)
  const usage = () => waiter.ask<Usage>('usage')
  try {
    // Code, connections and the plans of statements.
    await waits(http, waiter.url, 100)
    await streams(http, waiter.url, 10, 100)
    const figures: Record<string, number> = {
      ...summary('wait', await waits(http, waiter.url, WAITS)),
      ...summary('stream', await streams(http, waiter.url, STREAMS, EVENTS)),
    }
    const type = 'bench.filtered'
    const ids = await submit(http, OPEN.tasks)
    const paths = [
      ...ids.map(id => `/v1/tasks/${id}/events`),
      ...Array.from({ length: OPEN.filters }, () => `/v1/events?type=${type}`),
    ]
    const before = await usage()
    const arrivals: number[] = []
    const open = await openRawStreams(waiter.url, paths, (path, _number, at) => {
      if (path.startsWith('/v1/events')) arrivals.push(at)
    })
    const opened = await usage()
    await sleep(IDLE_S * 1_000)
    const idle = await usage()
    Object.assign(figures, {
      open_streams: open.length,
      heap_per_stream_kib: round((opened.heapBytes - before.heapBytes) / 1_024 / open.length, 2),
      open_cpu_us_per_stream: round((opened.cpuMicros - before.cpuMicros) / open.length),
      idle_cpu_percent: round((idle.cpuMicros - opened.cpuMicros) / (IDLE_S * 10_000), 2),
      ...summary('wait_with_open', await waits(http, waiter.url, WAITS)),
      ...summary('stream_with_open', await streams(http, waiter.url, STREAMS, EVENTS)),
      ...(await fanOut(http, type, arrivals)),
    })
    for (const stream of open) stream.close()
    await sleep(2_000)
    figures.heap_kept_after_close_mib = round(((await usage()).heapBytes - before.heapBytes) / 2 ** 20, 2)
    return { bench: 'waiting', machine: machine(), figures }
  } finally {
    http.close()
    await waiter.stop()
    await writer.stop()
  }
}

function summary(name: string, latencies: readonly number[]): Record<string, number> {
  return {
    [`${name}_p50_ms`]: round(quantile(latencies, 0.5), 2),
    [`${name}_p99_ms`]: round(quantile(latencies, 0.99), 2),
  }
}

async function submit({ post }: Http, count: number, type = 'bench.waiting'): Promise<string[]> {
  const ids: string[] = []
  while (ids.length < count) {
    const tasks = Array.from({ length: Math.min(500, count - ids.length) }, () => ({ type, payload }))
    const { body } = await post('/v1/tasks/batch', { tasks })
    ids.push(...(body as { results: { taskId: string }[] }).results.map(({ taskId }) => taskId))
  }
  return ids
}

/** From the answer to a cancel at one service to the answer to a wait at the other; below 0 where that came first. */
async function waits(http: Http, url: string, count: number): Promise<number[]> {
  const agent = new Agent({ keepAlive: true, maxSockets: AT_ONCE })
  const latencies: number[] = []
  const ids = await submit(http, count)
  const loop = async () => {
    for (let id = ids.pop(); id !== undefined; id = ids.pop()) {
      const answered = waitFor(agent, `${url}/v1/tasks/${id}`)
      await sleep(SETTLE_MS)
      await http.post(`/v1/tasks/${id}/cancel`, {})
      const cancelledAt = performance.now()
      latencies.push((await answered) - cancelledAt)
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, loop))
  agent.destroy()
  return latencies
}

/** When it was answered. */
function waitFor(agent: Agent, url: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const sent = get(url, { agent, headers: { prefer: 'wait=30' } }, response => {
      const at = performance.now()
      let text = ''
      response.setEncoding('utf8').on('data', part => {
        text += part
      })
      response.on('end', () =>
        JSON.parse(text).status === 'CANCELLED' ? resolve(at) : reject(new Error(`answered ${text}`)),
      )
    })
    sent.on('error', reject)
  })
}

/** From the answer to a note at one service to its message on a stream of the other. */
async function streams(http: Http, url: string, count: number, events: number): Promise<number[]> {
  const ids = await submit(http, count)
  const arrived = new Map<string, (at: number) => void>()
  const open = await openRawStreams(
    url,
    ids.map(id => `/v1/tasks/${id}/events`),
    (path, number, at) => arrived.get(`${path} ${number}`)?.(at),
  )
  const latencies: number[] = []
  let left = events
  const loop = async (id: string) => {
    for (let revision = 1; left-- > 0; revision++) {
      const told = new Promise<number>(resolve => {
        arrived.set(`/v1/tasks/${id}/events ${revision}`, resolve)
      })
      await http.post(`/v1/tasks/${id}/notes`, { note: 'bench' })
      const answeredAt = performance.now()
      latencies.push((await told) - answeredAt)
      // As a person reads, not as a machine writes.
      await sleep(SETTLE_MS)
    }
  }
  await Promise.all(ids.map(loop))
  for (const stream of open) stream.close()
  return latencies
}

/** One event that all filters name: until the first and until the last of them has it. */
async function fanOut(http: Http, type: string, arrivals: number[]): Promise<Record<string, number>> {
  const [first, last]: [number[], number[]] = [[], []]
  for (let n = 0; n < FANOUTS; n++) {
    // What says where they are is no event.
    await sleep(200)
    arrivals.length = 0
    await submit(http, 1, type)
    const answeredAt = performance.now()
    while (arrivals.length < OPEN.filters) await sleep(1)
    first.push(Math.min(...arrivals) - answeredAt)
    last.push(Math.max(...arrivals) - answeredAt)
  }
  return {
    fan_out_streams: OPEN.filters,
    fan_out_first_p50_ms: round(quantile(first, 0.5), 2),
    fan_out_last_p50_ms: round(quantile(last, 0.5), 2),
  }
}
