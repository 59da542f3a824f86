/** From a submit request to its command: type defaults, idempotency, and the checks a type asks for. */
import { hash, randomUUID } from 'node:crypto'
import { Ajv, type ValidateFunction } from 'ajv'
import { canonicalJson } from '../domain/canonical-json.ts'
import type { CommandEnvelope } from '../domain/commands.ts'
import type { Json } from '../domain/events.ts'
import { resolveRetry, resolveTimeouts, type TaskType } from '../domain/task-types.ts'
import type { FingerprintOf } from '../engine/command-queues.ts'
import type { Lifecycles } from '../engine/lifecycles.ts'
import type { Origin } from './origin.ts'
import { Problem } from './problems.ts'
import type { Submit } from './schemas/tasks.ts'
import { type KeyScope, newTaskId, taskIdOfKey } from './task-id.ts'

export interface TypesConfig {
  types: Record<string, TaskType>
  strictTypes: boolean
}

/** An idempotency key, and the batch that it is about, by its digest, where it is about a whole one. */
export interface SubmitKey {
  route: KeyScope['route']
  key: string
  batch?: string
}

export interface SubmitCommand {
  envelope: CommandEnvelope
  fingerprintOf: FingerprintOf
}

/** What makes two batches the same one. */
export const batchDigest = (tasks: readonly unknown[]): string =>
  hash('sha256', canonicalJson(tasks as Json[]))

/** Builds submit commands for the configured types. */
export class Submitter {
  readonly #types: Map<string, TaskType>
  readonly #strict: boolean
  readonly #lifecycles: Lifecycles
  readonly #payloadChecks = new Map<string, ValidateFunction>()

  /** @throws Error naming the type whose payload schema or lifecycle cannot be used */
  constructor(config: TypesConfig, lifecycles: Lifecycles) {
    this.#types = new Map(Object.entries(config.types))
    this.#strict = config.strictTypes
    this.#lifecycles = lifecycles
    const ajv = new Ajv({ allErrors: true, strict: false })
    for (const [name, type] of this.#types) {
      if (type.lifecycle && !lifecycles.named(type.lifecycle))
        throw new Error(`task type ${name}: lifecycle ${type.lifecycle} is not configured`)
      if (type.payloadSchema) this.#payloadChecks.set(name, ajv.compile(type.payloadSchema))
    }
  }

  /**
   * The command for a request.
   *
   * @param tenant whose task it is to be, whatever the request leaves out
   * @param key null makes a new id
   * @throws Problem unknown_type, payload_mismatch
   */
  command(request: Submit, tenant: string | null, key: SubmitKey | null, origin: Origin): SubmitCommand {
    const type = this.#types.get(request.type) ?? null
    if (!type && this.#strict)
      throw new Problem('unknown_type', `The type ${request.type} is not configured.`)
    this.#checkPayload(request)
    const lifecycle = this.#lifecycles.named(type?.lifecycle ?? 'standard')
    if (!lifecycle) throw new Error('bug: the standard lifecycle is always registered')
    // The tenant that a caller left out is the one it would have named.
    const whole = tenant === null ? request : { ...request, tenant }
    // Key order matters only where the request can be compared with another one of the same key.
    const text = key === null ? JSON.stringify(whole) : canonicalJson(whole as unknown as Json)
    const asked = key?.batch === undefined ? text : `${text}\n${key.batch}`
    const fingerprintOf: FingerprintOf = salt => hash('sha256', `${salt}\n${asked}`)
    const salt = randomUUID()
    const envelope: CommandEnvelope = {
      taskId: key === null ? newTaskId() : taskIdOfKey({ tenant, route: key.route }, key.key),
      command: {
        trigger: 'SUBMIT',
        type: request.type,
        priority: request.priority ?? type?.priority ?? 0,
        tenant,
        lifecycle,
        timeouts: resolveTimeouts(type, request.timeouts),
        retry: resolveRetry(type, request.retry),
        runAt: request.runAt ?? null,
        delayMs: request.delayMs ?? null,
        payload: request.payload,
        labels: request.labels ?? {},
        salt,
        fingerprint: fingerprintOf(salt),
      },
      commandId: randomUUID(),
      ...origin,
      correlationId: request.correlationId ?? origin.correlationId,
      causationId: null,
      ifRevision: null,
    }
    return { envelope, fingerprintOf }
  }

  #checkPayload(request: Submit): void {
    const check = this.#payloadChecks.get(request.type)
    if (!check || check(request.payload)) return
    const errors = (check.errors ?? []).slice(0, 20).map(error => ({
      path: `payload${error.instancePath.replaceAll('/', '.')}`,
      message: error.message ?? 'does not fit',
    }))
    throw new Problem('payload_mismatch', `${errors[0]?.path}: ${errors[0]?.message}`, errors)
  }
}
