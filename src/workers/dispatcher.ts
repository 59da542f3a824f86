/**
 * The dispatcher hands waiting tasks to workers through the broker, each type by itself, so that a topic that fails
 * holds up its own type alone. Any number of processes may run it: they share the window of each type.
 */
import { setMaxListeners } from 'node:events'
import type { Logger } from 'pino'
import type { Broker } from '../broker/broker.ts'
import { pause } from '../broker/deadline.ts'
import type { Engine } from '../engine/engine.ts'
import { TypeDispatcher } from './type-dispatcher.ts'
import type { WorkSignal } from './work-signal.ts'
import type { WorkState } from './work-state.ts'

/** How the tasks of a type are handed out. */
export interface DispatchSettings {
  /** Tasks on their way at once, sent and not seen started; the others wait where priority still counts. */
  maxOutstanding: number
  /** Of the type's topic, when it is made. */
  partitions: number
  /** A task that was not started for so long is offered again; twice as long each time. */
  offerHoldMs: number
}

/** Told of what becomes of the messages. */
export interface DispatchObserver {
  dispatched(type: string, count: number): void
  /** `unavailable`: the broker did not answer, what was sent may have arrived. `refused`: it will never take it. */
  failed(type: string, reason: 'unavailable' | 'refused'): void
  /** As of the last look: how many tasks of the type are on their way, from all dispatchers. */
  outstanding(type: string, count: number): void
}

export interface DispatcherOptions {
  broker: Broker
  workState: WorkState
  engine: Engine
  signal: WorkSignal
  types: Readonly<Record<string, DispatchSettings>>
  observer?: DispatchObserver
  logger: Logger
}

/** A type that fails for so long is reported: a broker that starts anew takes a few seconds. */
const REPORT_MS = 10_000
/** What is being sent at a stop gets so long. */
const STOP_MS = 3_000

export class Dispatcher {
  readonly #types: TypeDispatcher[]
  #running: { stopping: AbortController; ended: Promise<unknown> } | null = null

  constructor(options: DispatcherOptions) {
    this.#types = Object.entries(options.types).map(
      ([type, settings]) => new TypeDispatcher(type, settings, options),
    )
  }

  start(): void {
    if (this.#running) return
    const stopping = new AbortController()
    // Each type listens; Node takes more than ten for a leak.
    setMaxListeners(0, stopping.signal)
    this.#running = { stopping, ended: Promise.all(this.#types.map(type => type.run(stopping.signal))) }
  }

  /** Takes no more tasks and waits for what is being sent for a bounded time; safe to call twice. */
  async stop(): Promise<void> {
    const running = this.#running
    if (!running) return
    running.stopping.abort()
    const over = new AbortController()
    await Promise.race([running.ended, pause(STOP_MS, over.signal)])
    over.abort()
    this.#running = null
  }

  /** Not well while a type cannot be handed out. */
  health(): { ok: boolean; reason: string | null } {
    const latest = performance.now() - REPORT_MS
    const failing = this.#types.flatMap(({ type, failure }) =>
      failure && failure.since < latest ? [`${type}: ${failure.reason}`] : [],
    )
    return { ok: failing.length === 0, reason: failing.length === 0 ? null : failing.join('; ') }
  }
}
