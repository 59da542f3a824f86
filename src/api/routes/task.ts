/** One task: as it stands now, or as soon as it stands where its caller waits for it. */
import type { FastifyReply } from 'fastify'
import { z } from 'zod'
import type { Signals } from '../../domain/signals.ts'
import { isOpen, type Task } from '../../domain/task.ts'
import { etagOf, namesVersion } from '../etag.ts'
import { goneSignal } from '../gone.ts'
import type { AppParts, TypedApp } from '../parts.ts'
import { preferredWait } from '../prefer.ts'
import { readTask } from '../read-task.ts'
import { taskParamsSchema, taskViewSchema } from '../schemas/tasks.ts'
import type { SignalWatch } from '../signal-watch.ts'
import { signalsOf, taskAnswer } from '../task-answer.ts'
import { type Wait, Waits } from '../waits.ts'

const notModifiedSchema = z.null().describe('The task has one of those ETags still.')

interface Known {
  task: Task
  signals: Signals
}

export function taskRoute(app: TypedApp, parts: AppParts, signalWatch: SignalWatch): void {
  const waits = new Waits(parts)
  // Those who wait are answered with the state of now when the service begins to stop.
  const stopping = new AbortController()
  app.addHook('preClose', async () => stopping.abort())

  app.get(
    '/v1/tasks/:id',
    {
      config: { scope: 'read' },
      schema: { params: taskParamsSchema, response: { 200: taskViewSchema, 304: notModifiedSchema } },
    },
    async (request, reply) => {
      const { id } = request.params
      const known = request.headers['if-none-match'] ?? null
      const seconds = preferredWait(request.headers.prefer)
      if (seconds === null) return answer(reply, known, await read(id))
      reply.header('preference-applied', `wait=${seconds}`)
      const signal = AbortSignal.any([stopping.signal, goneSignal(reply)])
      // Before the first look: what comes between the two is heard of (S74).
      const wait = await waits.begin(id, seconds * 1_000, signal)
      try {
        return await answer(
          reply,
          known,
          await (known === null ? untilFinal(id, wait) : untilOther(id, known, wait)),
        )
      } finally {
        wait.end()
      }
    },
  )

  async function read(id: string): Promise<Known> {
    const task = await readTask(parts, id)
    return explained(task)
  }

  const explained = async (task: Task): Promise<Known> => ({ task, signals: await signalsOf(parts, task) })

  async function untilFinal(id: string, wait: Wait): Promise<Known> {
    for (;;) {
      // Its signals say nothing about whether it is final.
      const task = await readTask(parts, id)
      if (wait.over || !isOpen(task)) return explained(task)
      await wait.next()
    }
  }

  async function untilOther(id: string, version: string, wait: Wait): Promise<Known> {
    for (;;) {
      const known = await read(id)
      if (wait.over || !namesVersion(version, etagOf(known.task, known.signals))) return known
      const unwatch = signalWatch.add(known.task, known.signals, wait.moved)
      await wait.next().finally(unwatch)
    }
  }

  async function answer(reply: FastifyReply, version: string | null, { task, signals }: Known) {
    const etag = etagOf(task, signals)
    reply.header('etag', etag)
    // A connection that is idle from now on would be waited for.
    if (stopping.signal.aborted) reply.header('connection', 'close')
    if (version !== null && namesVersion(version, etag)) return reply.code(304).send()
    return reply.send(await taskAnswer(parts, task, signals))
  }
}
