/**
 * Wakes claims that wait when work of their type becomes ready in this process. It is a hint: a claim also
 * looks by itself at short intervals, so work that another process made ready is found as well.
 *
 * A claim that waits can have a task before it is ready: with the submit that makes it (`hand`).
 */
import { LRUCache } from 'lru-cache'
import type { PendingTask } from '../domain/task.ts'
import type { FollowUp } from '../engine/staged.ts'

/** How often work is looked for without an announcement. */
export const LOOK_MS = 500
/** Types are users' words: how many are remembered as empty. */
const EMPTY_MAX = 1_000

/** What became claimable. */
export interface Work {
  type: string
  tenant: string | null
}

/** What somebody can use: work of these types, and of this tenant alone where there is one. */
interface Wanted {
  types: ReadonlySet<string>
  tenant: string | null
}

/** Takes a task that is about to be stored, by the command that starts it. */
export type Take = (task: PendingTask) => FollowUp

interface Waiter extends Wanted {
  wants: number
  wake: () => void
  /** Null where it takes nothing that way. */
  take: Take | null
  /** It has taken some, and wakes at the end of this turn. */
  taking: boolean
}

/** A look for work. It ends by `wait` or by `end`. */
export interface Look {
  /**
   * Waits until work that the look is for is announced, the time is over or the signal is aborted; not at all where it was
   * announced since the look began.
   *
   * @param take takes up to `wants` tasks that are submitted meanwhile; with the first of them the wait ends
   */
  wait(wants: number, ms: number, signal: AbortSignal, take?: Take): Promise<void>
  /** It took all there was: until something is announced, the next look may rest. */
  foundEnd(): void
  end(): void
}

export class WorkSignal {
  readonly #waiters = new Set<Waiter>()
  /** Those that take what is handed to them, by type. */
  readonly #takers = new Map<string, Set<Waiter>>()
  readonly #looks = new Set<Wanted & { missed: boolean }>()
  /** Of what the last look took all there was, and when. */
  readonly #empty = new LRUCache<string, number>({ max: EMPTY_MAX })
  readonly #hearsAll: () => boolean

  /** @param hearsAll whether whatever becomes ready is announced here, since this process is the one that projects */
  constructor(hearsAll: () => boolean = () => false) {
    this.#hearsAll = hearsAll
  }

  /** Tells what became ready: wakes as many waiters as can use it, oldest first. */
  ready(work: readonly Work[]): void {
    const left = new Announced(work)
    for (const { type, tenant } of left.kinds()) {
      this.#empty.delete(keyOf(type, null))
      if (tenant !== null) this.#empty.delete(keyOf(type, tenant))
    }
    for (const waiter of this.#waiters) if (!waiter.taking && left.take(waiter, waiter.wants)) waiter.wake()
    // What no waiter was woken for.
    for (const look of this.#looks) if (left.has(look)) look.missed = true
  }

  /**
   * Hands a task that is about to be stored to a waiter that can use it, the oldest first.
   *
   * @returns its START, which is to be stored with the task; null where nobody waits for it
   */
  hand(task: PendingTask): FollowUp | null {
    for (const waiter of this.#takers.get(task.type) ?? []) {
      if (waiter.wants === 0 || (waiter.tenant !== null && waiter.tenant !== task.tenant)) continue
      waiter.wants--
      // What is handed out in the same turn is taken too.
      if (!waiter.taking) queueMicrotask(waiter.wake)
      waiter.taking = true
      return waiter.take!(task)
    }
    return null
  }

  /** For how long a look would find nothing, as far as is known: all was taken and nothing announced since. */
  restMs(types: readonly string[], tenant: string | null = null): number {
    if (!this.#hearsAll()) return 0
    const emptySince = (type: string): number =>
      Math.max(
        ...[null, tenant].map(whose => this.#empty.get(keyOf(type, whose)) ?? Number.NEGATIVE_INFINITY),
      )
    return Math.max(0, Math.min(...types.map(emptySince)) + LOOK_MS - performance.now())
  }

  /** Begins a look: what is announced while it is under way may have come too late for it (S74). */
  look(types: readonly string[], tenant: string | null = null): Look {
    const look = { types: new Set(types), tenant, missed: false }
    this.#looks.add(look)
    return {
      wait: async (wants, ms, signal, take) => {
        this.#looks.delete(look)
        if (!look.missed) await this.#wait(look, wants, ms, signal, take ?? null)
      },
      foundEnd: () => {
        if (!look.missed)
          for (const type of look.types) this.#empty.set(keyOf(type, tenant), performance.now())
      },
      end: () => this.#looks.delete(look),
    }
  }

  #wait(
    { types, tenant }: Wanted,
    wants: number,
    ms: number,
    signal: AbortSignal,
    take: Take | null,
  ): Promise<void> {
    return new Promise(resolve => {
      if (signal.aborted) return resolve()
      const done = (): void => {
        clearTimeout(timer)
        this.#waiters.delete(waiter)
        if (take) this.#leaveTakers(waiter)
        signal.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, ms)
      const waiter: Waiter = { types, tenant, wants, wake: done, take, taking: false }
      this.#waiters.add(waiter)
      if (take) this.#joinTakers(waiter)
      signal.addEventListener('abort', done)
    })
  }

  #joinTakers(waiter: Waiter): void {
    for (const type of waiter.types) {
      const takers = this.#takers.get(type)
      if (takers) takers.add(waiter)
      else this.#takers.set(type, new Set([waiter]))
    }
  }

  #leaveTakers(waiter: Waiter): void {
    for (const type of waiter.types) {
      const takers = this.#takers.get(type)
      takers?.delete(waiter)
      if (takers?.size === 0) this.#takers.delete(type)
    }
  }
}

/** Names have no space. */
const keyOf = (type: string, tenant: string | null): string => (tenant === null ? type : `${type} ${tenant}`)

/** How much work was announced and nobody was woken for yet. */
class Announced {
  /** By type, then by tenant. */
  readonly #counts = new Map<string, Map<string | null, number>>()

  constructor(work: readonly Work[]) {
    for (const { type, tenant } of work) {
      let ofType = this.#counts.get(type)
      if (!ofType) {
        ofType = new Map()
        this.#counts.set(type, ofType)
      }
      ofType.set(tenant, (ofType.get(tenant) ?? 0) + 1)
    }
  }

  *kinds(): Generator<Work> {
    for (const [type, ofType] of this.#counts) for (const tenant of ofType.keys()) yield { type, tenant }
  }

  has(wanted: Wanted): boolean {
    return this.#usable(wanted) !== undefined
  }

  /** @returns whether it found some */
  take(wanted: Wanted, count: number): boolean {
    const first = this.#usable(wanted)
    for (let usable = first, left = count; usable !== undefined && left > 0; usable = this.#usable(wanted)) {
      const { ofType, tenant, there } = usable
      ofType.set(tenant, Math.max(0, there - left))
      left -= there
    }
    return first !== undefined
  }

  #usable({ types, tenant }: Wanted) {
    for (const type of types) {
      const ofType = this.#counts.get(type)
      if (!ofType) continue
      for (const whose of tenant === null ? ofType.keys() : [tenant]) {
        const there = ofType.get(whose) ?? 0
        if (there > 0) return { ofType, tenant: whose, there }
      }
    }
    return undefined
  }
}
