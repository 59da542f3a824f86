/**
 * The clients: they submit what the plan says when it says so, one by one and in batches, to whichever API is next,
 * ask again with the same ids until they are answered, and keep every answer.
 */
import { setMaxListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, createClient, RollcallError, type TaskView } from '../../../src/sdk/client.ts'
import { type ActAnswer, type ClientAnswers, noteOf, type SubmittedTask } from './answers.ts'
import type { Act, PlannedSubmit, PlannedTask } from './plan.ts'

/** The longest a client waits for one answer; then it asks the other API. */
const CALL_MS = 4_000
const AGAIN_MS = { first: 50, longest: 1_000 }
/** The longest it waits for a task to fail, to ask for another run then. */
const FAILED_MS = 30_000

/** Refusals that are answers: the task had gone elsewhere. */
const EXPECTED_REFUSALS: Record<Act['what'], readonly string[]> = {
  cancel: ['task_finished'],
  retry: ['task_finished', 'illegal_transition'],
  note: [],
  read: [],
}

export class Load {
  readonly answers: ClientAnswers = { tasks: [], seen: [], acts: [], strange: [] }
  readonly #clients: Client[]
  readonly #giveUp = new AbortController()
  #turn = 0
  #unanswered = 0
  /** Asks that were not answered, or answered "ask again later". */
  repeats = 0

  constructor(urls: readonly string[]) {
    // Every pause of every client listens to it.
    setMaxListeners(0, this.#giveUp.signal)
    this.#clients = urls.map(url => createClient({ url, retries: 0, timeoutMs: CALL_MS }))
  }

  /** Runs the plan's submits and acts; resolves when all are answered, or when the clients give up. */
  async run(submits: readonly PlannedSubmit[], began: number): Promise<void> {
    await Promise.all(
      submits.map(async submit => {
        await this.#pause(began + submit.atMs - performance.now())
        this.#unanswered++
        await this.#submit(submit)
        this.#unanswered--
      }),
    )
  }

  /** Whatever is not answered by now stays unknown. */
  giveUp(): void {
    this.#giveUp.abort()
  }

  /** What keeps the run from its end, as the service itself says; empty when nothing does. */
  async waitsFor(): Promise<string> {
    try {
      return await this.#waitsFor()
    } catch (error) {
      return `an answer of sense, not: ${(error as Error).message}`
    }
  }

  async #waitsFor(): Promise<string> {
    const asked = this.#unanswered > 0 ? [`${this.#unanswered} clients without an answer`] : []
    const open = await this.#ask(client =>
      client.list({ status: ['PENDING', 'PROCESSING', 'RETRYING'], limit: 500 }),
    )
    if (!open) return [...asked, 'the service'].join(', ')
    if (open.tasks.length > 0) {
      const [{ taskId, status, nextDeadline } = {}] = open.tasks
      asked.push(`${open.tasks.length} open tasks (${taskId} ${status} ${JSON.stringify(nextDeadline)})`)
    }
    if (open.lagSeconds > 0) asked.push(`a read model ${open.lagSeconds} s behind`)
    const call = await this.#ask(client => client.rollCall())
    if (!call) return [...asked, 'a roll call'].join(', ')
    const { total, unknownBecause, reasons } = call.unaccounted
    if (total === null) asked.push(`a roll call (${unknownBecause})`)
    else if (total > 0) {
      const named = reasons
        .filter(({ count }) => count > 0)
        .map(({ reason, count, tasks: [first] }) => `${reason} ${count}, ${first?.taskId}: ${first?.detail}`)
      asked.push(`${total} unaccounted tasks (${named.join('; ')})`)
    }
    return asked.join(', ')
  }

  async #submit({ tasks, givesUp }: PlannedSubmit): Promise<void> {
    const submitted: SubmittedTask[] = tasks.map(planned => ({ planned, taskId: null }))
    this.answers.tasks.push(...submitted)
    try {
      if (submitted.length === 1) await this.#submitOne(submitted[0]!, givesUp)
      else await this.#submitBatch(submitted, givesUp)
    } catch (error) {
      this.#strange(error)
    }
    await Promise.all(submitted.flatMap(task => task.planned.acts.map(act => this.#act(task, act))))
  }

  async #submitOne(task: SubmittedTask, givesUp: boolean): Promise<void> {
    const view = await this.#ask(
      client => client.submit(requestOf(task.planned), { idempotencyKey: task.planned.key }),
      givesUp,
    )
    if (view) task.taskId = this.#see(view).taskId
  }

  /** Members are answered each for itself, so those that are still open go once more. */
  async #submitBatch(submitted: readonly SubmittedTask[], givesUp: boolean): Promise<void> {
    for (let left = submitted; left.length > 0 && !this.#giveUp.signal.aborted; ) {
      const open = left
      const results = await this.#ask(
        client =>
          client.submitBatch(
            open.map(({ planned }) => ({ ...requestOf(planned), idempotencyKey: planned.key })),
          ),
        givesUp,
      )
      results?.forEach((result, index) => {
        if (result.kind !== 'refused') open[index]!.taskId = result.taskId
      })
      left = open.filter(({ taskId }) => taskId === null)
      if (givesUp) return
      if (left.length > 0) await this.#pause(AGAIN_MS.longest)
    }
  }

  async #act(task: SubmittedTask, act: Act): Promise<void> {
    const { taskId } = task
    if (taskId === null) return
    await this.#pause(act.afterMs)
    const answer: ActAnswer = { taskId, act, said: null, sent: 0, at: 0 }
    this.answers.acts.push(answer)
    try {
      if (act.what === 'retry') await this.#untilFailed(taskId)
      const view = await this.#ask(client => {
        answer.sent++
        return ask(client, taskId, act)
      })
      answer.at = Date.now()
      if (!view) return
      this.#see(view)
      answer.said = 'accepted'
    } catch (error) {
      answer.at = Date.now()
      if (error instanceof RollcallError) answer.said = error.code
      if (!EXPECTED_REFUSALS[act.what].includes(answer.said ?? '')) this.#strange(error)
    }
  }

  /** Only as long as it takes to be worth asking; a task that does not fail is asked all the same, and says no. */
  async #untilFailed(taskId: string): Promise<void> {
    const until = performance.now() + FAILED_MS
    while (performance.now() < until && !this.#giveUp.signal.aborted) {
      const view = await this.#ask(client => client.get(taskId))
      if (!view || ['FAILED', 'SUCCESS', 'CANCELLED'].includes(this.#see(view).status)) return
      await this.#pause(AGAIN_MS.longest)
    }
  }

  /**
   * Asks one API after the other until there is an answer; null where the client gives up first.
   *
   * @throws RollcallError for a refusal that stands
   */
  async #ask<T>(call: (client: Client) => Promise<T>, once = false): Promise<T | null> {
    for (let waitMs = AGAIN_MS.first; !this.#giveUp.signal.aborted; waitMs *= 2) {
      try {
        return await call(this.#clients[this.#turn++ % this.#clients.length]!)
      } catch (error) {
        if (!(error instanceof RollcallError)) throw error
        if (!error.retryable) throw error
        this.repeats++
        if (once) return null
        await this.#pause(Math.min(waitMs, AGAIN_MS.longest))
      }
    }
    return null
  }

  #see(view: TaskView): TaskView {
    const { taskId, status, revision, hash } = view
    this.answers.seen.push({ taskId, status, revision, hash })
    return view
  }

  #strange(error: unknown): void {
    this.answers.strange.push(error instanceof Error ? error.message : String(error))
  }

  async #pause(ms: number): Promise<void> {
    if (ms > 0) await sleep(ms, undefined, { signal: this.#giveUp.signal }).catch(() => {})
  }
}

function ask(client: Client, taskId: string, { what, commandId, ...act }: Act): Promise<TaskView> {
  switch (what) {
    case 'cancel':
      return client.cancel(taskId, { commandId, reason: 'the client changed its mind' })
    case 'retry':
      return client.retry(taskId, { commandId, reason: 'the client wants it all the same' })
    case 'note':
      return client.note(taskId, noteOf({ what, commandId, ...act }), { commandId })
    case 'read':
      return client.get(taskId)
  }
}

function requestOf({ type, payload, priority, delayMs, timeouts, retry }: PlannedTask) {
  return { type, payload, priority, delayMs, timeouts, retry }
}
