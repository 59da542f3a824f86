/**
 * The audit of the streams themselves: what became of every task, by the log alone and by nobody's counters. It
 * reads the whole log once, in order, up to the head it finds at the start.
 */
import type { TaskEvent } from '../domain/events.ts'
import { evolve } from '../domain/evolve.ts'
import { isOpen, type Task } from '../domain/task.ts'
import { decodeEvent, taskIdOf } from '../eventlog/codec.ts'
import { type EventLog, LogUnavailableError } from '../eventlog/event-log.ts'

type FinalEvent = Extract<
  TaskEvent,
  { type: 'TaskSucceeded' | 'TaskFailed' | 'TaskTimedOut' | 'TaskCancelled' }
>

/** Whether an event ends a run. */
const isFinal = (event: TaskEvent): event is FinalEvent =>
  ['TaskSucceeded', 'TaskFailed', 'TaskTimedOut', 'TaskCancelled'].includes(event.type)

export interface AuditedTask {
  /** Null where the stream could not be folded. */
  task: Task | null
  /** How many final events each run has; one each is right. */
  outcomesByRun: ReadonlyMap<number, number>
  /** Why the stream is broken: an event out of order, one that no schema takes, or a chain of hashes with a gap. */
  broken: string | null
  events: number
}

export interface Audit {
  tasks: ReadonlyMap<string, AuditedTask>
  /** Tasks of `expected` without a stream, or still open. */
  missing: string[]
  /** Tasks with a run that has more than one outcome. */
  doubled: string[]
  broken: string[]
}

/**
 * Audits the log.
 *
 * @param expected ids of tasks that were accepted and should be final by now; null takes every task in the log
 * @throws when the log could not be read to its head, or `signal` was aborted before: half an audit is none
 */
export async function auditLog(
  log: EventLog,
  expected: readonly string[] | null,
  signal?: AbortSignal,
): Promise<Audit> {
  const tasks = await foldAll(log, signal)
  const ids = expected ?? [...tasks.keys()]
  const missing = ids.filter(id => {
    const audited = tasks.get(id)
    return !audited?.task || isOpen(audited.task)
  })
  const doubled = [...tasks].filter(([, one]) => [...one.outcomesByRun.values()].some(count => count > 1))
  const broken = [...tasks].filter(([, one]) => one.broken !== null)
  return { tasks, missing, doubled: doubled.map(([id]) => id), broken: broken.map(([id]) => id) }
}

interface Folding {
  task: Task | null
  outcomesByRun: Map<number, number>
  broken: string | null
  events: number
}

async function foldAll(log: EventLog, signal?: AbortSignal): Promise<Map<string, Folding>> {
  const tasks = new Map<string, Folding>()
  const head = await log.head()
  if (!head) return tasks
  const done = new AbortController()
  const ends = signal ? AbortSignal.any([signal, done.signal]) : done.signal
  await log.follow(
    null,
    async batch => {
      for (const stored of batch) {
        const taskId = taskIdOf(stored.stream)
        if (taskId !== null) foldOne(tasks, taskId, stored)
        if (stored.id === head.eventId) return done.abort()
      }
    },
    ends,
  )
  if (done.signal.aborted) return tasks
  signal?.throwIfAborted()
  throw new LogUnavailableError('the log was closed before the audit reached its head')
}

function foldOne(
  tasks: Map<string, Folding>,
  taskId: string,
  stored: Parameters<typeof decodeEvent>[0],
): void {
  const folding = tasks.get(taskId) ?? { task: null, outcomesByRun: new Map(), broken: null, events: 0 }
  tasks.set(taskId, folding)
  folding.events++
  if (folding.broken !== null) return
  try {
    const recorded = decodeEvent(stored)
    const { event } = recorded
    // Counted before it is folded: the fold would refuse a second outcome, and the count is to show it.
    if (isFinal(event))
      folding.outcomesByRun.set(event.data.run, (folding.outcomesByRun.get(event.data.run) ?? 0) + 1)
    folding.task = evolve(taskId, folding.task, recorded)
  } catch (error) {
    folding.task = null
    folding.broken = (error as Error).message
  }
}
