/** What several benches need: the machine, quantiles, a light HTTP client, the CPU of a process tree. */
import { readdirSync, readFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { arch, cpus, platform, totalmem } from 'node:os'

export interface BenchResult {
  bench: string
  machine: { cpu: string; cores: number; memoryGiB: number; node: string; platform: string }
  figures: Record<string, number>
}

export function machine(): BenchResult['machine'] {
  return {
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: cpus().length,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    node: process.version,
    platform: `${platform()} ${arch()}`,
  }
}

/** @param share 0 to 1, of values in any order */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN
}

export const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length
export const median = (values: readonly number[]): number => quantile(values, 0.5)
export const round = (value: number, digits = 1): number => Number(value.toFixed(digits))

/** Sends JSON over kept connections, with as little as possible of the bench's own in the figure. */
export function poster(base: string, connections: number) {
  const { hostname, port } = new URL(base)
  const agent = new Agent({ keepAlive: true, maxSockets: connections })
  const send = (method: string, path: string, text: string): Promise<{ status: number; body: unknown }> =>
    new Promise((resolve, reject) => {
      const sent = request(
        {
          agent,
          hostname,
          port,
          path,
          method,
          headers: text
            ? { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }
            : {},
        },
        response => {
          const parts: Buffer[] = []
          response.on('data', part => parts.push(part))
          response.on('end', () => {
            resolve({
              status: response.statusCode ?? 0,
              body: JSON.parse(Buffer.concat(parts).toString('utf8')),
            })
          })
          response.on('error', reject)
        },
      )
      sent.on('error', reject)
      sent.end(text)
    })
  return {
    post: (path: string, body: unknown) => send('POST', path, JSON.stringify(body)),
    get: (path: string) => send('GET', path, ''),
    close: () => agent.destroy(),
  }
}

const TICKS_PER_SECOND = 100

/** CPU seconds used so far by a process and all its descendants that still live (Linux). */
export function treeCpuSeconds(pid: number): number {
  const parents = new Map<number, { parent: number; ticks: number }>()
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8')
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
      // Children that have ended are in their parent's cutime and cstime.
      const ticks = [11, 12, 13, 14].reduce((sum, index) => sum + Number(fields[index]), 0)
      parents.set(Number(name), { parent: Number(fields[1]), ticks })
    } catch {
      // It ended while we looked.
    }
  }
  let ticks = 0
  for (const [candidate, { ticks: own }] of parents) {
    let at: number | undefined = candidate
    while (at !== undefined && at !== pid) at = parents.get(at)?.parent
    if (at === pid) ticks += own
  }
  return ticks / TICKS_PER_SECOND
}
