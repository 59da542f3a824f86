/**
 * The client's methods over one way to the service. Each command carries an id made once per call, so the client's own
 * retries never double anything.
 */
import type {
  DeadLetterList,
  DeadLetterView,
  DiscardAnswer,
  RedriveAnswer,
} from '../api/schemas/dead-letters.ts'
import type { CreatedKey, KeyList, KeyView } from '../api/schemas/keys.ts'
import type { CountsAnswer } from '../api/schemas/lists.ts'
import type { TaskRefusals } from '../api/schemas/refusals.ts'
import type { RollCallAnswer, VerifyAnswer } from '../api/schemas/roll-call.ts'
import type { BatchAnswer, History, TaskList, TaskView } from '../api/schemas/tasks.ts'
import { positiveMs, wholeNumber } from './checks.ts'
import type {
  BatchTask,
  CallOptions,
  Client,
  ClientOptions,
  CommandOptions,
  HistoryOptions,
  TaskFilter,
} from './client-api.ts'
import { isPassing, RollcallError } from './errors.ts'
import { type Call, Http } from './http.ts'
import { newId } from './ids.ts'
import { labelFields, query, taskPath } from './paths.ts'
import { RETRY_BACKOFF, withRetries } from './retries.ts'
import { openStream, pathOf, settingsOf } from './stream.ts'
import type { StreamFilter, StreamOptions } from './stream-api.ts'
import { TaskReads } from './task-reads.ts'
import type { Transport } from './transport.ts'
import { backoffMs, sleep } from './waiting.ts'

const DEFAULT_TIMEOUT_MS = 10_000
const DEFAULT_RETRIES = 4
const RETRIES_MAX = 100

/** What differs from place to place: how requests go out, and how many of them may wait at the service at once. */
export interface Place {
  transport: () => Transport
  maxWaits: number
}

/** Makes a client. Throws a TypeError for options that cannot be meant; it connects when first asked. */
export function makeClient(options: ClientOptions, place: Place): Client {
  const http = new Http(options, place.transport)
  const timeoutMs = positiveMs('timeoutMs', options.timeoutMs ?? DEFAULT_TIMEOUT_MS)
  const retries = wholeNumber('retries', options.retries ?? DEFAULT_RETRIES, 0, RETRIES_MAX)
  const reads = new TaskReads(http, { timeoutMs, retries, maxWaits: place.maxWaits })

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
  /** A command to a task, named by its key: the client's own repetition of it is no other command. */
  const command = (path: string, taskId: string, body: object, given: CommandOptions = {}) => {
    const { commandId, ifRevision } = given
    const idempotencyKey = given.idempotencyKey ?? (commandId === undefined ? newId() : undefined)
    return post<TaskView>(`${taskPath(taskId)}/${path}`, { ...body, commandId }, given, {
      ...(idempotencyKey !== undefined && { 'idempotency-key': idempotencyKey }),
      ...(ifRevision !== undefined && { 'if-match': `"${ifRevision}"` }),
    })
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
    submitBatch: async (tasks, given = {}) => {
      const { idempotencyKey: key } = given
      const send = async (members: readonly object[]) =>
        (
          await post<BatchAnswer>('/v1/tasks/batch', { tasks: members }, given, {
            ...(key !== undefined && { 'idempotency-key': key }),
          })
        ).results
      return submitAll(tasks, { send, whole: key !== undefined, retries, signal: given.signal })
    },
    get: async (taskId, given) => reads.get(taskId, given),
    getIfChanged: async (taskId, etag, given) => reads.getIfChanged(taskId, etag, given),
    list: async (filter = {}) => {
      const { order, limit, cursor } = filter
      const fields = { ...filterFields(filter), order, limit, cursor }
      return call<TaskList>({ method: 'GET', path: `/v1/tasks${query(fields)}` }, filter)
    },
    counts: async (filter = {}) =>
      call<CountsAnswer>({ method: 'GET', path: `/v1/tasks/counts${query(filterFields(filter))}` }, filter),
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
    cancel: async (taskId, given = {}) => command('cancel', taskId, { reason: given.reason }, given),
    retry: async (taskId, given = {}) => command('retry', taskId, { reason: given.reason }, given),
    note: async (taskId, note, given) => command('notes', taskId, { note }, given),
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
    waitFor: async (taskId, given) => reads.waitFor(taskId, given),
    stream: (what: string | StreamFilter, given?: StreamOptions) =>
      openStream(http, pathOf(what), settingsOf(given, { timeoutMs, retries })),
    // Not tried again: were its answer lost, a second one could not tell the secret.
    createKey: async (key, given = {}) =>
      http.call<CreatedKey>({ method: 'POST', path: '/v1/keys', body: jsonOf(key), timeoutMs, ...given }),
    keys: async (page = {}) => {
      const { limit, cursor } = page
      return call<KeyList>({ method: 'GET', path: `/v1/keys${query({ limit, cursor })}` }, page)
    },
    revokeKey: async (keyId, given) =>
      post<KeyView>(`/v1/keys/${encodeURIComponent(keyId)}/revoke`, {}, given),
  }
}

function filterFields(filter: TaskFilter) {
  const { status, type, tenant, labels, correlationId, createdAfter, createdBefore, error } = filter
  return {
    ...{ status, type, tenant, correlationId, createdAfter, createdBefore, error },
    ...labelFields(labels),
  }
}

interface BatchPlan {
  send: (members: readonly object[]) => Promise<BatchAnswer['results']>
  /** One key stands for the whole batch, so it is sent again whole; otherwise each member has a key of its own. */
  whole: boolean
  retries: number
  signal: AbortSignal | undefined
}

/** Sends a batch; members that the service put off are sent again, with their keys, a bounded number of times. */
async function submitAll(
  tasks: readonly BatchTask[],
  { send, whole, retries, signal }: BatchPlan,
): Promise<BatchAnswer['results']> {
  const members = whole
    ? tasks
    : tasks.map(task => ({ ...task, idempotencyKey: task.idempotencyKey ?? newId() }))
  const results = await send(members)
  for (let round = 1; round <= retries; round++) {
    const open = results.flatMap((one, index) =>
      one.kind === 'refused' && isPassing(one.code) ? [index] : [],
    )
    if (open.length === 0) break
    await sleep(backoffMs(RETRY_BACKOFF, round), signal)
    const again = await send(whole ? members : open.map(index => members[index]!))
    open.forEach((index, place) => {
      results[index] = again[whole ? index : place] ?? results[index]!
    })
  }
  return results
}

function jsonOf(body: object): string {
  try {
    return JSON.stringify(body)
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause)
    throw new RollcallError(`The request cannot be written as JSON: ${why}`, { code: 'not_json', cause })
  }
}
