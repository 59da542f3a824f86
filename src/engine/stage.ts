/** What a flight is about to append: an event of a task, as it will be stored and read, and the task with it. */
import { randomUUID } from 'node:crypto'
import type { CommandEnvelope } from '../domain/commands.ts'
import type { Instant, RecordedEvent, TaskEvent } from '../domain/events.ts'
import { evolve } from '../domain/evolve.ts'
import type { Task } from '../domain/task.ts'
import { eventBytes } from '../eventlog/check-append.ts'
import { encodeEvent, streamOf } from '../eventlog/codec.ts'
import type { Append, EncodedEvent } from '../eventlog/event-log.ts'

export interface Stage {
  encoded: EncodedEvent
  recorded: RecordedEvent
  /** With the event. */
  task: Task
  bytes: number
}

/**
 * Stages what a command was decided to do.
 *
 * @param before the task without it; null where the event is its first
 * @param at stored as the event's time
 */
export function stageEvent(
  { taskId, actor, source, commandId, correlationId, causationId, trace }: CommandEnvelope,
  before: Task | null,
  event: TaskEvent,
  at: Instant,
): Stage {
  const revision = before ? before.revision + 1 : 0
  const prevHash = before?.hash ?? null
  const metadata = { at, actor, source, commandId, correlationId, causationId, trace, prevHash }
  const { encoded, recorded } = encodeEvent(streamOf(taskId), revision, randomUUID(), event, metadata)
  return { encoded, recorded, task: evolve(taskId, before, recorded), bytes: eventBytes(encoded) }
}

/** The append of events that follow each other. */
export const appendOf = (before: Task | null, stages: readonly Stage[]): Append => ({
  stream: streamOf(stages[0]!.task.taskId),
  expected: before?.revision ?? 'no_stream',
  events: stages.map(({ encoded }) => encoded),
})
