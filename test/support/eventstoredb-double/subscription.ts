/**
 * Subscriptions. One of the whole log is in one of two modes:
 *
 * - catching up: it reads pages from its place to the end of the log; with a filter it sends a checkpoint whenever the
 *   interval has passed, and one at the end; then it says that it has caught up and is
 * - live: it sends what is stored, and with a filter a checkpoint whenever the interval has passed. When the client
 *   takes too slowly and more waits than the server would hold, it catches up again.
 *
 * It never writes more than the client takes: what waits, waits in the log.
 */
import { randomUUID } from 'node:crypto'
import { type CallError, callErrors } from './errors.ts'
import type { EventFilter } from './filters.ts'
import {
  caughtUpAnswer,
  checkpointAnswer,
  confirmationAnswer,
  type Place,
  type ReadAnswer,
} from './messages.ts'
import type { NodeState, OpenSubscription } from './node-state.ts'
import { PAGE_EVENTS, type ReadCall } from './read.ts'
import type { StoredEvent } from './store.ts'

/** Live events that the server holds for a client that is slow. */
const LIVE_EVENTS_MAX = 32
/** Events looked at before others have their turn. */
const TURN_EVENTS = 1_024

type AnswerOf = (event: StoredEvent) => ReadAnswer

/** What all subscriptions have in common: sending while the client takes, waking when something was stored. */
abstract class Subscription implements OpenSubscription {
  protected readonly node: NodeState
  protected readonly answerOf: AnswerOf
  /** The client took no more for a while. */
  protected slow = false
  readonly #call: ReadCall
  readonly #stopListening: () => void
  #ended = false
  #silent = false
  #full = false
  #scheduled = false

  constructor(node: NodeState, call: ReadCall, answerOf: AnswerOf) {
    this.node = node
    this.answerOf = answerOf
    this.#call = call
    this.#stopListening = node.store.onAppended(() => this.schedule())
    node.subscriptions.add(this)
    call.on('cancelled', () => this.#close())
    call.on('drain', () => {
      this.#full = false
      this.slow = true
      this.schedule()
    })
    this.write(confirmationAnswer(randomUUID()))
    this.schedule()
  }

  /** Goes on as far as the client takes; a part of it when there is much. @returns whether there is more now */
  protected abstract advance(): boolean

  protected get mayWrite(): boolean {
    return !this.#full && !this.#ended
  }

  protected write(answer: ReadAnswer): void {
    if (this.#ended || this.#silent) return
    if (!this.#call.write(answer)) this.#full = true
  }

  /** Once a turn of the event loop, however much was stored in it. */
  protected schedule(): void {
    if (this.#scheduled || this.#ended) return
    this.#scheduled = true
    setImmediate(() => {
      this.#scheduled = false
      this.node.faults.whenRunning(() => {
        if (this.mayWrite && this.advance()) this.schedule()
      })
    })
  }

  silence(): void {
    this.#silent = true
  }

  checkpoint(position: bigint): void {
    this.write(checkpointAnswer({ commit: position, prepare: position }))
  }

  end(error: CallError | null): void {
    if (this.#ended) return
    this.#close()
    if (error) this.#call.emit('error', error)
    else this.#call.end()
  }

  #close(): void {
    this.#ended = true
    this.#stopListening()
    this.node.subscriptions.delete(this)
  }
}

class AllSubscription extends Subscription {
  readonly #filter: EventFilter
  readonly #checkpoints: boolean
  readonly #windowEvents: number
  readonly #intervalEvents: number
  #mode: 'catching up' | 'live'
  /** Index of the next record to look at. */
  #next: number
  /** The last place that was sent, of an event or a checkpoint. */
  #place: Place
  #lastCheckpoint: Place | null = null
  /** Events looked at since the last checkpoint was due. */
  #considered = 0
  /** Of the page that is being read: where it began, what was looked at and what was found. */
  #page: { start: Place; considered: number; found: number }

  constructor(
    node: NodeState,
    call: ReadCall,
    from: Place | 'end' | null,
    filter: EventFilter,
    checkpoints: boolean,
    answerOf: AnswerOf,
  ) {
    super(node, call, answerOf)
    const { store } = node
    const last = { commit: store.lastPosition, prepare: store.lastPosition }
    this.#filter = filter
    this.#checkpoints = checkpoints
    this.#windowEvents = filter.maxSearchWindow ?? (checkpoints ? PAGE_EVENTS : Number.POSITIVE_INFINITY)
    this.#intervalEvents = this.#windowEvents * filter.checkpointIntervalMultiplier
    this.#place = from === 'end' ? last : (from ?? { commit: -1n, prepare: -1n })
    this.#page = { start: this.#place, considered: 0, found: 0 }
    this.#next = store.indexAt(this.#place.commit)
    this.#mode = compare(this.#place, last) >= 0 ? 'live' : 'catching up'
    if (this.#mode === 'live') this.write(caughtUpAnswer())
  }

  protected advance(): boolean {
    const { records } = this.node.store
    if (this.slow && this.#mode === 'live' && records.length - this.#next > LIVE_EVENTS_MAX)
      this.#fallBehind()
    this.slow = false
    for (let turn = 0; turn < TURN_EVENTS && this.mayWrite; turn++) {
      if (this.#mode === 'catching up' && this.#pageIsFull()) this.#endPage()
      const event = records[this.#next]
      if (!event) {
        if (this.#mode === 'live') return false
        this.#goLive()
        continue
      }
      this.#next++
      this.#look(event)
    }
    return this.mayWrite
  }

  #look(event: StoredEvent): void {
    const place = { commit: event.position, prepare: event.position }
    // A place that a client made up may lie behind what is stored after it.
    if (compare(place, this.#place) <= 0) return
    const found = this.#filter.allows(event)
    if (found) {
      this.write(this.answerOf(event))
      this.#place = place
    }
    if (this.#mode === 'catching up') {
      this.#page.considered++
      if (found) this.#page.found++
      return
    }
    this.#considered++
    if (!this.#checkpoints || this.#considered < this.#intervalEvents) return
    this.#considered = 0
    this.#sendCheckpoint(place)
  }

  #pageIsFull(): boolean {
    return this.#page.found >= PAGE_EVENTS || this.#page.considered >= this.#windowEvents
  }

  #endPage(): void {
    const { start, considered } = this.#page
    this.#considered += considered
    if (this.#checkpoints && this.#considered >= this.#intervalEvents) {
      this.#considered %= this.#intervalEvents
      this.#sendCheckpoint(compare(this.#place, start) < 0 ? start : this.#place)
    }
    // The next page begins behind the record that was looked at last: at the end of that, without a prepare.
    const end = this.node.store.records[this.#next - 1]?.end
    this.#page = { start: end === undefined ? start : { commit: end, prepare: 0n }, considered: 0, found: 0 }
  }

  #goLive(): void {
    const { start } = this.#page
    if (this.#checkpoints) this.#sendCheckpoint(compare(this.#place, start) < 0 ? start : this.#place)
    this.#mode = 'live'
    this.#considered = 0
    this.write(caughtUpAnswer())
  }

  /** The server tells nobody, but a checkpoint is sent, and later it has caught up again. */
  #fallBehind(): void {
    if (this.#checkpoints) this.#sendCheckpoint(this.#place)
    this.#mode = 'catching up'
    this.#page = { start: this.#place, considered: 0, found: 0 }
  }

  #sendCheckpoint(place: Place): void {
    this.#place = place
    if (place.commit < 0n || (this.#lastCheckpoint && compare(place, this.#lastCheckpoint) <= 0)) return
    this.#lastCheckpoint = place
    this.write(checkpointAnswer(place))
  }
}

class StreamSubscription extends Subscription {
  readonly #name: string
  #next: bigint
  #caughtUp = false

  constructor(
    node: NodeState,
    call: ReadCall,
    name: string,
    from: bigint | 'end' | null,
    answerOf: AnswerOf,
  ) {
    super(node, call, answerOf)
    this.#name = name
    this.#next = from === 'end' ? node.store.lastRevision(name) + 1n : from === null ? 0n : from + 1n
  }

  protected advance(): boolean {
    const stream = this.node.store.stream(this.#name)
    if (stream === 'tombstoned') {
      this.end(callErrors.streamDeleted(this.#name))
      return false
    }
    const events = stream?.events ?? []
    if (stream && this.#next < stream.min) this.#next = stream.min
    for (let turn = 0; turn < TURN_EVENTS && this.mayWrite; turn++) {
      const event = events[Number(this.#next)]
      if (!event) {
        if (!this.#caughtUp) this.write(caughtUpAnswer())
        this.#caughtUp = true
        return false
      }
      this.#next++
      this.write(this.answerOf(event))
    }
    return this.mayWrite
  }
}

export function subscribeToAll(
  node: NodeState,
  call: ReadCall,
  from: Place | 'end' | null,
  filter: EventFilter,
  checkpoints: boolean,
  answerOf: AnswerOf,
): CallError | null {
  const { store } = node
  if (from !== null && from !== 'end' && from.commit < store.lastPosition && !store.isBoundary(from.commit))
    return callErrors.invalidPosition()
  new AllSubscription(node, call, from, filter, checkpoints, answerOf)
  return null
}

export function subscribeToStream(
  node: NodeState,
  call: ReadCall,
  name: string,
  from: bigint | 'end' | null,
  answerOf: AnswerOf,
): CallError | null {
  if (node.store.stream(name) === 'tombstoned') return callErrors.streamDeleted(name)
  new StreamSubscription(node, call, name, from, answerOf)
  return null
}

function compare(one: Place, other: Place): number {
  if (one.commit !== other.commit) return one.commit < other.commit ? -1 : 1
  if (one.prepare !== other.prepare) return one.prepare < other.prepare ? -1 : 1
  return 0
}
