/**
 * Who the log is, and whether it is sealed: a stream of its own beside those of the log.
 *
 * EventStoreDB cannot be told to take no more appends to many streams. So a process appends only while its last look at
 * this stream is fresh; who seals the log waits until every such look has grown old and what was sent on it has been
 * answered or given up.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { type Append, LogSealedError, LogUnavailableError, LogWentBackwardsError } from '../event-log.ts'
import type { Outcome } from './batch-append.ts'
import type { Reader } from './read.ts'

const createdSchema = z.object({ id: z.uuid() })
const sealedSchema = z.object({ movedTo: z.string().min(1).nullable() })
const TRIES = 5

export interface IdentityOptions {
  reader: Reader
  /** Appends to the identity's own stream, by the name it has there. */
  append: (append: Append) => Promise<Outcome>
  /** How long a look allows to append. */
  freshMs: number
  /** How long an append may be under way. */
  appendTimeoutMs: number
  /** For whoever copies another log into this one: appends although it is sealed. */
  pastSeal: boolean
}

export class Identity {
  readonly #options: IdentityOptions
  #id: string | null = null
  #movedTo: string | null = null
  /** When the last look began. */
  #lookedAt = Number.NEGATIVE_INFINITY
  #looking: Promise<void> | null = null

  constructor(options: IdentityOptions) {
    this.#options = options
  }

  /** @throws LogUnavailableError before the first look */
  get id(): string {
    if (this.#id === null) throw new LogUnavailableError('the log has not been reached yet')
    return this.#id
  }

  /** Makes sure that the id is known. */
  async known(): Promise<string> {
    if (this.#id === null) await this.look()
    return this.id
  }

  /**
   * Makes sure that this process may append.
   *
   * @returns until when, by performance.now(), an answer counts: a later one may be of an append that came after a seal
   * @throws LogSealedError
   */
  async assertOpen(): Promise<number> {
    const age = performance.now() - this.#lookedAt
    if (age >= this.#options.freshMs) await this.look()
    // The next one comes before this one is old, so that appends seldom wait for it.
    else if (age >= this.#options.freshMs / 2) this.look().catch(() => {})
    if (this.#options.pastSeal) return Number.POSITIVE_INFINITY
    if (this.#movedTo !== null) throw new LogSealedError(this.id, this.#movedTo)
    return this.#lookedAt + this.#options.freshMs + this.#options.appendTimeoutMs
  }

  /**
   * Looks now; a log without an identity gets one.
   *
   * @throws LogWentBackwardsError when another log has taken its place; LogUnavailableError
   */
  look(): Promise<void> {
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null
    })
    return this.#looking
  }

  async sealedFor(): Promise<string | null> {
    await this.look()
    return this.#movedTo
  }

  async seal(movedTo: string | null): Promise<void> {
    const { append, reader, freshMs, appendTimeoutMs } = this.#options
    await this.known()
    for (let tries = 0; ; tries++) {
      const last = await reader.lastOf(reader.names.identity)
      if (!last) throw new LogWentBackwardsError(`log ${this.id} has no identity any more`)
      if (movedToOf(last) === movedTo) break
      const outcome = await append({
        stream: reader.names.identity,
        expected: last.revision,
        events: [event('LogSealed', { movedTo })],
      })
      if (outcome.kind === 'appended') break
      if (outcome.kind === 'rejected' || tries === TRIES)
        throw new LogUnavailableError(
          `log ${this.id} could not be sealed: ${outcome.kind === 'rejected' ? outcome.message : 'others seal it too'}`,
        )
    }
    // Asked again after a stop the seal may be new to others all the same, so this waits every time.
    if (movedTo !== null) await sleep(freshMs + appendTimeoutMs)
    await this.look()
  }

  async #look(): Promise<void> {
    const { reader } = this.#options
    const beganAt = performance.now()
    const [first, last] = await Promise.all([
      reader.firstOf(reader.names.identity),
      reader.lastOf(reader.names.identity),
    ])
    const created = first ? createdSchema.safeParse(parse(first.data)) : null
    if (created && !created.success)
      throw new LogWentBackwardsError(`${reader.names.identity} does not begin with the identity of a log`)
    const id = created?.data.id ?? (await this.#create())
    if (this.#id !== null && id !== this.#id)
      throw new LogWentBackwardsError(
        `log ${this.#id} is not what was followed: log ${id} has taken its place`,
      )
    this.#id = id
    this.#movedTo = last ? movedToOf(last) : null
    this.#lookedAt = beganAt
  }

  /** @returns the id, which may be that of another process that was quicker */
  async #create(): Promise<string> {
    const { append, reader } = this.#options
    if (this.#id !== null)
      throw new LogWentBackwardsError(`log ${this.#id} has no identity any more: it was emptied or replaced`)
    const outcome = await append({
      stream: reader.names.identity,
      expected: 'no_stream',
      events: [event('LogCreated', { id: randomUUID() })],
    })
    if (outcome.kind === 'rejected')
      throw new LogUnavailableError(`no log could be created: ${outcome.message}`)
    const first = await reader.firstOf(reader.names.identity)
    const created = first && createdSchema.safeParse(parse(first.data))
    if (!created?.success) throw new LogUnavailableError('the identity of the log cannot be read yet')
    return created.data.id
  }
}

function movedToOf(last: { type: string; data: string }): string | null {
  return last.type === 'LogSealed' ? (sealedSchema.safeParse(parse(last.data)).data?.movedTo ?? null) : null
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return null
  }
}

const event = (type: string, data: object): Append['events'][number] => ({
  id: randomUUID(),
  type,
  version: 1,
  data: JSON.stringify(data),
  metadata: '{}',
})
