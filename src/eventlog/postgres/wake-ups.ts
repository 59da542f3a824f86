/**
 * Tells followers that there may be something new: those of this process at once, those of others by NOTIFY.
 * A hint only, and allowed to be lost: followers poll anyway.
 *
 * NOTIFY takes a lock that serializes every notifying commit of the server, so it is sent after the append's
 * commit, outside of it, one at a time, and at most once per `NOTIFY_INTERVAL_MS` however much is appended.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { BaseLogger } from 'pino'
import { within } from '../within.ts'
import { type Connections, destroy } from './connections.ts'

const CHANNEL = 'rollcall_log'
const NOTIFY_INTERVAL_MS = 20
/** A listening connection is silent by nature; only asking it shows that it died. */
const PING_INTERVAL_MS = 10_000
const PING_TIMEOUT_MS = 5_000
const RECONNECT_MS = { min: 100, max: 5_000 }

export class WakeUps {
  /** Rises with every hint; a follower that sees it unchanged after reading may wait. */
  count = 0
  readonly #waiting = new Set<() => void>()
  /** Marks our own notifications, which followers here need not be told again. */
  readonly #origin = randomUUID()
  readonly #connections: Connections
  readonly #listenerConfig: pg.ClientConfig
  readonly #logger: BaseLogger | undefined
  readonly #closed = new AbortController()
  #notifying = false
  #notifyAgain = false
  #listening: Promise<void> | null = null

  constructor(connections: Connections, listenerConfig: pg.ClientConfig, logger: BaseLogger | undefined) {
    this.#connections = connections
    this.#listenerConfig = listenerConfig
    this.#logger = logger
  }

  /** Something was appended by this process. */
  appended(): void {
    this.#wake()
    this.#notifyAgain = true
    if (!this.#notifying) void this.#notify()
  }

  /** Hears from other processes from now on, until closed. */
  listen(): void {
    this.#listening ??= this.#listen()
  }

  /** Resolves at the next hint, after the time, or when the signal is aborted. */
  wait(timeoutMs: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return Promise.resolve()
    return new Promise(resolve => {
      const done = () => {
        clearTimeout(timer)
        this.#waiting.delete(done)
        signal.removeEventListener('abort', done)
        resolve()
      }
      const timer = setTimeout(done, timeoutMs)
      this.#waiting.add(done)
      signal.addEventListener('abort', done)
    })
  }

  async close(): Promise<void> {
    this.#closed.abort()
    await this.#listening
  }

  #wake(): void {
    this.count++
    for (const wake of [...this.#waiting]) wake()
  }

  async #notify(): Promise<void> {
    this.#notifying = true
    while (this.#notifyAgain && !this.#closed.signal.aborted) {
      this.#notifyAgain = false
      const interval = sleep(NOTIFY_INTERVAL_MS)
      const statement = { name: 'notify', text: 'SELECT pg_notify($1, $2)', values: [CHANNEL, this.#origin] }
      await this.#connections.run(statement).catch(() => {})
      await interval
    }
    this.#notifying = false
  }

  async #listen(): Promise<void> {
    const { signal } = this.#closed
    for (let delayMs: number = RECONNECT_MS.min; !signal.aborted; ) {
      const heardMs = await this.#listenOnce()
      delayMs = heardMs > RECONNECT_MS.max ? RECONNECT_MS.min : Math.min(delayMs * 2, RECONNECT_MS.max)
      await sleep(delayMs, undefined, { signal }).catch(() => {})
    }
  }

  /** Listens on one connection until it ends; how long that was. */
  async #listenOnce(): Promise<number> {
    const startedAt = performance.now()
    const { signal } = this.#closed
    const client = new pg.Client(this.#listenerConfig)
    const ended = new AbortController()
    const end = () => ended.abort()
    client.on('error', end)
    client.on('end', end)
    client.on('notification', ({ payload }) => {
      if (payload !== this.#origin) this.#wake()
    })
    // Also while it connects or asks: closing must not wait for a network that hangs.
    const cut = () => {
      end()
      destroy(client)
    }
    signal.addEventListener('abort', cut)
    try {
      await client.connect()
      await within(PING_TIMEOUT_MS, client.query(`LISTEN ${CHANNEL}`), 'listen')
      // Whatever was appended before LISTEN took effect.
      this.#wake()
      while (!ended.signal.aborted) {
        await sleep(PING_INTERVAL_MS, undefined, { signal: ended.signal }).catch(() => {})
        if (!ended.signal.aborted) await within(PING_TIMEOUT_MS, client.query('SELECT 1'), 'ping')
      }
    } catch (error) {
      this.#logger?.debug({ err: error }, 'the connection that listens for appends ended')
    }
    signal.removeEventListener('abort', cut)
    destroy(client)
    return performance.now() - startedAt
  }
}
