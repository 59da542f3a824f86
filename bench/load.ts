/** The load that Rollcall and the peer are given, alike but for how many workers there are. */
import { quantile } from './support.ts'

export const TASKS = 20_000
export const CONCURRENCY = 64
export const BATCH = 500
export const STEADY = { perSecond: 200, seconds: 20 }
export const CLAIM_MAX = 100
/** Claims under way at once: so many that what is submitted finds some waiting, and the service is what is measured. */
export const WORKER_LOOPS = 32
/** So few that batches pile up. The peer's workers look again and again, so more of them would only cost it. */
export const FEW_WORKER_LOOPS = 4

export const payload = {
  prompt: 'a lighthouse on a cliff above a quiet sea, evening light, long exposure, a few birds far away',
  width: 1024,
  height: 768,
  seed: 184_467,
  style: { name: 'oil', strength: 0.7, palette: ['#102030', '#405060', '#f0e0d0'] },
}

/** Calls at a steady rate whatever comes back (open loop), and waits for the last answers. */
export async function paced(rate: typeof STEADY, call: () => Promise<void>): Promise<void> {
  const total = rate.perSecond * rate.seconds
  const began = performance.now()
  const answers: Promise<void>[] = []
  for (let sent = 0; sent < total; ) {
    const due = Math.min(total, Math.floor(((performance.now() - began) / 1000) * rate.perSecond) + 1)
    for (; sent < due; sent++) answers.push(call())
    await new Promise(resolve => setTimeout(resolve, 2))
  }
  await Promise.all(answers)
}

export interface LatencySummary {
  p50: number
  p95: number
  p99: number
}

/**
 * From the send to the end of each task, in milliseconds. The first second warms connections and code up and is
 * left out.
 *
 * @throws Error when a task has not ended
 */
export function latencySummary(
  sentAt: ReadonlyMap<string, number>,
  endedAt: ReadonlyMap<string, number>,
  began: number,
): LatencySummary {
  const open = [...sentAt.keys()].filter(id => !endedAt.has(id)).length
  if (open > 0) throw new Error(`${open} of ${sentAt.size} steady tasks have not ended`)
  const latencies = [...sentAt]
    .filter(([, at]) => at > began + 1_000)
    .map(([id, at]) => endedAt.get(id)! - at)
  return {
    p50: quantile(latencies, 0.5),
    p95: quantile(latencies, 0.95),
    p99: quantile(latencies, 0.99),
  }
}
