/** What streams say, as bytes. Each is made once, however many streams it goes to. */
import { NO_SIGNALS } from '../../domain/signals.ts'
import type { Task } from '../../domain/task.ts'
import type { Change } from '../../engine/changes.ts'
import type { Checkpoint } from '../../eventlog/event-log.ts'
import type { EndMessage, ResyncMessage, TaskMessage, TaskStatus } from '../schemas/streams.ts'
import type { TaskView } from '../schemas/tasks.ts'
import { taskView } from '../views.ts'
import { placeId } from './place.ts'

interface Parts {
  event?: 'task' | 'place' | 'resync' | 'end'
  id?: string | null
  retryMs?: number
  data?: unknown
}

/** One message; JSON has no raw line feed. */
function message({ event, id, retryMs, data }: Parts): Buffer {
  const lines = [
    ...(retryMs === undefined ? [] : [`retry: ${retryMs}`]),
    ...(event === undefined ? [] : [`event: ${event}`]),
    ...(id === undefined || id === null ? [] : [`id: ${id}`]),
    ...(data === undefined ? [] : [`data: ${JSON.stringify(data)}`]),
  ]
  return Buffer.from(`${lines.join('\n')}\n\n`)
}

/** How long a client waits before it connects again. */
export const BEGINNING = message({ retryMs: 2_000 })
export const PING = Buffer.from(': ping\n\n')

export const resync = (reason: ResyncMessage['reason']): Buffer =>
  message({ event: 'resync', data: { reason } satisfies ResyncMessage })

export const end = (reason: EndMessage['reason'], retryMs?: number): Buffer =>
  message({ event: 'end', data: { reason } satisfies EndMessage, ...(retryMs && { retryMs }) })

/** Hashes are long; so much of one tells two events at the same revision apart. */
const HASH_CHARACTERS = 16

/** Where a task's stream stands after the event that a task was folded to. */
export const taskEventId = ({ revision, hash }: Pick<Task, 'revision' | 'hash'>): string =>
  `${revision}.${hash.slice(0, HASH_CHARACTERS)}`

/** A place in the log without anything that happened there: whoever comes back begins there. */
export const placeMessage = (place: Checkpoint | null): Buffer =>
  message({ event: 'place', id: placeId(place), data: {} })

/** What tells of tasks. */
export class TaskMessages {
  readonly #data = new WeakMap<Change, TaskMessage>()
  readonly #ofTask = new WeakMap<Change, Buffer>()
  readonly #ofFilter = new WeakMap<Change, Buffer>()
  readonly #ofView = new WeakMap<TaskView, Buffer>()

  /**
   * What an event made of its task. What was known beside the stream by then is not kept, so it is as of the event alone.
   *
   * @param logId null for the stream of one task, whose places are those of the task's own stream
   */
  transition(change: Change, logId: string | null): Buffer {
    const { position, id: eventId } = change.stored
    const id = () => (logId === null ? taskEventId(change.task) : placeId({ logId, position, eventId }))
    return once(logId === null ? this.#ofTask : this.#ofFilter, change, () =>
      message({ event: 'task', id: id(), data: once(this.#data, change, () => dataOf(change)) }),
    )
  }

  /** A task as it stands, outside of its events: whoever comes back is not past anything by it. */
  signals(view: TaskView): Buffer {
    return once(this.#ofView, view, () => stateMessage(view))
  }
}

/** A task as it stands. @param id where its stream stands by it; left out, nothing of it is passed */
export const stateMessage = (view: TaskView, id?: string): Buffer =>
  message({
    event: 'task',
    ...(id !== undefined && { id }),
    data: { event: null, task: statusOf(view) } satisfies TaskMessage,
  })

function dataOf({ task, recorded, definition }: Change): TaskMessage {
  const view = taskView(task, NO_SIGNALS, recorded.metadata.at, definition, null)
  return { event: recorded.event.type, task: statusOf(view) }
}

function once<Of extends object, Made>(made: WeakMap<Of, Made>, of: Of, make: () => Made): Made {
  let one = made.get(of)
  if (one === undefined) {
    one = make()
    made.set(of, one)
  }
  return one
}

/** Without what is large, and told by the task itself. */
function statusOf(view: TaskView): TaskStatus {
  const { payload, result, labels, timeouts, retry, ...status } = view
  return status
}
