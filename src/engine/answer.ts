import type { Logger } from 'pino'
import type { CommandEnvelope } from '../domain/commands.ts'
import type { RecordedEvent } from '../domain/events.ts'
import type { Status } from '../domain/lifecycle.ts'
import { REFUSALS, type RefusalCode } from '../domain/refusals.ts'
import type { Task } from '../domain/task.ts'

/** Refusals that come from the machinery around the decision, beside the domain's own. */
export const ENGINE_REFUSALS = {
  conflict: 'The task was changed by others again and again while this was decided; ask again.',
  overloaded: 'Too many commands are waiting; ask again later.',
  log_unavailable:
    'The event log cannot be reached; whether the command was stored is not known. Ask again with the same ids.',
  too_large: 'The event would be larger than the log accepts.',
  set_aside: 'The stream of this task cannot be read; an operator has to look at it.',
  internal_error: 'The service failed while it decided this; the reason is in its log.',
  shutting_down: 'The service is stopping; ask again later.',
} as const

export const ALL_REFUSALS = { ...REFUSALS, ...ENGINE_REFUSALS } as const
export type AnyRefusalCode = RefusalCode | keyof typeof ENGINE_REFUSALS

/**
 * What became of a command.
 * - `accepted`: its event is durable; `from` is the status before it, null for a submit. `repeated`: it had been
 *   accepted before, nothing was stored.
 * - `refused`: the answer is no; `task` is the state it was refused in, null where there is none.
 */
export type Answer =
  | { kind: 'accepted'; from: Status | null; task: Task; event: RecordedEvent }
  | { kind: 'repeated'; task: Task }
  | { kind: 'refused'; code: AnyRefusalCode; message: string; task: Task | null }

export const refused = (code: AnyRefusalCode, task: Task | null = null, message?: string): Answer => ({
  kind: 'refused',
  code,
  message: message ?? ALL_REFUSALS[code],
  task,
})

/**
 * Told of every answer, with the milliseconds since the command was asked: for counters and for keeping refusals.
 * It is called between commands, so it must be quick and must not wait.
 */
export type AnswerObserver = (envelope: CommandEnvelope, answer: Answer, ms: number) => void

/** Each transition at info, each refusal at warn; a repetition says nothing new. */
export function logAnswer(logger: Logger, { taskId, command, actor }: CommandEnvelope, answer: Answer): void {
  const { trigger } = command
  if (answer.kind === 'accepted') {
    const { status, revision, type } = answer.task
    const event = answer.event.event.type
    logger.info({ taskId, type, trigger, event, status, revision, actor: actor.id }, 'transition')
  } else if (answer.kind === 'refused') {
    const status = answer.task?.status ?? null
    logger.warn({ taskId, trigger, status, code: answer.code, actor: actor.id }, 'refused')
  }
}
