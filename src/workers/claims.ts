/**
 * Claims: HTTP workers take tasks from `ready` and find them started. A claim is taken, then started at the log,
 * then answered; it can break off between any two of these and be asked again with its id, which finds the tasks
 * by their offers (taken, not seen started) and leases (seen started).
 *
 * A claim that waits is handed what is submitted meanwhile: submit and START are one append. Until its lease is there
 * this process remembers what it was handed.
 */
import { LRUCache } from 'lru-cache'
import type { CommandEnvelope } from '../domain/commands.ts'
import type { Source } from '../domain/events.ts'
import type { PendingTask, ProcessingTask } from '../domain/task.ts'
import type { Answer, AnyRefusalCode } from '../engine/answer.ts'
import type { Engine } from '../engine/engine.ts'
import type { FollowUp } from '../engine/staged.ts'
import { LOOK_MS, type WorkSignal } from './work-signal.ts'
import type { Taken, WorkState } from './work-state.ts'

export interface Claim {
  worker: string
  types: readonly string[]
  max: number
  waitMs: number
  claimId: string
  leaseTokenHash: string
  source: Source
  /** Whose tasks alone; null takes those of all. */
  tenant: string | null
}

/** Refusals that say nothing about the task: whoever was refused may ask again with the same ids. */
export const PASSING: ReadonlySet<AnyRefusalCode> = new Set([
  'conflict',
  'overloaded',
  'log_unavailable',
  'shutting_down',
  'internal_error',
])

/** Tasks were taken and none of them could be started, for a reason that passes; the claim may be asked again. */
export class ClaimNotStartedError extends Error {
  readonly code: AnyRefusalCode

  constructor(code: AnyRefusalCode, message: string) {
    super(message)
    this.code = code
  }
}

/** How much of what claims were handed is remembered: longer than a projector needs, or who asks again. */
const HANDED = {
  maxSize: 20_000,
  sizeCalculation: (tasks: readonly unknown[]) => tasks.length,
  ttl: 60_000,
}

interface Taking {
  started: ProcessingTask[]
  /** Nothing of the claim's types was left in `ready`. */
  tookAll: boolean
}

export class Claims {
  readonly #workState: WorkState
  readonly #engine: Engine
  readonly #signal: WorkSignal
  readonly #taking = new Map<string, Promise<Taking>>()
  /** What claims were handed, by `keyOf`. */
  readonly #handed = new LRUCache<string, readonly Taken[]>(HANDED)

  constructor(workState: WorkState, engine: Engine, signal: WorkSignal) {
    this.#workState = workState
    this.#engine = engine
    this.#signal = signal
  }

  /**
   * Takes and starts up to `max` tasks; waits for the first one up to `waitMs`.
   *
   * @throws ClaimNotStartedError
   * @param signal ends the waiting (the worker went away, the service stops); what was taken is still started
   */
  async claim(claim: Claim, signal: AbortSignal): Promise<ProcessingTask[]> {
    const until = performance.now() + claim.waitMs
    for (;;) {
      const look = this.#signal.look(claim.types, claim.tenant)
      try {
        const restMs = this.#signal.restMs(claim.types, claim.tenant)
        // A round trip that is known to find nothing is spared, unless it is the last one.
        if (restMs === 0 || performance.now() + restMs > until || this.#handed.has(keyOf(claim))) {
          const { started, tookAll } = await this.#takeAndStart(claim)
          if (tookAll) look.foundEnd()
          if (started.length > 0 || signal.aborted || performance.now() >= until) return started
        }
        const leftMs = until - performance.now()
        const handedOver: Handed[] = []
        await look.wait(claim.max, Math.min(leftMs, restMs || LOOK_MS), signal, task =>
          take(task, claim, handedOver),
        )
        const started = await this.#startedOf(handedOver, claim)
        if (started.length > 0) return started
      } finally {
        look.end()
      }
      if (signal.aborted) return []
    }
  }

  /** Those of the tasks it was handed that run for it now. */
  async #startedOf(handedOver: readonly Handed[], claim: Claim): Promise<ProcessingTask[]> {
    if (handedOver.length === 0) return []
    this.#handed.set(
      keyOf(claim),
      handedOver.map(({ task: { taskId, attempt } }) => ({ taskId, attempt, again: true })),
    )
    const answers = (await Promise.all(handedOver.map(({ answer }) => answer))).filter(
      answer => answer !== null,
    )
    // They were never stored, or have gone the way of others.
    if (answers.length === 0) this.#handed.delete(keyOf(claim))
    return startedBy(answers, claim)
  }

  async #takeAndStart(claim: Claim): Promise<Taking> {
    const before = this.#taking.get(claim.claimId) ?? Promise.resolve()
    const taking = before.catch(() => {}).then(() => this.#takeAndStartNow(claim))
    this.#taking.set(claim.claimId, taking)
    try {
      return await taking
    } finally {
      if (this.#taking.get(claim.claimId) === taking) this.#taking.delete(claim.claimId)
    }
  }

  async #takeAndStartNow(claim: Claim): Promise<Taking> {
    const { claimId, types, max, tenant } = claim
    const taken =
      this.#handed.get(keyOf(claim)) ?? (await this.#workState.take({ claimId, types, max, tenant }))
    const tookAll = taken.length < max && !taken[0]?.again
    if (taken.length === 0) return { started: [], tookAll }
    const answers = await this.#engine.executeMany(
      taken.map(({ taskId, attempt }) => startOf(taskId, attempt, claim)),
    )
    const useless = taken.filter((_, index) => isUseless(answers[index]!)).map(({ taskId }) => taskId)
    if (useless.length > 0) await this.#workState.dropOffers(claimId, useless)
    const started = startedBy(answers, claim)
    // All of it has ended: what it takes now is new.
    if (started.length === 0 && this.#handed.delete(keyOf(claim))) return this.#takeAndStartNow(claim)
    return { started, tookAll }
  }
}

/** A task that a waiting claim was handed, and what became of its START. */
interface Handed {
  task: PendingTask
  answer: Promise<Answer | null>
}

function take(task: PendingTask, claim: Claim, handedOver: Handed[]): FollowUp {
  let resolve: FollowUp['resolve'] = () => {}
  const answer = new Promise<Answer | null>(told => {
    resolve = told
  })
  handedOver.push({ task, answer })
  return { envelope: startOf(task.taskId, task.attempt, claim), resolve }
}

/** @throws ClaimNotStartedError where none of them was, and not for want of tasks: asked again, the claim finds them */
function startedBy(answers: readonly Answer[], claim: Claim): ProcessingTask[] {
  const started = answers.flatMap(answer => (isHeldBy(answer, claim) ? [answer.task] : []))
  const passing = answers.find(isPassing)
  if (started.length === 0 && passing) throw new ClaimNotStartedError(passing.code, passing.message)
  return started
}

/** Ids of claims are workers' words: the same id of another tenant, or with another token, is another claim. */
const keyOf = ({ tenant, claimId, leaseTokenHash }: Claim): string =>
  JSON.stringify([tenant, claimId, leaseTokenHash])

function startOf(taskId: string, attempt: number, claim: Claim): CommandEnvelope {
  return {
    taskId,
    command: { trigger: 'START', worker: claim.worker, attempt, leaseTokenHash: claim.leaseTokenHash },
    commandId: claim.claimId,
    actor: { kind: 'worker', id: claim.worker },
    source: claim.source,
    correlationId: null,
    causationId: null,
    trace: null,
    ifRevision: null,
  }
}

type Refused = Extract<Answer, { kind: 'refused' }>
const isPassing = (answer: Answer): answer is Refused => answer.kind === 'refused' && PASSING.has(answer.code)
const isUseless = (answer: Answer): boolean => answer.kind === 'refused' && !PASSING.has(answer.code)

/** A claim asked again may find a task that has ended since: it is not handed out a second time. */
function isHeldBy(answer: Answer, claim: Claim): answer is Answer & { task: ProcessingTask } {
  return (
    answer.kind !== 'refused' &&
    answer.task.status === 'PROCESSING' &&
    answer.task.leaseTokenHash === claim.leaseTokenHash
  )
}
