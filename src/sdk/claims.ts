/**
 * Asks for work: one long poll at a time, for the free slots only. The worker names each claim, so that a claim
 * whose answer was lost is asked again under its name and answers the same tasks, which are started already.
 */
import { randomBytes } from 'node:crypto'
import type { ClaimAnswer, ClaimedTask, ClaimRequest } from '../api/schemas/workers.ts'
import { RollcallError } from './errors.ts'
import type { Http } from './http.ts'
import { newId } from './ids.ts'
import type { SourcePort, TaskSource } from './link.ts'
import type { Outage } from './outage.ts'
import { backoffMs, monotonicMs, sleep, Wakeup } from './waiting.ts'
import type { WorkerSettings } from './worker-options.ts'

const CLAIM_MAX = 100
/** Beyond the wait at the service: starting 100 tasks takes a commit or two. */
const TIMEOUT_MS = 10_000
const BACKOFF = { initialMs: 50, maxMs: 2_000 }
/** An answer that blames the request (a wrong url, a refused type) is not asked again as fast. */
const REFUSED_BACKOFF = { initialMs: 1_000, maxMs: 30_000 }
const RETRY_AFTER_MAX_MS = 30_000
/** An empty answer that came sooner than the wait that was asked for: the service stops, or the wait is 0. */
const EMPTY_BACKOFF = { initialMs: 50, maxMs: 1_000 }
/** After so long the leases of a lost claim have ended or soon will; a new claim finds its tasks again. */
const REPEAT_MS = 5 * 60 * 1_000
/** A claim whose answer is on its way when the worker stops may come in this time; then it is given up. */
const STOP_PATIENCE_MS = 100
const SETTLE_TRIES = 3
const SETTLE_TIMEOUT_MS = 1_000

export class Claims implements TaskSource {
  readonly #http: Http
  readonly #settings: WorkerSettings
  readonly #port: SourcePort
  readonly #outage: Outage
  readonly #stopping = new AbortController()
  readonly #giveUp = new AbortController()
  readonly #changed = new Wakeup()
  #refusals = 0
  /** Empty answers in a row that came at once. */
  #empty = 0

  constructor(http: Http, settings: WorkerSettings, port: SourcePort, outage: Outage) {
    this.#http = http
    this.#settings = settings
    this.#port = port
    this.#outage = outage
  }

  /** Claims until it is stopped. Never rejects. */
  async run(): Promise<void> {
    while (!this.#stopping.signal.aborted) {
      const max = Math.min(CLAIM_MAX, this.#port.room())
      if (max > 0) await this.#claim(max)
      else await this.#changed.wait()
      if (this.#empty > 0) await sleep(backoffMs(EMPTY_BACKOFF, this.#empty), this.#stopping.signal)
    }
  }

  /** There may be room again. */
  wake(): void {
    this.#changed.wake()
  }

  /** Ends the loop. A claim on its way is settled, so that no task is started for a worker that is gone. */
  stop(): void {
    if (this.#stopping.signal.aborted) return
    this.#stopping.abort(new Error('the worker is stopping'))
    this.#changed.wake()
    setTimeout(() => this.#giveUp.abort(new Error('the worker is stopping')), STOP_PATIENCE_MS)
  }

  async #claim(max: number): Promise<void> {
    const { worker, waitMs } = this.#settings
    const types = [...this.#settings.types.keys()]
    const leaseToken = randomBytes(24).toString('base64url')
    const claim: ClaimRequest = { worker, types, max, waitMs, claimId: newId(), leaseToken }
    const since = monotonicMs()
    for (let failures = 1; ; failures++) {
      const askedAt = monotonicMs()
      try {
        const tasks = await this.#ask(claim, waitMs + TIMEOUT_MS, this.#giveUp.signal)
        this.#outage.over()
        this.#refusals = 0
        const atOnce =
          tasks.length === 0 && monotonicMs() - askedAt < Math.max(EMPTY_BACKOFF.maxMs, waitMs) / 2
        this.#empty = atOnce ? this.#empty + 1 : 0
        // A repeated claim may answer tasks that were started when it was first sent.
        this.#port.take(tasks, leaseToken, failures === 1 ? monotonicMs() : since)
        return
      } catch (error) {
        if (this.#stopping.signal.aborted) return this.#settle(claim, since)
        this.#outage.failed(error)
        if (!isRepeatable(error)) {
          await sleep(backoffMs(REFUSED_BACKOFF, ++this.#refusals), this.#stopping.signal)
          return
        }
        const asked = error instanceof RollcallError ? (error.retryAfterMs ?? 0) : 0
        const pause = Math.max(backoffMs(BACKOFF, failures), Math.min(asked, RETRY_AFTER_MAX_MS))
        await sleep(pause, this.#stopping.signal)
        if (this.#stopping.signal.aborted) return this.#settle(claim, since)
        if (monotonicMs() - since > REPEAT_MS) return
      }
    }
  }

  /** Asks once more for the tasks of a claim that was cut off, to hand them back; a few tries, then leases end. */
  async #settle(claim: ClaimRequest, since: number): Promise<void> {
    for (let tries = 1; tries <= SETTLE_TRIES; tries++) {
      try {
        const tasks = await this.#ask({ ...claim, max: 0, waitMs: 0 }, SETTLE_TIMEOUT_MS)
        this.#port.take(tasks, claim.leaseToken, since)
        return
      } catch (error) {
        if (!isRepeatable(error)) return
        await sleep(backoffMs(BACKOFF, tries))
      }
    }
  }

  async #ask(claim: ClaimRequest, timeoutMs: number, signal?: AbortSignal): Promise<ClaimedTask[]> {
    const body = JSON.stringify(claim)
    const answer = await this.#http.call<ClaimAnswer>({
      method: 'POST',
      path: '/v1/workers/claim',
      body,
      timeoutMs,
      signal,
    })
    if (Array.isArray(answer.tasks)) return answer.tasks
    throw new RollcallError('A claim was answered without tasks; does the url lead to Rollcall?', {
      code: 'bad_answer',
      retryable: true,
    })
  }
}

/** A lost answer, or a service in trouble: the claim may have been carried out, so its name is kept. */
function isRepeatable(error: unknown): boolean {
  return !(error instanceof RollcallError) || error.retryable || error.status >= 500
}
