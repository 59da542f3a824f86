/**
 * One virtual clock and one seeded scheduler for everything that happens in a simulated world. Whatever crosses a
 * boundary (a call to the log, to the tables, a message between two programs) is an operation that waits here until
 * the scheduler picks it; between any two of them the world can stand still, go on in time, or lose a process.
 */
import { type Clock, install } from '@sinonjs/fake-timers'

const realImmediate = setImmediate
/** Rounds of the real event loop in which promises and immediates that an operation set off run dry. */
const SETTLE_ROUNDS = 2
export const T0 = Date.UTC(2026, 0, 1)

/** Numbers in [0, 1) from a seed (mulberry32). */
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** How often things go wrong, each from 0 to 1; all of them are 0 once the world is calm. */
export interface Troubles {
  /** A message, or the answer to it, is lost. */
  lost: number
  /** A message arrives twice. */
  doubled: number
  /** A message arrives after a drawn delay of up to `lateMs`. */
  late: number
  /** An append or a statement fails: before it is done, after it, or it is done only after it has failed. */
  failing: number
  /** Chance, at each step, that a process of the service dies. */
  crash: number
  /** Chance, at each step, that a process stops for up to `lateMs` and goes on. */
  pause: number
}

export const CALM: Troubles = { lost: 0, doubled: 0, late: 0, failing: 0, crash: 0, pause: 0 }

/** Something that can die and come back; operations of one that is dead never end. */
export class Process {
  readonly name: string
  alive = true
  pausedUntil = 0

  constructor(name: string) {
    this.name = name
  }
}

interface Operation {
  by: Process
  run: () => void
}

/** Thrown where the world was told to stop in the middle. */
export class WorldEndedError extends Error {}

export class World {
  readonly random: () => number
  readonly clock: Clock
  troubles: Troubles
  readonly lateMs: number
  steps = 0
  /** What happened, in order. */
  readonly story: string[] = []
  #operations: Operation[] = []
  readonly #realRandom = Math.random
  readonly #stepsMax: number

  constructor(options: { seed: number; troubles: Troubles; lateMs: number; stepsMax: number }) {
    this.random = randomFrom(options.seed)
    this.troubles = options.troubles
    this.lateMs = options.lateMs
    this.#stepsMax = options.stepsMax
    this.clock = install({
      now: T0,
      // Immediates stay real: they run dry after each step.
      toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance'],
    })
    // Jitter of the parts is drawn from the seed too.
    Math.random = this.random
  }

  end(): void {
    this.#operations = []
    this.clock.uninstall()
    Math.random = this.#realRandom
  }

  get now(): number {
    return this.clock.now
  }

  chance(probability: number): boolean {
    return probability > 0 && this.random() < probability
  }

  between(least: number, most: number): number {
    return least + Math.floor(this.random() * (most - least + 1))
  }

  pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.random() * from.length)]!
  }

  tell(who: string, what: string): void {
    const at = ((this.now - T0) / 1000).toFixed(3).padStart(9)
    this.story.push(`${at} s  ${who.padEnd(9)} ${what}`)
  }

  sleep(ms: number): Promise<void> {
    return new Promise(resolve => setTimeout(resolve, ms))
  }

  /** Waits for its turn, then runs; never ends where its process died before that. */
  turn(by: Process): Promise<void> {
    return new Promise(resolve => this.#operations.push({ by, run: resolve }))
  }

  /**
   * A call to something that keeps data: may fail before it is done, after it was done, or be done later than it
   * failed. `failure` makes the error of the caller's kind.
   */
  async stored<T>(by: Process, work: () => Promise<T>, failure: () => Error): Promise<T> {
    await this.turn(by)
    if (!this.chance(this.troubles.failing)) {
      const result = await work()
      await this.turn(by)
      return result
    }
    const kind = this.pick(['before', 'after', 'later'] as const)
    if (kind === 'after') await work().catch(() => {})
    if (kind === 'later') {
      // It is on its way whatever becomes of its process.
      const courier = new Process('courier')
      void this.sleep(this.between(1, this.lateMs)).then(async () => {
        await this.turn(courier)
        await work().catch(() => {})
      })
    }
    await this.sleep(this.between(1, 1_000))
    await this.turn(by)
    throw failure()
  }

  /**
   * A message to another program and its answer; null where either was lost, which the sender notices after
   * `timeoutMs`.
   */
  async ask<T>(
    from: Process,
    to: () => Process,
    timeoutMs: number,
    work: () => Promise<T>,
  ): Promise<T | null> {
    await this.turn(from)
    const target = to()
    const outcome = new Promise<T | null>(resolve => {
      setTimeout(() => resolve(null), timeoutMs)
      const deliver = async (): Promise<void> => {
        if (this.chance(this.troubles.late)) await this.sleep(this.between(1, this.lateMs))
        await this.turn(target)
        if (this.chance(this.troubles.lost)) return
        const answer = await work().catch(error => {
          if (!this.#isForeseen(error)) throw error
          return null
        })
        await this.turn(target)
        if (answer !== null && !this.chance(this.troubles.lost)) resolve(answer)
      }
      const failed = (error: unknown): void => this.fail(error)
      void deliver().catch(failed)
      if (this.chance(this.troubles.doubled)) void deliver().catch(failed)
    })
    const answer = await outcome
    await this.turn(from)
    return answer
  }

  /** An error of a kind that the parts document; anything else is a bug and ends the world. */
  #isForeseen(error: unknown): boolean {
    return error instanceof Error && 'code' in error
  }

  #failed: unknown = null
  fail(error: unknown): void {
    this.#failed ??= error
  }

  /** Lets the world go on, one step after the other, until `done` says so. */
  async run(done: () => boolean, disturb: () => void): Promise<void> {
    for (;;) {
      await this.#settle()
      if (this.#failed !== null) throw this.#failed
      if (done()) return
      if (++this.steps > this.#stepsMax)
        throw new WorldEndedError(`nothing came to an end within ${this.#stepsMax} steps`)
      disturb()
      this.#step()
    }
  }

  /** Picks one operation that can go on, or lets time pass to the next timer. */
  #step(): void {
    this.#operations = this.#operations.filter(({ by }) => by.alive)
    const able = this.#operations.filter(({ by }) => by.pausedUntil <= this.now)
    // Time passes also while something waits for its turn: that is how it comes to be late.
    if (able.length === 0 || this.random() < 0.05) {
      const before = this.now
      this.clock.next()
      if (able.length > 0 || this.now > before) return
      const paused = this.#operations.map(({ by }) => by.pausedUntil)
      if (this.clock.countTimers() === 0 && paused.length > 0) this.clock.tick(Math.min(...paused) - this.now)
      return
    }
    const chosen = this.pick(able)
    this.#operations.splice(this.#operations.indexOf(chosen), 1)
    chosen.run()
  }

  async #settle(): Promise<void> {
    for (let round = 0; round < SETTLE_ROUNDS; round++) await new Promise(resolve => realImmediate(resolve))
  }
}
