/**
 * One stream of Server-Sent Events: what a client does not take in time waits here, bounded by count and by bytes. Beyond
 * that nothing more is kept for it: it is told to begin anew as soon as it takes something, and cut where it does not.
 *
 * Written to the response itself, since the plugins for this write without a bound and have a timer for each stream.
 * `hijack` keeps Fastify from answering; what other hooks have set as headers is sent all the same.
 *
 * Modes: open -> slow (too much waits) -> ended -> closed; each may be left out.
 */
import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { FastifyReply } from 'fastify'
import { resync } from './messages.ts'

export const STREAM_LIMITS = { messages: 1_000, bytes: 256 * 1024 } as const
/** A client that takes nothing for so long is cut. */
const STALLED_MS = 30_000
/** How long the past of the log waits for one that comes back: others wait for their turn. */
const ROOM_MS = 5_000

export class EventStream {
  readonly #raw: ServerResponse
  readonly #onLeft: () => void
  readonly #onClosed: () => void
  #mode: 'open' | 'slow' | 'ended' | 'closed' = 'open'
  #waiting: Buffer[] = []
  #waitingBytes = 0
  #blockedSince: number | null = null
  #room: (() => void) | null = null
  /** When something was sent last, by `performance.now()`. */
  sentAt = performance.now()

  /**
   * @param onLeft called once, when nothing more can be sent
   * @param onClosed called once, when its connection is gone
   */
  constructor(reply: FastifyReply, onLeft: () => void, onClosed: () => void) {
    this.#raw = reply.raw
    this.#onLeft = onLeft
    this.#onClosed = onClosed
    reply.hijack()
    const raw = reply.raw
    raw.on('drain', () => this.#drained())
    raw.on('close', () => this.#close())
    // Whoever is gone does not take what is written to it; its close says so.
    raw.on('error', () => {})
    raw.writeHead(200, {
      ...(reply.getHeaders() as OutgoingHttpHeaders),
      'content-type': 'text/event-stream',
      'cache-control': 'no-cache, no-transform',
      'x-accel-buffering': 'no',
      // Its end is the end of the connection, so that a service that stops need not wait for it (PITFALLS H1).
      connection: 'close',
    })
    // Whoever had gone before has closed it already.
    if (raw.destroyed) queueMicrotask(() => this.#close())
  }

  /** Whether anything can still be sent. */
  get isOpen(): boolean {
    return this.#mode === 'open'
  }

  send(message: Buffer): void {
    if (this.#mode !== 'open') return
    if (this.#blockedSince === null) {
      this.#write(message)
      return
    }
    this.#waiting.push(message)
    this.#waitingBytes += message.length
    if (this.#waiting.length > STREAM_LIMITS.messages || this.#waitingBytes > STREAM_LIMITS.bytes)
      this.overflow()
  }

  /**
   * Resolves when what is sent next need not wait here, or nothing can be sent any more: a client that takes nothing for a
   * while is too slow for whoever waits for it.
   */
  room(): Promise<void> {
    if (this.#mode !== 'open' || this.#blockedSince === null) return Promise.resolve()
    return new Promise(resolve => {
      const late = setTimeout(() => this.overflow(), ROOM_MS)
      this.#room = () => {
        clearTimeout(late)
        resolve()
      }
    })
  }

  /** More has come than is kept for it. */
  overflow(): void {
    if (this.#mode !== 'open') return
    this.#waiting = []
    this.#waitingBytes = 0
    if (this.#blockedSince === null) this.end(resync('slow'))
    else {
      this.#mode = 'slow'
      this.#leave()
    }
  }

  /** The last message. What waits goes before it. */
  end(message: Buffer): void {
    if (this.#mode === 'ended' || this.#mode === 'closed') return
    const wasOpen = this.#mode === 'open'
    this.#mode = 'ended'
    this.#flush()
    this.#raw.end(message)
    this.#blockedSince ??= performance.now()
    if (wasOpen) this.#leave()
  }

  /** Cuts it where its client takes nothing. */
  cutIfStalled(now: number): void {
    if (this.#blockedSince !== null && now - this.#blockedSince > STALLED_MS) this.cut()
  }

  cut(): void {
    this.#raw.destroy()
  }

  #write(message: Buffer): void {
    this.sentAt = performance.now()
    if (!this.#raw.write(message)) this.#blockedSince ??= this.sentAt
  }

  #drained(): void {
    this.#blockedSince = null
    if (this.#mode === 'slow') this.end(resync('slow'))
    else this.#flush()
    if (this.#blockedSince === null) this.#hasRoom()
  }

  #flush(): void {
    const messages = this.#waiting
    this.#waiting = []
    this.#waitingBytes = 0
    // One write to the socket for all of them.
    if (messages.length > 0) this.#write(Buffer.concat(messages))
  }

  #close(): void {
    if (this.#mode === 'closed') return
    const wasOpen = this.#mode === 'open'
    this.#mode = 'closed'
    this.#waiting = []
    if (wasOpen) this.#leave()
    this.#onClosed()
  }

  #leave(): void {
    this.#hasRoom()
    this.#onLeft()
  }

  #hasRoom(): void {
    this.#room?.()
    this.#room = null
  }
}
