/** What the dispatcher counts. Its types are those of the configuration file, so each has a label of its own. */
import { Counter, Gauge, type Registry } from 'prom-client'
import type { DispatchObserver } from '../workers/dispatcher.ts'

export class DispatchMetrics implements DispatchObserver {
  readonly #dispatched: Counter<'type'>
  readonly #failures: Counter<'type' | 'reason'>
  readonly #outstanding: Gauge<'type'>

  constructor(registry: Registry) {
    const registers = [registry]
    this.#dispatched = new Counter({
      name: 'rollcall_dispatched_total',
      help: 'Messages that offer a task to workers, as taken by the broker; a task can be offered again.',
      labelNames: ['type'],
      registers,
    })
    this.#failures = new Counter({
      name: 'rollcall_dispatch_failures_total',
      help: 'Times the broker did not answer (unavailable) or would not take a message or topic (refused).',
      labelNames: ['type', 'reason'],
      registers,
    })
    this.#outstanding = new Gauge({
      name: 'rollcall_dispatch_outstanding',
      help: 'Tasks on their way through the broker, not seen started, as of the last look of this process.',
      labelNames: ['type'],
      registers,
    })
  }

  dispatched(type: string, count: number): void {
    this.#dispatched.inc({ type }, count)
  }

  failed(type: string, reason: 'unavailable' | 'refused'): void {
    this.#failures.inc({ type, reason })
  }

  outstanding(type: string, count: number): void {
    this.#outstanding.set({ type }, count)
  }
}
