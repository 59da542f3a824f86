/** A task as it is answered: its fold, explained by its signals and its lifecycle. */
import { NO_SIGNALS, type Signals } from '../domain/signals.ts'
import type { Task } from '../domain/task.ts'
import type { AppParts } from './parts.ts'
import type { TaskView } from './schemas/tasks.ts'
import { taskView } from './views.ts'

/** Signals explain a task, so it is answered without them where they cannot be read. */
export const signalsOf = ({ workState }: Pick<AppParts, 'workState'>, task: Task): Promise<Signals> =>
  workState.signals(task).catch(() => NO_SIGNALS)

/** @param signals those of a task that has just been read; left out, they are read now */
export async function taskAnswer(
  parts: Pick<AppParts, 'engine' | 'workState' | 'clock' | 'estimates'>,
  task: Task,
  signals?: Signals,
): Promise<TaskView> {
  const known = signals ?? (await signalsOf(parts, task))
  const definition = await parts.engine.definitionOf(task)
  const now = parts.clock.now()
  return taskView(task, known, now, definition, await parts.estimates.of(task, known, now))
}
