/** Which recent event stands where, bounded by bytes: the oldest is forgotten first. */
export interface Known {
  stream: string
  revision: bigint
}

/** What the server reckons for an entry besides the stream's name. */
const ENTRY_BYTES = 28

export class RecentIds {
  readonly #limitBytes: number
  readonly #known = new Map<string, Known>()
  #bytes = 0

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes
  }

  get(id: string): Known | undefined {
    return this.#known.get(id)
  }

  put(id: string, stream: string, revision: bigint): void {
    const old = this.#known.get(id)
    if (old) this.#bytes -= bytesOf(old)
    const known = { stream, revision }
    this.#known.set(id, known)
    this.#bytes += bytesOf(known)
    if (this.#bytes <= this.#limitBytes) return
    for (const [oldest, entry] of this.#known) {
      this.#known.delete(oldest)
      this.#bytes -= bytesOf(entry)
      if (this.#bytes <= this.#limitBytes) return
    }
  }

  clear(): void {
    this.#known.clear()
    this.#bytes = 0
  }
}

const bytesOf = (known: Known): number => ENTRY_BYTES + known.stream.length * 2
