import type { Task } from '../domain/task.ts'
import { refused } from '../engine/answer.ts'
import { taskOf } from './answers.ts'
import type { AppParts } from './parts.ts'
import { Problem } from './problems.ts'

/** The task as its stream says now. @throws Problem not_found, set_aside */
export async function readTask({ engine }: Pick<AppParts, 'engine'>, id: string): Promise<Task> {
  const loaded = await engine.read(id)
  switch (loaded.kind) {
    case 'task':
      return loaded.task
    case 'absent':
      throw new Problem('not_found')
    case 'broken':
      return taskOf(refused('set_aside', null, loaded.error.message)).task
  }
}
