/**
 * What a flight carries: commands as they were decided, the events that they append, and the tasks with them.
 */
import { randomUUID } from 'node:crypto'
import type { CommandEnvelope } from '../domain/commands.ts'
import type { Decision } from '../domain/decide.ts'
import type { Instant, RecordedEvent, TaskEvent } from '../domain/events.ts'
import { evolve } from '../domain/evolve.ts'
import type { Task } from '../domain/task.ts'
import { eventBytes } from '../eventlog/check-append.ts'
import { encodeEvent, streamOf } from '../eventlog/codec.ts'
import type { Append, EncodedEvent } from '../eventlog/event-log.ts'
import type { Answer } from './answer.ts'
import type { Waiting } from './command-queues.ts'

export interface Decided {
  member: Waiting
  task: Task | null
  decision: Decision
  /** The clock's time of the decision, stored as the event's `at`. */
  now: Instant
  /** Whether `task` was caught up with the stream in this flight. */
  current: boolean
}

export interface Staged extends Decided {
  stage: Stage
  /** What goes into the log with it. */
  followed: Followed | null
}

export interface Followed extends FollowUp {
  stage: Stage
  /** performance.now() when it was asked for. */
  since: number
}

/**
 * A command that goes into the log with the submit before it, as one append: both are stored or none is. It is decided on
 * what the submit makes of the task.
 */
export interface FollowUp {
  envelope: CommandEnvelope
  /** Told once; null where the command was not taken up, and nothing of it stored. */
  resolve: (answer: Answer | null) => void
}

/** An event of a task, as it will be stored and read. */
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

export const isSubmit = ({ member, decision }: Staged): boolean =>
  member.envelope.command.trigger === 'SUBMIT' && decision.kind === 'accepted'

/** Nothing of what goes with it is stored. */
export function dropFollowUp(one: Staged): void {
  one.followed?.resolve(null)
  one.followed = null
}

export const stagesOf = ({ stage, followed }: Staged): Stage[] =>
  followed ? [stage, followed.stage] : [stage]

export function eventOf(decision: Decision): TaskEvent | null {
  if (decision.kind === 'accepted') return decision.event
  return decision.kind === 'refused' ? (decision.event ?? null) : null
}

export function answerWithoutEvent({ decision, task }: Decided): Answer {
  if (decision.kind === 'refused') return { kind: 'refused', ...decision.refusal, task }
  if (!task) throw new Error('bug: nothing can be repeated without a task')
  return { kind: 'repeated', task }
}
