/**
 * Counts transitions. The engine answers 10,000 commands a second and more, and prom-client makes a text of the
 * labels for each increment; so counts are kept in plain cells here and handed over when they are scraped.
 */
import { Counter, type Registry } from 'prom-client'
import type { TypeLabels } from './type-labels.ts'

interface Cell {
  labels: { type: string; from: string; to: string; trigger: string }
  count: number
}

export class TransitionCounter {
  readonly #types: TypeLabels
  readonly #cells: Cell[] = []
  /** By type, status before, status after, trigger: all of them short, so maps of maps cost no new texts. */
  readonly #byType = new Map<string, Map<string, Map<string, Map<string, Cell>>>>()

  constructor(registry: Registry, types: TypeLabels) {
    this.#types = types
    const cells = this.#cells
    new Counter({
      name: 'rollcall_transitions_total',
      help: 'Accepted commands by task type, status before and after, and trigger.',
      labelNames: ['type', 'from', 'to', 'trigger'],
      registers: [registry],
      collect() {
        for (const cell of cells) {
          if (cell.count > 0) this.inc(cell.labels, cell.count)
          cell.count = 0
        }
      },
    })
  }

  count(type: string, from: string, to: string, trigger: string): void {
    const label = this.#types.of(type)
    const cell = this.#byType.get(label)?.get(from)?.get(to)?.get(trigger)
    if (cell) cell.count++
    else this.#add(label, from, to, trigger)
  }

  #add(type: string, from: string, to: string, trigger: string): void {
    const cell = { labels: { type, from, to, trigger }, count: 1 }
    this.#cells.push(cell)
    const inner = <V>(map: Map<string, Map<string, V>>, key: string): Map<string, V> => {
      const found = map.get(key) ?? new Map<string, V>()
      map.set(key, found)
      return found
    }
    inner(inner(inner(this.#byType, type), from), to).set(trigger, cell)
  }
}
