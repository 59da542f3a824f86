/**
 * The newest events that this process appended, for followers in the same process: what was just written need not
 * be read again. A convenience only; whatever is not here is read from the log.
 */
import { type Checkpoint, READ_LIMITS, type StoredEvent } from '../event-log.ts'

const LIMITS = { events: 4 * READ_LIMITS.events, bytes: 2 * READ_LIMITS.bytes } as const

/** An event with a place in this run of positions. */
interface Kept {
  position: bigint
  event: StoredEvent
}

/** A run of events without gaps; another process's append, which is not seen here, begins a new one. */
export class Tail {
  #kept: Kept[] = []
  #bytes = 0
  #followers = 0

  /** Nothing is kept while nobody follows. */
  follow(): () => void {
    this.#followers++
    return () => {
      if (--this.#followers === 0) this.clear()
    }
  }

  get followed(): boolean {
    return this.#followers > 0
  }

  /** Events of one committed call, in the order of their positions, without gaps. */
  add(events: readonly StoredEvent[]): void {
    const first = events[0]
    if (!first || !this.followed) return
    const position = BigInt(first.position)
    const end = this.#kept.at(-1)?.position
    if (end !== undefined && position <= end) {
      // Two calls were under way and the later one answered first; what begins here is read from the log. If it
      // is the log that went backwards, the same read shows it.
      this.clear()
      return
    }
    if (end !== undefined && position !== end + 1n) this.clear()
    for (const [index, event] of events.entries()) {
      this.#kept.push({ position: position + BigInt(index), event })
      this.#bytes += bytesOf(event)
    }
    this.#trim()
  }

  /** What is known of the log is in doubt: its server was gone, or another may have taken its place. */
  clear(): void {
    this.#kept = []
    this.#bytes = 0
  }

  /** A page of the events after a checkpoint; null where this run does not reach back to it, or not beyond it. */
  after(last: Checkpoint): StoredEvent[] | null {
    const first = this.#kept[0]
    if (!first) return null
    const index = Number(BigInt(last.position) - first.position)
    if (index < 0 || index >= this.#kept.length - 1) return null
    if (this.#kept[index]!.event.id !== last.eventId) return null
    const page: StoredEvent[] = []
    let bytes = 0
    for (let at = index + 1; at < this.#kept.length && page.length < READ_LIMITS.events; at++) {
      const { event } = this.#kept[at]!
      bytes += bytesOf(event)
      if (page.length > 0 && bytes > READ_LIMITS.bytes) break
      page.push(event)
    }
    return page
  }

  #trim(): void {
    // In steps: to take from the front of an array costs its length.
    if (this.#kept.length <= LIMITS.events && this.#bytes <= LIMITS.bytes) return
    let from = 0
    let bytes = this.#bytes
    while (
      from < this.#kept.length - 1 &&
      (this.#kept.length - from > LIMITS.events / 2 || bytes > LIMITS.bytes / 2)
    )
      bytes -= bytesOf(this.#kept[from++]!.event)
    this.#kept = this.#kept.slice(from)
    this.#bytes = bytes
  }
}

/** In characters: a bound, not a measure. */
const bytesOf = ({ data, metadata }: StoredEvent): number => data.length + metadata.length
