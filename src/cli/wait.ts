/** Waiting for the end of a task, for so long. */
import type { Client, TaskView } from '../sdk/client.ts'

/** The task at its end, or as it is when the time is over. */
export async function endOrNow(client: Client, taskId: string, timeoutMs: number): Promise<TaskView> {
  try {
    return await client.waitFor(taskId, { timeoutMs })
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'timeout')) throw error
    return client.get(taskId)
  }
}
