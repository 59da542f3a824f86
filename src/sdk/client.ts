/**
 * The client: submit tasks, ask for them, cancel, retry, wait. Each command carries an id made once per call,
 * so the client's own retries never double anything.
 */

import type {
  DeadLetterList,
  DeadLetterView,
  DiscardAnswer,
  RedriveAnswer,
} from '../api/schemas/dead-letters.ts'
import type { Refusal, TaskRefusals } from '../api/schemas/refusals.ts'
import type { RollCallAnswer, VerifyAnswer, VerifyRequest } from '../api/schemas/roll-call.ts'
import type {
  BatchAnswer,
  History,
  HistoryEvent,
  SubmitRequest,
  TaskList,
  TaskRow,
  TaskView,
} from '../api/schemas/tasks.ts'
import { isPassing, RollcallError } from './errors.ts'
import { type Call, Http, type HttpOptions } from './http.ts'
import { newId } from './ids.ts'
import { backoffMs, monotonicMs, sleep } from './waiting.ts'

export type { FieldError } from './errors.ts'
export { RollcallError } from './errors.ts'
export type {
  BatchAnswer,
  DeadLetterList,
  DeadLetterView,
  DiscardAnswer,
  History,
  HistoryEvent,
  RedriveAnswer,
  Refusal,
  RollCallAnswer,
  TaskList,
  TaskRefusals,
  TaskRow,
  TaskView,
  VerifyAnswer,
  VerifyRequest,
}

export interface ClientOptions extends HttpOptions {
  /** How long a call may take in all, its retries included. Default 10,000. */
  timeoutMs?: number
  /** How often a call is tried again after a lost connection or a 429, 502, 503, 504. Default 4. */
  retries?: number
}

/** What any call takes. */
export interface CallOptions {
  /** Ends the call; it rejects with the signal's reason. Whether a command was carried out is then unknown. */
  signal?: AbortSignal
  /** In place of the client's `timeoutMs`. */
  timeoutMs?: number
}

/** A task to submit. `payload` is any JSON; all but `type` may be left out. */
export type SubmitTask = Omit<SubmitRequest, 'payload' | 'runAt'> & {
  payload?: unknown
  /** Not before this time; a text is ISO 8601 with an offset. */
  runAt?: Date | string
}

export interface SubmitOptions extends CallOptions {
  /** The same key and task again answer the task that exists. The client makes one where none is given. */
  idempotencyKey?: string
}

export interface CommandOptions extends CallOptions {
  /** Kept in the history and shown to people. */
  reason?: string
  /** Refuse with `revision_mismatch` unless the task is at this revision. */
  ifRevision?: number
  /** Names the command, so that your own repetition of it is recognised. Made by the client otherwise. */
  commandId?: string
}

export interface ListFilter extends CallOptions {
  status?: TaskView['status'] | readonly TaskView['status'][]
  type?: string
  order?: 'newest' | 'oldest'
  limit?: number
  /** `nextCursor` of the page before. */
  cursor?: string
}

export interface HistoryOptions extends CallOptions {
  /** The first revision wanted. */
  from?: number
  limit?: number
}

export interface DeadLetterFilter extends CallOptions {
  /** Default `waiting`. */
  status?: DeadLetterView['status']
  /** The code of what is wrong. */
  reason?: string
  taskId?: string
  limit?: number
  /** `nextCursor` of the page before. */
  cursor?: string
}

export interface WaitOptions {
  /** How long to wait for the end. Default 300,000 (5 minutes). */
  timeoutMs?: number
  signal?: AbortSignal
}

/** Every method rejects with a RollcallError; see its `code`. */
export interface Client {
  /** Stores a task; once this resolves, the task is not lost. */
  submit(task: SubmitTask, options?: SubmitOptions): Promise<TaskView>
  /** Stores up to 1,000 tasks in one request; the answer has a result for each, in order. */
  submitBatch(
    tasks: readonly (SubmitTask & { idempotencyKey?: string })[],
    options?: CallOptions,
  ): Promise<BatchAnswer['results']>
  get(taskId: string, options?: CallOptions): Promise<TaskView>
  /** A page of tasks. It comes from the read model and says how far that lags. */
  list(filter?: ListFilter): Promise<TaskList>
  /** A page of a task's events. */
  history(taskId: string, options?: HistoryOptions): Promise<History>
  /** All events of a task, page by page, from `from` on. */
  events(taskId: string, options?: HistoryOptions): AsyncGenerator<HistoryEvent, void, undefined>
  /** What the task was asked and refused: the first 20, the last 20 and how many there were. */
  refusals(taskId: string, options?: CallOptions): Promise<TaskRefusals>
  cancel(taskId: string, options?: CommandOptions): Promise<TaskView>
  /** Puts a failed task back to the queue (a new run), or ends the backoff of a retrying one. */
  retry(taskId: string, options?: CommandOptions): Promise<TaskView>
  /** Adds a remark to the history. */
  note(taskId: string, note: string, options?: CallOptions & { commandId?: string }): Promise<TaskView>
  /** Every task by type and status, and those that do not answer. `unaccounted.total` is null while nobody can know. */
  rollCall(options?: CallOptions): Promise<RollCallAnswer>
  /** One step of the walk that compares rows with streams; `next` leads to the following one. */
  verify(step?: VerifyRequest, options?: CallOptions): Promise<VerifyAnswer>
  /** A page of dead letters, the newest first, with the beginnings of their bytes. */
  deadLetters(filter?: DeadLetterFilter): Promise<DeadLetterList>
  /** One dead letter, whole. */
  deadLetter(letterId: string, options?: CallOptions): Promise<DeadLetterView>
  /** Hands up to 100 dead letters in again as they are; the results stand in their order. */
  redrive(letterIds: readonly string[], options?: CallOptions): Promise<RedriveAnswer['results']>
  /** Ends the waiting of up to 100 dead letters; they stay on record. */
  discard(
    letterIds: readonly string[],
    reason: string,
    options?: CallOptions,
  ): Promise<DiscardAnswer['results']>
  /** Resolves with the task once it is SUCCESS, FAILED or CANCELLED; look at `status`. */
  waitFor(taskId: string, options?: WaitOptions): Promise<TaskView>
}

const DEFAULT_TIMEOUT_MS = 10_000
const DEFAULT_RETRIES = 4
const DEFAULT_WAIT_MS = 300_000
const RETRY_BACKOFF = { initialMs: 50, maxMs: 2_000 }
const POLL = { initialMs: 50, maxMs: 2_000 }
const FINAL: readonly TaskView['status'][] = ['SUCCESS', 'FAILED', 'CANCELLED']

/** Makes a client. Throws a TypeError for options that cannot be meant; it connects when first asked. */
export function createClient(options: ClientOptions): Client {
  const http = new Http(options)
  const timeoutMs = positive('timeoutMs', options.timeoutMs ?? DEFAULT_TIMEOUT_MS)
  const retries = options.retries ?? DEFAULT_RETRIES
  if (!Number.isInteger(retries) || retries < 0 || retries > 100)
    throw new TypeError(`retries must be a whole number from 0 to 100, not ${retries}`)

  const call = <T extends object>(request: Omit<Call, 'timeoutMs'>, given: CallOptions = {}) =>
    withRetries(left => http.call<T>({ ...request, timeoutMs: left, signal: given.signal }), {
      retries,
      timeoutMs: given.timeoutMs ?? timeoutMs,
      signal: given.signal,
    })
  const post = <T extends object>(
    path: string,
    body: object,
    given: CallOptions | undefined,
    headers: Record<string, string> = {},
  ) => call<T>({ method: 'POST', path, body: jsonOf(body), headers }, given)
  const command = (trigger: 'cancel' | 'retry', taskId: string, given: CommandOptions = {}) => {
    const { reason, ifRevision, commandId = newId() } = given
    const headers = ifRevision === undefined ? {} : { 'if-match': `"${ifRevision}"` }
    return post<TaskView>(`${taskPath(taskId)}/${trigger}`, { reason, commandId }, given, headers)
  }
  const history = (taskId: string, given: HistoryOptions = {}) =>
    call<History>(
      {
        method: 'GET',
        path: `${taskPath(taskId)}/history${query({ from: given.from, limit: given.limit })}`,
      },
      given,
    )

  return {
    // These are async functions so that a bad argument rejects, instead of throwing before there is a promise.
    submit: async (task, given = {}) =>
      post<TaskView>('/v1/tasks', task, given, { 'idempotency-key': given.idempotencyKey ?? newId() }),
    submitBatch: async (tasks, given) => {
      const keyed = tasks.map(task => ({ ...task, idempotencyKey: task.idempotencyKey ?? newId() }))
      const send = async (members: typeof keyed) =>
        (await post<BatchAnswer>('/v1/tasks/batch', { tasks: members }, given)).results
      return submitAll(keyed, send, retries, given?.signal)
    },
    get: async (taskId, given) => call<TaskView>({ method: 'GET', path: taskPath(taskId) }, given),
    list: async (filter = {}) => {
      const { status, type, order, limit, cursor } = filter
      return call<TaskList>(
        { method: 'GET', path: `/v1/tasks${query({ status, type, order, limit, cursor })}` },
        filter,
      )
    },
    history: async (taskId, given) => history(taskId, given),
    events: async function* (taskId, given = {}) {
      for (let from: number | null = given.from ?? 0; from !== null; ) {
        const page: History = await history(taskId, { ...given, from })
        yield* page.events
        from = page.next
      }
    },
    refusals: async (taskId, given) =>
      call<TaskRefusals>({ method: 'GET', path: `${taskPath(taskId)}/refusals` }, given),
    cancel: async (taskId, given) => command('cancel', taskId, given),
    retry: async (taskId, given) => command('retry', taskId, given),
    note: async (taskId, note, given = {}) =>
      post<TaskView>(`${taskPath(taskId)}/notes`, { note, commandId: given.commandId ?? newId() }, given),
    rollCall: async given => call<RollCallAnswer>({ method: 'GET', path: '/v1/rollcall' }, given),
    verify: async (step = {}, given) => post<VerifyAnswer>('/v1/verify', step, given),
    deadLetters: async (filter = {}) => {
      const { status, reason, taskId, limit, cursor } = filter
      return call<DeadLetterList>(
        { method: 'GET', path: `/v1/dead-letters${query({ status, reason, taskId, limit, cursor })}` },
        filter,
      )
    },
    deadLetter: async (letterId, given) =>
      call<DeadLetterView>(
        { method: 'GET', path: `/v1/dead-letters/${encodeURIComponent(letterId)}` },
        given,
      ),
    redrive: async (letterIds, given) =>
      (await post<RedriveAnswer>('/v1/dead-letters/redrive', { letterIds }, given)).results,
    discard: async (letterIds, reason, given) =>
      (await post<DiscardAnswer>('/v1/dead-letters/discard', { letterIds, reason }, given)).results,
    waitFor: (taskId, given) =>
      waitForEnd(
        taskId,
        (left, signal) =>
          call<TaskView>(
            { method: 'GET', path: taskPath(taskId) },
            { timeoutMs: Math.min(left, timeoutMs), ...(signal && { signal }) },
          ),
        given,
      ),
  }
}

interface RetryPlan {
  retries: number
  timeoutMs: number
  signal: AbortSignal | undefined
}

/**
 * Runs an attempt, again while it fails in a way that may pass and there is time. One attempt may take half of
 * the time at most, so that an answer lost in silence still leaves room for another.
 */
async function withRetries<T>(attempt: (timeoutMs: number) => Promise<T>, plan: RetryPlan): Promise<T> {
  const deadline = monotonicMs() + plan.timeoutMs
  for (let failures = 1; ; failures++) {
    const left = deadline - monotonicMs()
    try {
      return await attempt(Math.max(1, plan.retries === 0 ? left : Math.min(left, plan.timeoutMs / 2)))
    } catch (error) {
      if (!(error instanceof RollcallError) || !error.retryable || failures > plan.retries) throw error
      const waitMs = Math.max(backoffMs(RETRY_BACKOFF, failures), error.retryAfterMs ?? 0)
      if (monotonicMs() + waitMs >= deadline) throw error
      await sleep(waitMs, plan.signal)
      plan.signal?.throwIfAborted()
    }
  }
}

/** Sends a batch; members that the service put off are sent again, with their keys, a bounded number of times. */
async function submitAll<T>(
  members: readonly T[],
  send: (members: T[]) => Promise<BatchAnswer['results']>,
  retries: number,
  signal: AbortSignal | undefined,
): Promise<BatchAnswer['results']> {
  const results = await send([...members])
  for (let round = 1; round <= retries; round++) {
    const open = results.flatMap((one, index) =>
      one.kind === 'refused' && isPassing(one.code) ? [index] : [],
    )
    if (open.length === 0) break
    await sleep(backoffMs(RETRY_BACKOFF, round), signal)
    const again = await send(open.map(index => members[index]!))
    open.forEach((index, place) => {
      results[index] = again[place] ?? results[index]!
    })
  }
  return results
}

async function waitForEnd(
  taskId: string,
  get: (leftMs: number, signal: AbortSignal | undefined) => Promise<TaskView>,
  { timeoutMs = DEFAULT_WAIT_MS, signal }: WaitOptions = {},
): Promise<TaskView> {
  const deadline = monotonicMs() + timeoutMs
  let last = 'It was not answered yet.'
  for (let polls = 1; ; polls++) {
    const left = deadline - monotonicMs()
    if (left <= 0)
      throw new RollcallError(`Task ${taskId} did not finish within ${timeoutMs} ms. ${last}`, {
        code: 'timeout',
        detail: last,
        retryable: true,
      })
    try {
      const task = await get(left, signal)
      if (FINAL.includes(task.status)) return task
      last = `It is ${task.status}: ${task.why}`
    } catch (error) {
      // A service that is away for a while says nothing of the task; the wait goes on.
      if (!(error instanceof RollcallError) || !error.retryable) throw error
      // An ask that was cut short by the end of the wait says less than the answer before it.
      if (monotonicMs() < deadline) last = error.message
    }
    await sleep(Math.min(backoffMs(POLL, polls), deadline - monotonicMs()), signal)
    signal?.throwIfAborted()
  }
}

const taskPath = (taskId: string): string => `/v1/tasks/${encodeURIComponent(taskId)}`

function query(fields: Record<string, string | number | readonly string[] | undefined>): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined) continue
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, String(one))
  }
  return search.size === 0 ? '' : `?${search}`
}

function jsonOf(body: object): string {
  try {
    return JSON.stringify(body)
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause)
    throw new RollcallError(`The request cannot be written as JSON: ${why}`, { code: 'not_json', cause })
  }
}

function positive(name: string, value: number): number {
  if (Number.isFinite(value) && value > 0) return value
  throw new TypeError(`${name} must be a positive number of milliseconds, not ${value}`)
}
