/**
 * The log in memory: a real adapter with the rules of the port, for tests and simulation. Nothing outlives
 * the object.
 */
import { randomUUID } from 'node:crypto'
import { checkAppends, eventBytes } from '../check-append.ts'
import {
  type Append,
  type AppendResult,
  type Checkpoint,
  type EventLog,
  FOLLOW_IDLE_MS,
  LogSealedError,
  LogUnavailableError,
  LogWentBackwardsError,
  READ_LIMITS,
  type StoredEvent,
  type StreamSlice,
} from '../event-log.ts'

export interface MemoryEventLogOptions {
  /** Identity of the log; a new one when absent. */
  id?: string
  /** For whoever copies another log into this one: appends although it is sealed. */
  pastSeal?: boolean
}

export function createMemoryEventLog(options: MemoryEventLogOptions = {}): EventLog {
  return new MemoryEventLog(options.id ?? randomUUID(), options.pastSeal ?? false)
}

class MemoryEventLog implements EventLog {
  readonly id: string
  /** The event at position p stands at index p - 1. */
  readonly #events: StoredEvent[] = []
  readonly #streams = new Map<string, StoredEvent[]>()
  /** Followers that wait at the end. */
  readonly #waiting = new Set<() => void>()
  readonly #pastSeal: boolean
  #movedTo: string | null = null
  #closed = false

  constructor(id: string, pastSeal: boolean) {
    this.id = id
    this.#pastSeal = pastSeal
  }

  async appendMany(appends: readonly Append[]): Promise<AppendResult[]> {
    const rejections = checkAppends(appends)
    this.#assertOpen()
    if (this.#movedTo !== null && !this.#pastSeal) throw new LogSealedError(this.id, this.#movedTo)
    const before = this.#events.length
    const results = appends.map((append, index) => rejections[index] ?? this.#append(append))
    if (this.#events.length > before) this.#wake()
    return results
  }

  async readStream(stream: string, fromRevision: number, limit: number): Promise<StreamSlice> {
    this.#assertOpen()
    const all = this.#streams.get(stream) ?? []
    const events = page(all, fromRevision, Math.min(limit, READ_LIMITS.events))
    const next = fromRevision + events.length
    return { events, next: next < all.length ? next : null }
  }

  async readStreams(
    streams: readonly { stream: string; fromRevision: number }[],
  ): Promise<Map<string, StoredEvent[]>> {
    this.#assertOpen()
    const found = new Map<string, StoredEvent[]>()
    for (const { stream, fromRevision } of streams) {
      const events = this.#streams.get(stream)?.slice(fromRevision)
      if (events?.length) found.set(stream, events)
    }
    return found
  }

  async follow(
    from: Checkpoint | null,
    onBatch: (batch: readonly StoredEvent[]) => Promise<void>,
    signal: AbortSignal,
  ): Promise<void> {
    this.#assertOpen()
    let handled = from === null ? 0 : this.#indexOf(from) + 1
    while (!signal.aborted && !this.#closed) {
      const batch = page(this.#events, handled, READ_LIMITS.events)
      if (batch.length === 0 && (await this.#moreOrIdle(signal))) continue
      if (signal.aborted || this.#closed) return
      await onBatch(batch)
      handled += batch.length
    }
  }

  async head(): Promise<Checkpoint | null> {
    this.#assertOpen()
    const last = this.#events.at(-1)
    return last ? { logId: this.id, position: last.position, eventId: last.id } : null
  }

  async countAfter(from: Checkpoint | null, limit: number): Promise<number> {
    this.#assertOpen()
    const handled = from === null ? 0 : this.#indexOf(from) + 1
    return Math.min(limit, this.#events.length - handled)
  }

  async seal(movedTo: string | null): Promise<void> {
    this.#assertOpen()
    this.#movedTo = movedTo
  }

  async sealedFor(): Promise<string | null> {
    this.#assertOpen()
    return this.#movedTo
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#wake()
  }

  #append({ stream, expected, events }: Append): AppendResult {
    const stored = this.#streams.get(stream) ?? []
    const head = stored.length - 1
    const same = (at: number) => events.every((event, index) => stored[at + index]?.id === event.id)
    const at =
      expected === 'any'
        ? stored.findLastIndex(event => event.id === events[0]?.id)
        : (expected === 'no_stream' ? -1 : expected) + 1
    const last = stored[at + events.length - 1]
    if (at >= 0 && last && same(at))
      return { kind: 'appended', revision: last.revision, position: last.position }
    const free = expected === 'any' ? at === -1 : at === stored.length
    if (!free) return { kind: 'conflict', actual: head === -1 ? null : head }
    for (const event of events) {
      const { id, type, version, data, metadata } = event
      const position = String(this.#events.length + 1)
      const entry = { id, type, version, data, metadata, stream, revision: stored.length, position }
      this.#events.push(Object.freeze(entry))
      stored.push(entry)
    }
    this.#streams.set(stream, stored)
    return { kind: 'appended', revision: stored.length - 1, position: String(this.#events.length) }
  }

  /** Waits at the end of the log; true when there may be more, false when it is time for an idle call. */
  #moreOrIdle(signal: AbortSignal): Promise<boolean> {
    return new Promise(resolve => {
      const done = (more: boolean) => {
        clearTimeout(timer)
        this.#waiting.delete(wake)
        signal.removeEventListener('abort', wake)
        resolve(more)
      }
      const wake = () => done(true)
      const timer = setTimeout(() => done(false), FOLLOW_IDLE_MS)
      this.#waiting.add(wake)
      signal.addEventListener('abort', wake)
    })
  }

  #indexOf(checkpoint: Checkpoint): number {
    const index = Number(checkpoint.position) - 1
    if (checkpoint.logId !== this.id)
      throw new LogWentBackwardsError(`the checkpoint is of log ${checkpoint.logId}, this is ${this.id}`)
    if (this.#events[index]?.id !== checkpoint.eventId)
      throw new LogWentBackwardsError(
        `event ${checkpoint.eventId} is not at position ${checkpoint.position} of log ${this.id}`,
      )
    return index
  }

  #wake(): void {
    for (const wake of [...this.#waiting]) wake()
  }

  #assertOpen(): void {
    if (this.#closed) throw new LogUnavailableError('the log is closed')
  }
}

/** Events from an index on, bounded by count and bytes; at least one where there is one. */
function page(events: readonly StoredEvent[], from: number, limit: number): StoredEvent[] {
  let end = from
  for (let bytes = 0; end < events.length && end - from < limit && bytes < READ_LIMITS.bytes; end++)
    bytes += eventBytes(events[end]!)
  return events.slice(from, end)
}
