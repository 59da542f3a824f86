/** What the publisher of task statuses counts, and how far it is behind. */
import { Counter, Gauge, type Registry } from 'prom-client'
import type { StatusObserver } from '../workers/status-publisher.ts'

export class StatusMetrics implements StatusObserver {
  /** Null where another process publishes, or none. */
  lagSeconds: () => number | null = () => null
  readonly #published: Counter
  readonly #failures: Counter<'reason'>

  constructor(registry: Registry) {
    const registers = [registry]
    this.#published = new Counter({
      name: 'rollcall_status_published_total',
      help: 'Changes of status or step that were published; after an interruption some come twice.',
      registers,
    })
    this.#failures = new Counter({
      name: 'rollcall_status_failures_total',
      help: 'Times the broker did not answer (unavailable) or would not take a change of status (refused).',
      labelNames: ['reason'],
      registers,
    })
    const lag: Gauge = new Gauge({
      name: 'rollcall_status_lag_seconds',
      help: 'How long the oldest change that is not published has been waiting; absent where this process does not publish.',
      registers,
      collect: () => {
        const seconds = this.lagSeconds()
        if (seconds === null) lag.remove()
        else lag.set(seconds)
      },
    })
  }

  published(count: number): void {
    this.#published.inc(count)
  }

  failed(reason: 'unavailable' | 'refused'): void {
    this.#failures.inc({ reason })
  }
}
