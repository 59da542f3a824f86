/** What the page of the browser test runs: the client as a page has it. The test calls it by its name. */
import { createClient, RollcallError } from 'rollcall/client'

const client = createClient({ url: location.origin })

globalThis.page = {
  /** Submits a task and follows it to its end. */
  async follow(task) {
    const { taskId } = await client.submit(task)
    const told = []
    for await (const message of client.stream(taskId)) {
      told.push([message.kind, message.event, message.task?.status, message.task?.progress])
      globalThis.lastTold = message
    }
    return { taskId, told, done: await client.get(taskId) }
  },

  async waitFor(task) {
    const { taskId } = await client.submit(task)
    return client.waitFor(taskId, { timeoutMs: 20_000 })
  },

  /** Takes the first message and leaves. */
  async leave(taskId) {
    for await (const message of client.stream(taskId)) return message.task.status
  },

  async unchanged(taskId) {
    const found = await client.getIfChanged(taskId, null)
    return client.getIfChanged(taskId, found.etag)
  },

  async failure(taskId) {
    try {
      return await client.get(taskId)
    } catch (error) {
      return { ours: error instanceof RollcallError, code: error.code, status: error.status }
    }
  },
}
