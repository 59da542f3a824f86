/**
 * What a service counts, for Prometheus. Each service has a registry of its own, so that several can live in one
 * process; what is the process's own is gathered once. docs/operations.md lists every metric.
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import type { Command, CommandEnvelope } from '../domain/commands.ts'
import { TIMEOUT_TIMERS } from '../domain/lifecycle.ts'
import type { Answer } from '../engine/answer.ts'
import { DispatchMetrics } from './dispatch-metrics.ts'
import { type GaugesOptions, RollCallGauges, type RollCallSource } from './roll-call-gauges.ts'
import { StatusMetrics } from './status-metrics.ts'
import { TransitionCounter } from './transition-counter.ts'
import { TypeLabels } from './type-labels.ts'

export interface MetricsOptions {
  /** Task types that are configured: they always have a label of their own. */
  types: Iterable<string>
  /** Where the gauges come from; null for a process without the read model. */
  rollCall: RollCallSource | null
  gauges?: GaugesOptions
}

/** From a cached answer to a long poll of 30 s. */
const SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]

type Observe = (seconds: number) => void

export class Metrics {
  readonly contentType: string
  /** What the dispatcher tells. */
  readonly dispatch: DispatchMetrics
  /** What the publisher of task statuses tells. */
  readonly status: StatusMetrics
  readonly #scraped: Registry
  readonly #transitions: TransitionCounter
  readonly #refusals: Counter<'trigger' | 'code'>
  readonly #dropped: Counter
  readonly #open: Record<'wait' | 'stream', Gauge>
  readonly #accessRefused: Counter<'code' | 'scope'>
  readonly #estimates: Counter<'quantile' | 'held'>
  readonly #commandSeconds: Histogram<'trigger'>
  readonly #requestSeconds: Histogram<'route' | 'method' | 'status'>
  /** prom-client looks a label's value up by a text it makes each time; children that are kept need no new ones. */
  readonly #ofTrigger = new Map<string, Observe>()
  readonly #ofRoute = new Map<string, Observe>()
  readonly #gauges: RollCallGauges | null

  constructor({ types, rollCall, gauges }: MetricsOptions) {
    const registry = new Registry()
    const registers = [registry]
    const labels = new TypeLabels(types)
    this.#transitions = new TransitionCounter(registry, labels)
    this.#refusals = new Counter({
      name: 'rollcall_refusals_total',
      help: 'Refused commands by trigger and code.',
      labelNames: ['trigger', 'code'],
      registers,
    })
    this.#dropped = new Counter({
      name: 'rollcall_refusals_dropped_total',
      help: 'Refusals that were counted but not kept beside their task, because the database did not take them in time.',
      registers,
    })
    this.#open = {
      wait: new Gauge({ name: 'rollcall_waits_open', help: 'Requests that wait for a task.', registers }),
      stream: new Gauge({
        name: 'rollcall_streams_open',
        help: 'Streams of events that are open.',
        registers,
      }),
    }
    this.#accessRefused = new Counter({
      name: 'rollcall_access_refused_total',
      help: 'Requests answered 401 or 403, by code and by the scope that they take.',
      labelNames: ['code', 'scope'],
      registers,
    })
    this.#estimates = new Counter({
      name: 'rollcall_estimates_total',
      help: 'Tasks of which it was said how long they would take, and that ended: whether within it.',
      labelNames: ['quantile', 'held'],
      registers,
    })
    this.#commandSeconds = new Histogram({
      name: 'rollcall_command_seconds',
      help: 'From a command being asked to its answer.',
      labelNames: ['trigger'],
      buckets: SECONDS,
      registers,
    })
    this.#requestSeconds = new Histogram({
      name: 'rollcall_http_request_seconds',
      help: 'HTTP requests by route, method and status; claims include their long poll, of a stream it is its beginning.',
      labelNames: ['route', 'method', 'status'],
      buckets: SECONDS,
      registers,
    })
    this.dispatch = new DispatchMetrics(registry)
    this.status = new StatusMetrics(registry)
    this.#gauges = rollCall && new RollCallGauges(registry, labels, rollCall, gauges)
    this.#scraped = Registry.merge([registry, processRegistry()])
    this.contentType = this.#scraped.contentType
  }

  /** Counts an answer of the engine. */
  answered({ command }: CommandEnvelope, answer: Answer, ms: number): void {
    const trigger = triggerLabel(command)
    let observe = this.#ofTrigger.get(trigger)
    if (!observe) {
      observe = this.#commandSeconds.labels(trigger).observe
      this.#ofTrigger.set(trigger, observe)
    }
    observe(ms / 1_000)
    if (answer.kind === 'accepted')
      this.#transitions.count(answer.task.type, answer.from ?? 'none', answer.task.status, trigger)
    else if (answer.kind === 'refused') this.#refusals.inc({ trigger, code: answer.code })
  }

  /** Counts an HTTP answer. `route` is a pattern such as `/v1/tasks/:id`, null where no route took the request. */
  requested(route: string | null, method: string, status: number, seconds: number): void {
    // What strangers ask for has no end of paths and methods.
    const labels = {
      route: route ?? 'none',
      method: route === null ? 'none' : method,
      status: String(status),
    }
    const key = `${labels.method} ${labels.route} ${labels.status}`
    let observe = this.#ofRoute.get(key)
    if (!observe) {
      observe = this.#requestSeconds.labels(labels).observe
      this.#ofRoute.set(key, observe)
    }
    observe(seconds)
  }

  /** Counts the requests that wait, and the streams that are open. */
  opened(what: 'wait' | 'stream', change: 1 | -1): void {
    this.#open[what].inc(change)
  }

  /** Counts a request that was refused for who asked. */
  accessRefused(code: string, scope: string): void {
    this.#accessRefused.inc({ code, scope })
  }

  /** Counts whether a task was final by the time that was said of it. */
  estimateSettled(quantile: 'p50' | 'p90', held: boolean): void {
    this.#estimates.inc({ quantile, held: String(held) })
  }

  refusalsDropped(count: number): void {
    this.#dropped.inc(count)
  }

  /** Everything as text. It never fails for the database's sake: what cannot be read is left out. */
  async scrape(): Promise<string> {
    await this.#gauges?.refresh()
    return this.#scraped.metrics()
  }
}

const TIMEOUT_LABELS = Object.fromEntries(TIMEOUT_TIMERS.map(timer => [timer, `TIMEOUT:${timer}`]))

/** A timeout is named by its timer. */
const triggerLabel = (command: Command): string =>
  command.trigger === 'TIMEOUT' ? TIMEOUT_LABELS[command.timer]! : command.trigger

let ofProcess: Registry | null = null

/** CPU, memory, event loop, garbage collection: of the process, whatever number of services it runs. */
function processRegistry(): Registry {
  if (!ofProcess) {
    ofProcess = new Registry()
    collectDefaultMetrics({ register: ofProcess })
  }
  return ofProcess
}
