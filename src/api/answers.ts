import type { Task } from '../domain/task.ts'
import type { Answer } from '../engine/answer.ts'
import { Problem } from './problems.ts'

/** The task of an answer. @throws Problem for a refusal */
export function taskOf(answer: Answer): { task: Task; repeated: boolean } {
  if (answer.kind === 'refused') throw new Problem(answer.code, answer.message)
  return { task: answer.task, repeated: answer.kind === 'repeated' }
}
