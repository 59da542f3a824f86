/**
 * All streams of this process: how many there may be, the timer that keeps them alive, and their end. One timer for all:
 * it writes to those that were silent, and cuts those that take nothing.
 */
import type { FastifyReply } from 'fastify'
import { bearer } from '../access.ts'
import type { AppParts } from '../parts.ts'
import { Problem } from '../problems.ts'
import { EventStream } from './event-stream.ts'
import { BEGINNING, end, PING } from './messages.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Its answer goes on and on. */
    stream?: true
  }
}

const STREAMS_MAX = 10_000
const TICK_MS = 1_000
/** How often keys are looked at again. */
const KEY_TICKS = 5
/** Proxies cut what is silent for a minute. */
const SILENCE_MS = 15_000
/** Clients of a service that stops come back over this time, not all at once. */
const RETRY_MS = { least: 1_000, most: 5_000 }

export interface StreamOwner {
  /** Nothing more can be sent. */
  left(): void
  /** What is sent after a silence; a ping where there is nothing to say. */
  keepAlive?(): Buffer | null
}

/** The right to open one stream. */
export interface Admission {
  /** Answers the request with a stream; the headers set on the reply so far are sent. */
  open(reply: FastifyReply, owner: StreamOwner): EventStream
  /** It came to nothing. Safe to call twice, and after the stream has ended. */
  leave(): void
}

export class Streams {
  readonly #parts: Pick<AppParts, 'metrics' | 'ring' | 'logger'>
  readonly #max: number
  readonly #open = new Map<EventStream, { owner: StreamOwner; key: string | null }>()
  #admitted = 0
  #timer: NodeJS.Timeout | null = null
  #stopped = false
  #ticks = 0

  constructor(parts: Pick<AppParts, 'metrics' | 'ring' | 'logger'>, max = STREAMS_MAX) {
    this.#parts = parts
    this.#max = max
  }

  /** @throws Problem too_many_streams */
  admit(): Admission {
    if (this.#admitted >= this.#max) throw new Problem('too_many_streams')
    this.#admitted++
    let left = false
    const leave = () => {
      if (left) return
      left = true
      this.#admitted--
    }
    return { leave, open: (reply, owner) => this.#begin(reply, owner, leave) }
  }

  /** Ends all of them with a hint when to come back; safe to call twice. */
  stop(): void {
    this.#stopped = true
    for (const stream of this.#open.keys()) stream.end(goodbye())
  }

  #begin(reply: FastifyReply, owner: StreamOwner, leave: () => void): EventStream {
    const { metrics } = this.#parts
    metrics.requested(reply.request.routeOptions.url ?? null, 'GET', 200, reply.elapsedTime / 1_000)
    metrics.opened('stream', 1)
    const stream: EventStream = new EventStream(
      reply,
      () => owner.left(),
      () => {
        metrics.opened('stream', -1)
        leave()
        this.#open.delete(stream)
        if (this.#open.size === 0) this.#rest()
      },
    )
    this.#open.set(stream, { owner, key: bearer(reply.request.headers.authorization) })
    this.#timer ??= setInterval(() => this.#tick(), TICK_MS).unref()
    stream.send(BEGINNING)
    if (this.#stopped) stream.end(goodbye())
    return stream
  }

  #tick(): void {
    const now = performance.now()
    for (const [stream, { owner }] of this.#open) {
      stream.cutIfStalled(now)
      if (now - stream.sentAt >= SILENCE_MS) stream.send(owner.keepAlive?.() ?? PING)
    }
    if (++this.#ticks % KEY_TICKS === 0) void this.#refuseRevoked()
  }

  /** A key opens for as long as it is valid, however long its stream lasts. */
  async #refuseRevoked(): Promise<void> {
    const keys = new Set([...this.#open.values()].flatMap(({ key }) => key ?? []))
    for (const key of keys) {
      // While keys cannot be asked for, what is open stays open.
      const isValid = await this.#parts.ring.open(key).then(
        known => known !== null,
        () => true,
      )
      if (isValid) continue
      for (const [stream, of] of this.#open) if (of.key === key) stream.end(end('key_refused'))
    }
  }

  #rest(): void {
    if (this.#timer) clearInterval(this.#timer)
    this.#timer = null
  }
}

const goodbye = (): Buffer =>
  end('shutting_down', RETRY_MS.least + Math.floor(Math.random() * (RETRY_MS.most - RETRY_MS.least + 1)))
