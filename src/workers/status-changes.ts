/** From events of the log to changes of status: what the publisher has to tell. */
import { LRUCache } from 'lru-cache'
import type { Logger } from 'pino'
import { type Folded, TaskFolds } from '../engine/task-folds.ts'
import type { EventLog, StoredEvent } from '../eventlog/event-log.ts'
import { type StatusChange, statusOf } from './status-message.ts'

/** Tasks whose fault was told of. */
const TOLD_MAX = 10_000

export class StatusChanges {
  readonly #folds: TaskFolds
  readonly #logger: Logger
  readonly #told = new LRUCache<string, true>({ max: TOLD_MAX })

  constructor(log: EventLog, logger: Logger) {
    this.#folds = new TaskFolds(log, (taskId, error) => this.#tell(taskId, error))
    this.#logger = logger
  }

  /**
   * The changes of status or step among these events, in their order. A task whose stream cannot be folded is passed
   * over.
   *
   * @throws LogUnavailableError
   */
  async among(batch: readonly StoredEvent[]): Promise<StatusChange[]> {
    return (await this.#folds.among(batch)).flatMap(folded => changeOf(folded) ?? [])
  }

  /** The newest change of each of these tasks, as their streams say now. @throws LogUnavailableError */
  async newest(taskIds: readonly string[]): Promise<StatusChange[]> {
    const changes: StatusChange[] = []
    for await (const all of this.#folds.of(taskIds)) {
      const last = all.map(changeOf).findLast(change => change !== null)
      if (last) changes.push(last)
    }
    return changes
  }

  #tell(taskId: string, error: unknown): void {
    if (this.#told.has(taskId)) return
    this.#told.set(taskId, true)
    this.#logger.error(
      { err: error, taskId },
      'the stream of a task cannot be read: its status is not published any more',
    )
  }
}

/** Null where status and step are those of before. */
function changeOf({ stored, recorded, before, task }: Folded): StatusChange | null {
  const status = statusOf(task)
  const old = before && statusOf(before)
  if (old?.status === status.status && old.step === status.step) return null
  return { eventId: stored.id, what: recorded.event.type, at: recorded.metadata.at, status }
}
