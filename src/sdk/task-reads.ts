/** Asking for one task: now, after a wait at the service, until it is final. */
import type { TaskView } from '../api/schemas/tasks.ts'
import { wholeNumber } from './checks.ts'
import type { GetOptions, TaskWithEtag, WaitOptions } from './client-api.ts'
import { RollcallError } from './errors.ts'
import type { Http } from './http.ts'
import { taskPath } from './paths.ts'
import { isPassingFailure, withRetries } from './retries.ts'
import { backoffMs, monotonicMs, sleep } from './waiting.ts'

export interface ReadSettings {
  timeoutMs: number
  retries: number
  /** How many `waitFor` may wait at the service at once; the others look from time to time. */
  maxWaits: number
}

const DEFAULT_WAIT_MS = 300_000
const POLL = { initialMs: 50, maxMs: 2_000 }
/** What the service grants at most; a client's own wait asks for less, as proxies end what is idle for 60 s. */
const WAIT_SECONDS_MAX = 60
const WAIT_SECONDS = 30
/** The service's last answer is to come before a wait is over, so that its end can say how the task stands. */
const ANSWER_MS = 500
const FINAL: readonly TaskView['status'][] = ['SUCCESS', 'FAILED', 'CANCELLED']

interface Look {
  waitSeconds: number
  etag?: string | null
  timeoutMs: number
  signal: AbortSignal | undefined
}

interface Looked extends TaskWithEtag {
  /** How long the service says that it was ready to wait. */
  waitedSeconds: number
}

export class TaskReads {
  readonly #http: Http
  readonly #settings: ReadSettings
  #waits = 0

  constructor(http: Http, settings: ReadSettings) {
    this.#http = http
    this.#settings = settings
  }

  async get(taskId: string, options?: GetOptions): Promise<TaskView> {
    const found = await this.#read(taskId, null, options)
    return found!.task
  }

  async getIfChanged(
    taskId: string,
    etag: string | null,
    options?: GetOptions,
  ): Promise<TaskWithEtag | null> {
    const found = await this.#read(taskId, etag, options)
    return found && { task: found.task, etag: found.etag }
  }

  /** Looks again until the task is final, whatever becomes of the service meanwhile. */
  async waitFor(taskId: string, options: WaitOptions = {}): Promise<TaskView> {
    const { timeoutMs = DEFAULT_WAIT_MS, signal } = options
    const deadline = monotonicMs() + timeoutMs
    let last = 'It was not answered yet.'
    for (let polls = 1; monotonicMs() < deadline; polls++) {
      const asked = monotonicMs()
      let pauseMs = backoffMs(POLL, polls)
      try {
        const { task, waitedSeconds } = await this.#lookLong(taskId, deadline - asked, signal)
        if (FINAL.includes(task.status)) return task
        last = `It is ${task.status}: ${task.why}`
        // A service that waits is the pause; one that only says so must not be asked without one.
        if (waitedSeconds > 0 && monotonicMs() - asked >= waitedSeconds * 500) {
          polls = 0
          pauseMs = 0
        }
      } catch (error) {
        // A service that is away for a while says nothing of the task; the wait goes on.
        if (!isPassingFailure(error)) throw error
        // An ask that was cut short by the end of the wait says less than the answer before it.
        if (monotonicMs() < deadline) last = error.message
        pauseMs = Math.max(pauseMs, error.retryAfterMs ?? 0)
      }
      await sleep(Math.min(pauseMs, deadline - monotonicMs()), signal)
      signal?.throwIfAborted()
    }
    throw new RollcallError(`Task ${taskId} did not finish within ${timeoutMs} ms. ${last}`, {
      code: 'timeout',
      detail: last,
      retryable: true,
    })
  }

  /** One look that waits at the service, where one of the places for that is free. */
  async #lookLong(taskId: string, leftMs: number, signal: AbortSignal | undefined): Promise<Looked> {
    const attemptMs = this.#settings.timeoutMs / 2
    const free = this.#waits < this.#settings.maxWaits
    const waitSeconds = free ? wholeSeconds(leftMs - ANSWER_MS, WAIT_SECONDS) : 0
    const timeoutMs = Math.max(1, Math.min(leftMs, attemptMs + waitSeconds * 1_000))
    if (waitSeconds === 0) return this.#look(taskId, { waitSeconds, timeoutMs, signal })
    this.#waits++
    try {
      return await this.#look(taskId, { waitSeconds, timeoutMs, signal })
    } finally {
      this.#waits--
    }
  }

  async #read(taskId: string, etag: string | null, options: GetOptions = {}): Promise<Looked | null> {
    const { signal } = options
    const waitSeconds = wholeNumber('waitSeconds', options.waitSeconds ?? 0, 0, WAIT_SECONDS_MAX)
    const timeoutMs = options.timeoutMs ?? this.#settings.timeoutMs
    const answerMs = timeoutMs / 2
    const look = (leftMs: number) =>
      this.#look(taskId, {
        // After a lost connection the rest of the wait.
        waitSeconds: wholeSeconds(leftMs - answerMs, waitSeconds),
        etag,
        timeoutMs: leftMs,
        signal,
      })
    return withRetries(look, {
      retries: this.#settings.retries,
      timeoutMs: timeoutMs + waitSeconds * 1_000,
      attemptMs: answerMs + waitSeconds * 1_000,
      signal,
    })
  }

  async #look(taskId: string, look: Look & { etag?: null }): Promise<Looked>
  async #look(taskId: string, look: Look): Promise<Looked | null>
  async #look(taskId: string, { waitSeconds, etag = null, timeoutMs, signal }: Look): Promise<Looked | null> {
    const waits = waitSeconds > 0
    const answer = await this.#http.ask<TaskView>({
      method: 'GET',
      path: taskPath(taskId),
      headers: {
        ...(waits && { prefer: `wait=${waitSeconds}` }),
        ...(etag !== null && { 'if-none-match': etag }),
      },
      timeoutMs,
      signal,
      waits,
    })
    if (answer === null) return null
    return { task: answer.body, etag: answer.etag ?? '', waitedSeconds: waitOf(answer.preferenceApplied) }
  }
}

const wholeSeconds = (ms: number, max: number): number => Math.max(0, Math.min(max, Math.floor(ms / 1_000)))

/** `Preference-Applied: wait=30`; 0 where the service did not wait. */
function waitOf(applied: string | null): number {
  const found = /(?:^|[,;\s])wait\s*=\s*"?(\d{1,4})"?/i.exec(applied ?? '')
  return found ? Number(found[1]) : 0
}
