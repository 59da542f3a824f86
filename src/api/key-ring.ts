/**
 * Looks keys up and remembers them for a few seconds, the unknown ones too. Those that are asked for at the same time share a
 * query, and one is under way at a time: whoever tries keys out costs the database one connection.
 */
import { timingSafeEqual } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { hashKey, idOfKey, type KeptKey, type Key, type Keys } from './keys.ts'
import { Problem } from './problems.ts'

/** A revocation holds in every process after this. */
export const REMEMBERED_MS = 5_000
const REMEMBERED_MAX = 10_000
const LOOKUP_MAX = 1_000
const WAITING_MAX = 10_000
const USED_EVERY_MS = 60_000

interface Waiter {
  resolve: (kept: KeptKey | null) => void
  reject: (error: unknown) => void
}

export class KeyRing {
  readonly #keys: Pick<Keys, 'find' | 'used'>
  readonly #remembered = new LRUCache<string, { kept: KeptKey | null; until: number }>({
    max: REMEMBERED_MAX,
  })
  readonly #usedAt = new LRUCache<string, number>({ max: REMEMBERED_MAX })
  #waiting = new Map<string, Waiter[]>()
  #looking = false

  constructor(keys: Pick<Keys, 'find' | 'used'>) {
    this.#keys = keys
  }

  /**
   * The key of this text where it may come in; null where it may not, whatever is the matter with it.
   *
   * @throws whatever the database says where it does not answer
   */
  async open(text: string): Promise<Key | null> {
    const keyId = idOfKey(text)
    if (keyId === null) return null
    const remembered = this.#remembered.get(keyId)
    const known = remembered !== undefined && performance.now() < remembered.until
    const kept = known ? remembered.kept : await this.#find(keyId)
    if (!kept || !timingSafeEqual(kept.secretHash, hashKey(text))) return null
    this.#noteUse(keyId)
    return kept.key
  }

  /** Has it looked up anew by whoever shows it next. */
  forget(keyId: string): void {
    this.#remembered.delete(keyId)
  }

  #find(keyId: string): Promise<KeptKey | null> {
    return new Promise((resolve, reject) => {
      const waiters = this.#waiting.get(keyId)
      if (waiters) waiters.push({ resolve, reject })
      else if (this.#waiting.size >= WAITING_MAX) return reject(new Problem('overloaded'))
      else this.#waiting.set(keyId, [{ resolve, reject }])
      if (this.#looking) return
      this.#looking = true
      setImmediate(() => void this.#look())
    })
  }

  /** Never rejects. */
  async #look(): Promise<void> {
    while (this.#waiting.size > 0) {
      const asked = [...this.#waiting].slice(0, LOOKUP_MAX)
      for (const [keyId] of asked) this.#waiting.delete(keyId)
      const until = performance.now() + REMEMBERED_MS
      try {
        const found = await this.#keys.find(asked.map(([keyId]) => keyId))
        const byId = new Map(found.map(kept => [kept.key.keyId, kept]))
        for (const [keyId, waiters] of asked) {
          const kept = byId.get(keyId) ?? null
          this.#remembered.set(keyId, { kept, until })
          for (const { resolve } of waiters) resolve(kept)
        }
      } catch (error) {
        for (const [, waiters] of asked) for (const { reject } of waiters) reject(error)
      }
    }
    this.#looking = false
  }

  /** It is for people who look for keys that nobody needs any more; where it cannot be kept, nothing is lost. */
  #noteUse(keyId: string): void {
    const now = performance.now()
    if (now < (this.#usedAt.get(keyId) ?? 0)) return
    this.#usedAt.set(keyId, now + USED_EVERY_MS)
    this.#keys.used(keyId).catch(() => {})
  }
}
