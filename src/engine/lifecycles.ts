/**
 * The lifecycle definitions in force and those of older tasks. TaskSubmitted pins a definition by its hash; the
 * definition itself is kept in the log, in a stream of its own, so that a task can be decided for as long as it
 * lives, whatever the configuration says by then.
 */
import { createHash, randomUUID } from 'node:crypto'
import { canonicalJson } from '../domain/canonical-json.ts'
import type { Json, LifecycleRef } from '../domain/events.ts'
import { type LifecycleDefinition, STANDARD_LIFECYCLE, storedLifecycleSchema } from '../domain/lifecycle.ts'
import type { EventLog } from '../eventlog/event-log.ts'

/** A definition's identity: name, version and SHA-256 of its canonical JSON. */
export function lifecycleRef(definition: LifecycleDefinition): LifecycleRef {
  // A checked definition is JSON; its type says optional where JSON leaves keys out.
  const hash = createHash('sha256')
    .update(canonicalJson(definition as unknown as Json))
    .digest('hex')
  return { name: definition.name, version: definition.version, hash }
}

const streamOfLifecycle = (hash: string): string => `lifecycle-${hash}`

/** The log does not hold the definition that a task was submitted with. */
export class UnknownLifecycleError extends Error {
  readonly code = 'unknown_lifecycle'
}

export class Lifecycles {
  readonly #log: EventLog
  readonly #byHash = new Map<string, LifecycleDefinition>()
  readonly #byName = new Map<string, LifecycleRef>()

  private constructor(log: EventLog) {
    this.#log = log
  }

  /**
   * Registers the standard lifecycle and the configured ones, storing those the log does not have yet.
   *
   * @throws LogUnavailableError when the log cannot be reached
   */
  static async open(log: EventLog, configured: readonly LifecycleDefinition[] = []): Promise<Lifecycles> {
    const lifecycles = new Lifecycles(log)
    for (const definition of [STANDARD_LIFECYCLE, ...configured]) {
      const ref = lifecycleRef(definition)
      lifecycles.#byHash.set(ref.hash, definition)
      lifecycles.#byName.set(ref.name, ref)
      await log.appendMany([
        {
          stream: streamOfLifecycle(ref.hash),
          // A conflict says that it is there already: the stream's name is the hash of its content.
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
        },
      ])
    }
    return lifecycles
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
