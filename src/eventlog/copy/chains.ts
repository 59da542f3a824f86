/**
 * Whether tasks' chains of hashes are whole, seen in the order of the log. The newest hashes of the streams that moved
 * last are kept, about 15 MB at most; an event of another stream has its predecessor read.
 */
import { hashEvent, taskIdOf } from '../codec.ts'
import type { EventLog, StoredEvent } from '../event-log.ts'
import { type Patience, patiently } from './patience.ts'

const KEPT_MAX = 50_000
const READS_AT_ONCE = 16
const NAMED_MAX = 20

export interface BrokenChain {
  stream: string
  /** Of the event that does not name the hash of the one before it. */
  revision: number
}

export class Chains {
  readonly #log: EventLog
  readonly #patience: Patience
  readonly #newest = new Map<string, { revision: number; hash: string }>()
  /** Links that were looked at. */
  links = 0
  broken = 0
  /** The first of them. */
  readonly named: BrokenChain[] = []

  constructor(log: EventLog, patience: Patience) {
    this.#log = log
    this.#patience = patience
  }

  async add(events: readonly StoredEvent[], hashes: readonly string[]): Promise<void> {
    const unknown: StoredEvent[] = []
    for (const [index, event] of events.entries()) {
      const { stream, revision } = event
      if (taskIdOf(stream) === null) continue
      const before = this.#newest.get(stream)
      if (revision === 0) this.#hold(event, null)
      else if (before?.revision === revision - 1) this.#hold(event, before.hash)
      else unknown.push(event)
      // At the end of the map, so that what moved longest ago goes first.
      this.#newest.delete(stream)
      this.#newest.set(stream, { revision, hash: hashes[index]! })
    }
    for (let from = 0; from < unknown.length; from += READS_AT_ONCE)
      await Promise.all(unknown.slice(from, from + READS_AT_ONCE).map(event => this.#readAndHold(event)))
    for (const stream of this.#newest.keys()) {
      if (this.#newest.size <= KEPT_MAX) break
      this.#newest.delete(stream)
    }
  }

  async #readAndHold(event: StoredEvent): Promise<void> {
    const { events } = await patiently(this.#patience, () =>
      this.#log.readStream(event.stream, event.revision - 1, 1),
    )
    const before = events[0]
    this.#hold(event, before ? hashEvent(before.stream, before.revision, before) : undefined)
  }

  /** @param hash of the event before, null where none is, undefined where it is missing */
  #hold({ stream, revision, metadata }: StoredEvent, hash: string | null | undefined): void {
    this.links++
    if (prevHashOf(metadata) === hash) return
    this.broken++
    if (this.named.length < NAMED_MAX) this.named.push({ stream, revision })
  }
}

function prevHashOf(metadata: string): unknown {
  try {
    return (JSON.parse(metadata) as { prevHash?: unknown } | null)?.prevHash ?? null
  } catch {
    return undefined
  }
}
