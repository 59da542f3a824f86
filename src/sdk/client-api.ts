/** What a client takes and answers. */
import type {
  DeadLetterList,
  DeadLetterView,
  DiscardAnswer,
  RedriveAnswer,
} from '../api/schemas/dead-letters.ts'
import type { CreatedKey, KeyList, KeyView, NewKeyRequest } from '../api/schemas/keys.ts'
import type { CountsAnswer } from '../api/schemas/lists.ts'
import type { TaskRefusals } from '../api/schemas/refusals.ts'
import type { RollCallAnswer, VerifyAnswer, VerifyRequest } from '../api/schemas/roll-call.ts'
import type {
  BatchAnswer,
  History,
  HistoryEvent,
  SubmitRequest,
  TaskList,
  TaskView,
} from '../api/schemas/tasks.ts'
import type { HttpOptions } from './http.ts'
import type { StreamFilter, StreamOptions, TaskStream } from './stream-api.ts'

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

/** A task of a batch; a key of its own where the batch has none. */
export type BatchTask = SubmitTask & { idempotencyKey?: string }

export interface CommandOptions extends CallOptions {
  /** Names the command: your own repetition with the same key is recognised. The client makes one where none is given. */
  idempotencyKey?: string
  /** Refuse with `revision_mismatch` unless the task is at this revision. */
  ifRevision?: number
  /** @deprecated What `idempotencyKey` was called. */
  commandId?: string
}

export interface ReasonOptions extends CommandOptions {
  /** Kept in the history and shown to people. */
  reason?: string
}

export interface GetOptions extends CallOptions {
  /**
   * Lets the service wait for the end of the task, so many whole seconds at most (up to 60), before it answers how the
   * task is then. Counted besides `timeoutMs`. `waitFor` does this for you.
   */
  waitSeconds?: number
}

/** Which tasks; what is left out matches any. */
export interface TaskFilter extends CallOptions {
  status?: TaskView['status'] | readonly TaskView['status'][]
  type?: string
  tenant?: string
  /** Labels the task must have, with these values; up to 10. */
  labels?: Record<string, string>
  correlationId?: string
  /** A text is ISO 8601 with an offset. */
  createdAfter?: Date | string
  createdBefore?: Date | string
  /** A part of the error message, in any case, or the whole error code. */
  error?: string
}

export interface ListFilter extends TaskFilter, PageOptions {
  order?: 'newest' | 'oldest'
}

export interface HistoryOptions extends CallOptions {
  /** The first revision wanted. */
  from?: number
  limit?: number
}

export interface DeadLetterFilter extends PageOptions {
  /** Default `waiting`. */
  status?: DeadLetterView['status']
  /** The code of what is wrong. */
  reason?: string
  taskId?: string
}

export interface PageOptions extends CallOptions {
  limit?: number
  /** `nextCursor` of the page before. */
  cursor?: string
}

export interface WaitOptions {
  /** How long to wait for the end. Default 300,000 (5 minutes). */
  timeoutMs?: number
  signal?: AbortSignal
}

/** A task as it is, and the name of this state of it. */
export interface TaskWithEtag {
  task: TaskView
  /** Give it back to `getIfChanged`. */
  etag: string
}

/** Every method rejects with a RollcallError; see its `code`. */
export interface Client {
  /** Stores a task; once this resolves, the task is not lost. */
  submit(task: SubmitTask, options?: SubmitOptions): Promise<TaskView>
  /**
   * Stores up to 1,000 tasks in one request; the answer has a result for each, in order. An `idempotencyKey` in the
   * options stands for the whole batch.
   */
  submitBatch(tasks: readonly BatchTask[], options?: SubmitOptions): Promise<BatchAnswer['results']>
  get(taskId: string, options?: GetOptions): Promise<TaskView>
  /**
   * The task if it is not as it was when it had this etag (null: in any case), else null. With `waitSeconds` the service
   * waits so long for a change. The progress of a running task and the place of a waiting one are changes as well.
   */
  getIfChanged(taskId: string, etag: string | null, options?: GetOptions): Promise<TaskWithEtag | null>
  /** A page of tasks. It comes from the read model and says how far that lags. */
  list(filter?: ListFilter): Promise<TaskList>
  /** How many tasks match, by status, each counted up to a bound. From the read model, as lists are. */
  counts(filter?: TaskFilter): Promise<CountsAnswer>
  /** A page of a task's events. */
  history(taskId: string, options?: HistoryOptions): Promise<History>
  /** All events of a task, page by page, from `from` on. */
  events(taskId: string, options?: HistoryOptions): AsyncGenerator<HistoryEvent, void, undefined>
  /** What the task was asked and refused: the first 20, the last 20 and how many there were. */
  refusals(taskId: string, options?: CallOptions): Promise<TaskRefusals>
  cancel(taskId: string, options?: ReasonOptions): Promise<TaskView>
  /** Puts a failed task back to the queue (a new run), or ends the backoff of a retrying one. */
  retry(taskId: string, options?: ReasonOptions): Promise<TaskView>
  /** Adds a remark to the history. */
  note(taskId: string, note: string, options?: CommandOptions): Promise<TaskView>
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
  /**
   * What happens to a task until it is final, as it happens: `for await (const message of client.stream(taskId))`. It
   * begins with the state now, connects when it is first asked, and again by itself when the connection is lost; no
   * transition is left out. Leaving the loop closes the connection.
   */
  stream(taskId: string, options?: StreamOptions): TaskStream
  /** What happens from now on to the tasks that match, without an end. */
  stream(filter: StreamFilter, options?: StreamOptions): TaskStream
  /** Makes an access key (scope `admin`). Its `secret` is in this answer and nowhere else. */
  createKey(key: NewKeyRequest, options?: CallOptions): Promise<CreatedKey>
  /** A page of the keys, the newest first, revoked ones among them. */
  keys(page?: PageOptions): Promise<KeyList>
  /** Ends a key, by its id or its name. */
  revokeKey(keyId: string, options?: CallOptions): Promise<KeyView>
}
