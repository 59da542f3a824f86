/**
 * Task types as values of a label. A type is a user's word, and every value of a label costs memory here and in
 * whatever scrapes it: so many get a value of their own, the others share one.
 */

/** What the types without a value of their own share. */
export const OTHER = 'other'

export class TypeLabels {
  readonly #most: number
  readonly #own: Set<string>

  /**
   * @param configured types that have a value of their own whatever their number
   * @param most types with a value of their own; beyond the configured ones the first that come
   */
  constructor(configured: Iterable<string>, most = 100) {
    this.#most = most
    this.#own = new Set(configured)
  }

  of(type: string): string {
    if (this.#own.has(type)) return type
    if (this.#own.size >= this.#most) return OTHER
    this.#own.add(type)
    return type
  }
}
