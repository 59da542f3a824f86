/** Numbers from a seed: the same ones everywhere, in the order in which they are drawn. */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed >>> 0
  }

  /** In [0, 1). Mulberry32: small, and good enough to choose by. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }

  between(from: number, to: number): number {
    return from + this.next() * (to - from)
  }

  /** A whole number, both bounds included. */
  whole(from: number, to: number): number {
    return Math.floor(this.between(from, to + 1))
  }

  chance(probability: number): boolean {
    return this.next() < probability
  }

  pick<T>(from: readonly T[]): T {
    return from[this.whole(0, from.length - 1)]!
  }

  /** The same members in another order. */
  shuffled<T>(members: readonly T[]): T[] {
    const left = [...members]
    return members.map(() => left.splice(this.whole(0, left.length - 1), 1)[0]!)
  }
}

/** Draws members in random order and begins anew when all were drawn, so that each comes up soon and evenly. */
export function bagOf<T>(random: Random, members: readonly T[]): () => T {
  let left: T[] = []
  return () => {
    if (left.length === 0) left = random.shuffled(members)
    return left.pop()!
  }
}
