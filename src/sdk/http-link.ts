/** A worker's link over HTTP alone: claims, reports, heartbeats. */
import type {
  Beat,
  BeatResult,
  HeartbeatAnswer,
  ReportResult,
  ReportsAnswer,
} from '../api/schemas/workers.ts'
import { Claims } from './claims.ts'
import { RollcallError } from './errors.ts'
import type { Http } from './http.ts'
import type { Link, Report, SourcePort, TaskSource } from './link.ts'
import { Outage } from './outage.ts'
import type { WorkerSettings } from './worker-options.ts'

const REPORT_TIMEOUT_MS = 15_000

export class HttpLink implements Link {
  readonly #http: Http
  readonly #settings: WorkerSettings

  constructor(http: Http, settings: WorkerSettings) {
    this.#http = http
    this.#settings = settings
  }

  source(port: SourcePort): TaskSource {
    return new Claims(this.#http, this.#settings, port, new Outage(this.#settings, 'claiming'))
  }

  async report(reports: readonly Report[], signal: AbortSignal): Promise<ReportResult[]> {
    const members = reports.map(({ json }) => json).join(',')
    const { results } = await this.#http.call<ReportsAnswer>({
      method: 'POST',
      path: '/v1/workers/report',
      body: `{"worker":${JSON.stringify(this.#settings.worker)},"reports":[${members}]}`,
      timeoutMs: REPORT_TIMEOUT_MS,
      signal,
    })
    if (Array.isArray(results) && results.length === reports.length) return results
    throw new RollcallError(`${reports.length} reports were sent and not as many answered.`, {
      code: 'bad_answer',
      retryable: true,
    })
  }

  beat(beats: readonly Beat[], timeoutMs: number, signal: AbortSignal): Promise<BeatResult[]> {
    return beatOverHttp(this.#http, this.#settings.worker, beats, timeoutMs, signal)
  }

  async close(): Promise<void> {}
}

/** Heartbeats in one request. */
export async function beatOverHttp(
  http: Http,
  worker: string,
  beats: readonly Beat[],
  timeoutMs: number,
  signal: AbortSignal,
): Promise<BeatResult[]> {
  const { results } = await http.call<HeartbeatAnswer>({
    method: 'POST',
    path: '/v1/workers/heartbeat',
    body: JSON.stringify({ worker, beats }),
    timeoutMs,
    signal,
  })
  if (Array.isArray(results)) return results
  throw new RollcallError('Heartbeats were sent and not answered.', { code: 'bad_answer', retryable: true })
}
