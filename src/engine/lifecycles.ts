/**
 * The lifecycle definitions in force and those of older tasks. TaskSubmitted pins a definition by its hash; the
 * definition itself is kept in the log, in a stream of its own, so that a task can be decided for as long as it
 * lives, whatever the configuration says by then.
 */
import { createHash, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { canonicalJson } from '../domain/canonical-json.ts'
import type { Json, LifecycleRef } from '../domain/events.ts'
import { type LifecycleDefinition, STANDARD_LIFECYCLE, storedLifecycleSchema } from '../domain/lifecycle.ts'
import type { Append, EventLog } from '../eventlog/event-log.ts'

/** A definition's identity: name, version and SHA-256 of its canonical JSON. */
export function lifecycleRef(definition: LifecycleDefinition): LifecycleRef {
  // A checked definition is JSON; its type says optional where JSON leaves keys out.
  const hash = createHash('sha256')
    .update(canonicalJson(definition as unknown as Json))
    .digest('hex')
  return { name: definition.name, version: definition.version, hash }
}

const streamOfLifecycle = (hash: string): string => `lifecycle-${hash}`

const registration = (ref: LifecycleRef, definition: LifecycleDefinition): Append => ({
  stream: streamOfLifecycle(ref.hash),
  expected: 'no_stream',
  events: [
    {
      id: randomUUID(),
      type: 'LifecycleRegistered',
      version: 1,
      data: JSON.stringify({ definition }),
      metadata: JSON.stringify({}),
    },
  ],
})

/** The log does not hold the definition that a task was submitted with. */
export class UnknownLifecycleError extends Error {
  readonly code = 'unknown_lifecycle'
}

const PAUSE_MS = { first: 100, longest: 2_000 }

export class Lifecycles {
  readonly #log: EventLog
  readonly #byHash = new Map<string, LifecycleDefinition>()
  readonly #byName = new Map<string, LifecycleRef>()
  /** Those that may not be in the log yet. */
  readonly #unstored: Append[] = []
  #storing: Promise<void> | null = null
  #background: AbortController | null = null

  /** Registers the standard lifecycle and the configured ones; the log is not asked for anything yet. */
  constructor(log: EventLog, configured: readonly LifecycleDefinition[] = []) {
    this.#log = log
    for (const definition of [STANDARD_LIFECYCLE, ...configured]) {
      const ref = lifecycleRef(definition)
      this.#byHash.set(ref.hash, definition)
      this.#byName.set(ref.name, ref)
      this.#unstored.push(registration(ref, definition))
    }
  }

  /**
   * Registers and stores them.
   *
   * @throws LogUnavailableError when the log cannot be reached
   */
  static async open(log: EventLog, configured: readonly LifecycleDefinition[] = []): Promise<Lifecycles> {
    const lifecycles = new Lifecycles(log, configured)
    await lifecycles.store()
    return lifecycles
  }

  /** Whether every configured definition is in the log, so that tasks may pin it. */
  get stored(): boolean {
    return this.#unstored.length === 0
  }

  /**
   * Stores the definitions that the log does not have yet. Who asks while that is under way shares its outcome.
   *
   * @throws LogUnavailableError when the log cannot be reached; it may be asked again
   * @throws Error when the log refuses a definition for good
   */
  store(): Promise<void> {
    this.#storing ??= this.#store().finally(() => {
      this.#storing = null
    })
    return this.#storing
  }

  async #store(): Promise<void> {
    while (!this.stored) {
      const [result] = await this.#log.appendMany(this.#unstored.slice(0, 1))
      // A conflict says that it is there already: the stream's name is the hash of its content.
      if (result?.kind === 'rejected')
        throw new Error(`${this.#unstored[0]!.stream} cannot be stored in the log: ${result.message}`)
      this.#unstored.shift()
    }
  }

  /** Stores them in the background, trying again until it is done: a service may start before its log does. */
  start(logger: Logger): void {
    if (this.#background) return
    this.#background = new AbortController()
    void this.#keepStoring(logger, this.#background.signal)
  }

  /** Tries no more. What is under way ends with the log. */
  stop(): void {
    this.#background?.abort()
  }

  async #keepStoring(logger: Logger, signal: AbortSignal): Promise<void> {
    for (let pauseMs = PAUSE_MS.first; ; pauseMs = Math.min(pauseMs * 2, PAUSE_MS.longest)) {
      try {
        await this.store()
        return logger.info({ logId: this.#log.id }, 'the log holds the definitions of the lifecycles')
      } catch (error) {
        // While the log is away there is one line of it here; readiness says it all the time.
        if (pauseMs === PAUSE_MS.first && !signal.aborted)
          logger.warn({ err: error }, 'the lifecycles cannot be stored; no task is accepted until they are')
      }
      await sleep(pauseMs, undefined, { signal }).catch(() => undefined)
      if (signal.aborted) return
    }
  }

  /** The configured lifecycle of this name, null where there is none. */
  named(name: string): LifecycleRef | null {
    return this.#byName.get(name) ?? null
  }

  /** The definition at once, null where it has to be read first. */
  known(ref: LifecycleRef): LifecycleDefinition | null {
    return this.#byHash.get(ref.hash) ?? null
  }

  /**
   * Reads a definition that is not configured any more from the log, so that it is known.
   *
   * @throws UnknownLifecycleError where the log does not have it
   */
  async fetch(ref: LifecycleRef): Promise<void> {
    const { events } = await this.#log.readStream(streamOfLifecycle(ref.hash), 0, 1)
    const stored = events[0]
    if (!stored)
      throw new UnknownLifecycleError(`lifecycle ${ref.name} ${ref.version} (${ref.hash}) is not in the log`)
    const parsed = storedLifecycleSchema.safeParse(
      (JSON.parse(stored.data) as { definition: unknown }).definition,
    )
    if (!parsed.success || lifecycleRef(parsed.data).hash !== ref.hash)
      throw new UnknownLifecycleError(
        `lifecycle ${ref.name} ${ref.version} in the log is not what its hash says`,
      )
    this.#byHash.set(ref.hash, parsed.data)
  }
}
