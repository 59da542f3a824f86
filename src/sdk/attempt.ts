/**
 * One attempt in this worker's hands, from the claim to the delivered outcome.
 *
 *   working ──handler settles──> settled ──report answered──> gone
 *      │
 *      └──cancelled or lost──> over: nothing is reported, the slot stays taken until the handler settles
 *
 * A shutdown aborts the signal too, but leaves the attempt owed: it is released, or its outcome wins.
 */
import type { ClaimedTask, ReportRequest } from '../api/schemas/workers.ts'
import { CancelledError, LeaseLostError, RollcallError, ShutdownError } from './errors.ts'
import { newId } from './ids.ts'
import type { Report } from './link.ts'
import { childLogger, type Logger } from './logger.ts'
import { encodeContext, isDeliberate, type Outcome, outcomeOfReturn, outcomeOfThrow } from './outcome.ts'
import type { Delivery, Sent } from './reports.ts'
import type { Handler, HandlerContext } from './worker-options.ts'

type Fields<T extends ReportRequest['trigger'], Raw extends string = 'context'> = Omit<
  Extract<ReportRequest, { trigger: T }>,
  Raw | 'taskId' | 'attempt' | 'leaseToken' | 'commandId'
>

/** How an attempt ends by what its worker reports. */
export type Ending = Outcome | { kind: 'released'; reason: string }

/** What the attempt asks of its worker. */
export interface AttemptPort {
  logger: Logger
  /** Sends a STEP, in order with the attempt's other reports. */
  sendStep(report: Report): Promise<Delivery>
  progressChanged(attempt: Attempt): void
}

/** The same for a claimed task and for what the service answers about it; attempts are never reused. */
export const attemptKey = (taskId: string, attempt: number): string => `${taskId}/${attempt}`

export class Attempt {
  readonly key: string
  readonly task: ClaimedTask
  readonly leaseToken: string
  readonly #controller = new AbortController()
  readonly #port: AttemptPort
  /** Why nothing is to be reported any more; null while an outcome is owed. */
  over: 'cancelled' | 'lost' | null = null
  /** The handler has returned or thrown. */
  settled = false
  /** The report of its end, once it is on its way. */
  reported: { ending: Ending; sent: Sent } | null = null
  /** The latest progress not yet sent, null where there is none. */
  unsentProgress: number | null = null
  /** JSON for the next attempt, null where the handler saved none. */
  #saved: string | null = null

  constructor(task: ClaimedTask, leaseToken: string, port: AttemptPort) {
    this.key = attemptKey(task.taskId, task.attempt)
    this.task = task
    this.leaseToken = leaseToken
    this.#port = port
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** Runs the handler to its end. Never rejects; null where it stopped because it was asked to. */
  async run(handler: Handler): Promise<Outcome | null> {
    try {
      const returned = await handler({ ...this.task }, this.#context())
      // `if (signal.aborted) return` is no success; a task that is done twice is better than one done never.
      return returned === undefined && this.#shuttingDown ? null : outcomeOfReturn(returned)
    } catch (thrown) {
      // Whatever was aborted throws errors of its own, so that any error counts as obedience.
      return this.#shuttingDown && !isDeliberate(thrown) ? null : outcomeOfThrow(thrown)
    } finally {
      this.settled = true
    }
  }

  /** The service says the attempt is not this worker's any more. */
  end(how: 'cancelled' | 'lost', reason: string | null): void {
    if (this.over || this.settled) return
    this.over = how
    this.#controller.abort(how === 'cancelled' ? new CancelledError(reason) : new LeaseLostError(reason))
  }

  /** The worker shuts down: the handler should stop, and the task goes back. */
  shutDown(): void {
    this.#controller.abort(new ShutdownError())
  }

  /** The report of what became of it, written once, so that what is sent again is the same. */
  reportOf(ending: Ending): Report {
    if (ending.kind === 'succeeded') {
      const fields: Fields<'SUCCEED', 'result'> = { trigger: 'SUCCEED', resultUrl: ending.resultUrl }
      return this.#write(fields, { result: ending.result })
    }
    if (ending.kind === 'released') {
      const fields: Fields<'RELEASE'> = { trigger: 'RELEASE', reason: ending.reason }
      return this.#write(fields, { context: this.#saved })
    }
    const { error, retryable, retryAfterMs } = ending
    const fields: Fields<'FAIL'> = { trigger: 'FAIL', error, retryable, retryAfterMs }
    return this.#write(fields, { context: this.#saved })
  }

  /** Forgets what the handler saved; true if there was something. */
  dropSaved(): boolean {
    const had = this.#saved !== null
    this.#saved = null
    return had
  }

  #write(fields: object, raw: Record<string, string | null>): Report {
    const { taskId, attempt } = this.task
    const head = JSON.stringify({
      ...fields,
      taskId,
      attempt,
      leaseToken: this.leaseToken,
      commandId: newId(),
    })
    const tail = Object.entries(raw).flatMap(([name, text]) => (text === null ? [] : [`,"${name}":${text}`]))
    return { taskId, json: `${head.slice(0, -1)}${tail.join('')}}` }
  }

  get #shuttingDown(): boolean {
    return this.signal.reason instanceof ShutdownError
  }

  #context(): HandlerContext {
    const { taskId, attempt, type } = this.task
    return {
      taskId,
      attempt,
      signal: this.signal,
      log: childLogger(this.#port.logger, { taskId, attempt, type }),
      step: (name, context) => this.#step(name, context),
      progress: fraction => this.#progress(fraction),
      save: context => this.#save(context),
    }
  }

  #step(step: string, context: unknown): Promise<void> {
    const answered = this.#sendStep(step, context)
    // A handler need not await its steps; one that is refused must not end the process then.
    answered.catch(error => {
      if (!this.signal.aborted)
        this.#port.logger.warn({ ...this.#names(), step, error: String(error) }, 'a step was refused')
    })
    return answered
  }

  async #sendStep(step: string, context: unknown): Promise<void> {
    this.signal.throwIfAborted()
    if (this.settled)
      throw new RollcallError('The handler has returned; it enters no more steps.', {
        code: 'illegal_transition',
      })
    const saved = context === undefined ? null : encodedContext(context)
    const fields: Fields<'STEP'> = { trigger: 'STEP', step }
    const sent = this.#port.sendStep(this.#write(fields, { context: saved }))
    const answer = await orAborted(sent, this.signal)
    if (answer.kind === 'refused')
      throw new RollcallError(`Step ${step} was refused (${answer.code}): ${answer.message}`, {
        code: answer.code,
        detail: answer.message,
      })
    if (answer.kind === 'undelivered')
      throw new RollcallError(`Step ${step} could not be delivered before the worker stopped.`, {
        code: 'unreachable',
      })
  }

  #progress(fraction: number): void {
    // NaN comes from 0 / 0 at the start of many loops; it says nothing, and is no reason to fail a task.
    if (this.settled || this.over || typeof fraction !== 'number' || Number.isNaN(fraction)) return
    this.unsentProgress = Math.min(1, Math.max(0, fraction))
    this.#port.progressChanged(this)
  }

  #save(context: unknown): void {
    this.#saved = encodedContext(context)
  }

  #names() {
    return { taskId: this.task.taskId, attempt: this.task.attempt }
  }
}

function encodedContext(context: unknown): string {
  const encoded = encodeContext(context)
  if ('text' in encoded) return encoded.text
  throw new RollcallError(`The context for the next attempt cannot be stored: ${encoded.why}.`, {
    code: `context_${encoded.code}`,
  })
}

/** What the promise says, or the signal's reason if that comes first. */
function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason)
    if (signal.aborted) return abort()
    signal.addEventListener('abort', abort, { once: true })
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort))
  })
}
