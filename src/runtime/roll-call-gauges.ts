/**
 * What the read model says when it is scraped. The read is bounded in time and shared by scrapes that come
 * together; while it fails its gauges are absent, since an old number would pass for a new one.
 */
import { Gauge, type Registry } from 'prom-client'
import type { RollCallFigures } from '../projections/roll-call.ts'
import { OTHER_TYPES } from '../projections/roll-call-report.ts'
import { OTHER, type TypeLabels } from './type-labels.ts'

export type RollCallSource = () => Promise<RollCallFigures>

export interface GaugesOptions {
  /** How long a scrape waits for the read. Prometheus gives up after 10 s by default; the rest must still arrive. */
  readMs?: number
  /** How long a read is good for. */
  freshMs?: number
}

const PLAIN = {
  overdue: ['rollcall_overdue_tasks', 'Open tasks whose deadline passed longer ago than the grace.'],
  unaccounted: [
    'rollcall_unaccounted_tasks',
    'Tasks that do not answer the roll call; absent while not known.',
  ],
  setAside: ['rollcall_set_aside_tasks', 'Tasks that cannot be folded and wait for a person.'],
  drift: [
    'rollcall_drift_tasks',
    'Tasks whose rows were found to differ from their fold; absent while not known.',
  ],
  lagSeconds: ['rollcall_projection_lag_seconds', 'How far the read model is behind the log.'],
  lagEvents: ['rollcall_projection_lag_events', 'Events in the log that the read model does not have yet.'],
  deadLetters: ['rollcall_dead_letters', 'Records that cannot be handled and wait for a person.'],
} as const satisfies Partial<Record<keyof RollCallFigures, readonly [name: string, help: string]>>
type PlainFigure = keyof typeof PLAIN

export class RollCallGauges {
  readonly #read: RollCallSource
  readonly #types: TypeLabels
  readonly #tasks: Gauge<'type' | 'status'>
  readonly #plain: Record<PlainFigure, Gauge>
  readonly #reachable: Gauge
  readonly #readMs: number
  readonly #freshMs: number
  #refreshing: Promise<void> | null = null
  #refreshedAt = Number.NEGATIVE_INFINITY

  constructor(registry: Registry, types: TypeLabels, read: RollCallSource, options: GaugesOptions = {}) {
    this.#read = read
    this.#types = types
    this.#readMs = options.readMs ?? 7_000
    this.#freshMs = options.freshMs ?? 1_000
    const registers = [registry]
    this.#tasks = new Gauge({
      name: 'rollcall_tasks',
      help: 'Tasks by type and status.',
      labelNames: ['type', 'status'],
      registers,
    })
    this.#plain = Object.fromEntries(
      Object.entries(PLAIN).map(([figure, [name, help]]) => [figure, new Gauge({ name, help, registers })]),
    ) as Record<PlainFigure, Gauge>
    this.#reachable = new Gauge({
      name: 'rollcall_read_model_reachable',
      help: '1 when the gauges of the read model could be read for this scrape, else 0.',
      registers,
    })
    this.#clear()
  }

  /** Reads again unless it was done a moment ago; a read that goes on past its time is waited for by a later scrape. */
  async refresh(): Promise<void> {
    if (!this.#refreshing && performance.now() - this.#refreshedAt < this.#freshMs) return
    this.#refreshing ??= this.#refresh().finally(() => {
      this.#refreshing = null
    })
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<'late'>(resolve => {
      timer = setTimeout(() => resolve('late'), this.#readMs)
    })
    const outcome = await Promise.race([this.#refreshing, late])
    clearTimeout(timer)
    if (outcome === 'late') this.#clear()
  }

  async #refresh(): Promise<void> {
    try {
      const figures = await this.#read()
      this.#clear()
      this.#show(figures)
    } catch {
      // The scrape itself says so.
      this.#clear()
    }
    this.#refreshedAt = performance.now()
  }

  #show(figures: RollCallFigures): void {
    for (const { type, status, count } of figures.tasks)
      this.#tasks.inc({ type: type === OTHER_TYPES ? OTHER : this.#types.of(type), status }, count)
    for (const figure of Object.keys(PLAIN) as PlainFigure[]) {
      const value = figures[figure]
      if (value !== null) this.#plain[figure].set(value)
    }
    this.#reachable.set(1)
  }

  #clear(): void {
    this.#tasks.reset()
    // `reset` would say 0, which is a claim.
    for (const gauge of Object.values(this.#plain)) gauge.remove()
    this.#reachable.set(0)
  }
}
