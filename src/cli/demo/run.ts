/** The demo from its empty folder to the roll call. */
import type { Client } from '../../sdk/client.ts'
import { createClient } from '../../sdk/client.ts'
import { CliError, EXIT } from '../failures.ts'
import type { Instance } from '../instance.ts'
import { type Counts, type Display, finished, NO_COUNTS } from './display.ts'
import type { Fleet } from './fleet.ts'
import { FATES, type PlannedTask } from './plan.ts'

export interface DemoParts {
  instance: Instance
  fleet: Fleet
  workers: number
  plan: readonly PlannedTask[]
  display: Display
  signal: AbortSignal
}

const BATCH = 500
const LOOK_MS = 200
/** Shares of the finished tasks at which a worker is killed. */
const KILLS = [0.2, 0.5]
/** A cancelled task is given a moment in its worker's hands first. */
const CANCEL_AFTER_MS = 500
/** For a slow machine; what is open then is missing at the roll call. */
const LIMIT = { baseMs: 120_000, perTaskMs: 1_500 }

/**
 * Submits the plan, lets it happen, and returns the accepted ids in the plan's order, once all tasks are final or
 * the time is over.
 *
 * @throws the signal's reason when it is aborted
 */
export async function runPlan(parts: DemoParts): Promise<string[]> {
  const { instance, fleet, plan, display, signal } = parts
  const client = createClient({ url: instance.url })
  for (let worker = 0; worker < parts.workers; worker++) fleet.start()
  const fed = instance.kafkaBrokers.length > 0 ? ', fed by Kafka' : ''
  display.event(`${parts.workers} workers are started, each a process of its own${fed}`)
  const ids = await submitAll(client, plan)
  display.event(`${ids.length} tasks are accepted`)

  const canceller = new Canceller(client, plan, ids, display)
  const kills = KILLS.map(share => Math.round(share * plan.length))
  const deadline = performance.now() + LIMIT.baseMs + LIMIT.perTaskMs * plan.length
  await canceller.cancelWaiting()
  for (;;) {
    signal.throwIfAborted()
    const counts = await countTasks(instance, ids)
    display.update(counts)
    if (finished(counts) === ids.length) return ids
    if (performance.now() > deadline) {
      display.event('the time is over')
      return ids
    }
    if (kills.length > 0 && finished(counts) >= kills[0]!) {
      kills.shift()
      await killOne(instance, fleet, ids, display)
    }
    await canceller.cancelRunning()
    await pause(LOOK_MS, signal)
  }
}

async function submitAll(client: Client, plan: readonly PlannedTask[]): Promise<string[]> {
  const ids: string[] = []
  for (let at = 0; at < plan.length; at += BATCH) {
    const results = await client.submitBatch(plan.slice(at, at + BATCH).map(({ task }) => task))
    for (const result of results) {
      if (result.kind === 'refused')
        throw new CliError(result.code, `A task of the demo was refused: ${result.message}`, EXIT.no)
      ids.push(result.taskId)
    }
  }
  return ids
}

async function countTasks({ service }: Instance, ids: readonly string[]): Promise<Counts> {
  const { rows } = await service.pool.query<{ status: keyof Counts; count: number }>(
    'SELECT status, count(*)::int AS count FROM rollcall.tasks WHERE task_id = ANY ($1::uuid[]) GROUP BY status',
    [ids],
  )
  return { ...NO_COUNTS, ...Object.fromEntries(rows.map(({ status, count }) => [status, count])) }
}

/** Kills the worker that has the most in its hands, and starts another. */
async function killOne(
  { service }: Instance,
  fleet: Fleet,
  ids: readonly string[],
  display: Display,
): Promise<void> {
  const { rows } = await service.pool.query<{ worker: string; tasks: number }>(
    `SELECT worker, count(*)::int AS tasks FROM rollcall.tasks
      WHERE task_id = ANY ($1::uuid[]) AND status = 'PROCESSING' AND worker = ANY ($2::text[])
      GROUP BY worker ORDER BY tasks DESC LIMIT 1`,
    [ids, fleet.names],
  )
  const victim = rows[0]?.worker ?? fleet.names[0]
  if (victim === undefined) return
  await fleet.kill(victim)
  const held = rows[0] === undefined ? '' : ` with ${rows[0].tasks} tasks in hand`
  display.event(`${victim} is killed (SIGKILL)${held}; ${fleet.start()} comes instead`)
}

/** Cancels what the plan wants cancelled, when it wants it. */
class Canceller {
  readonly #client: Client
  readonly #display: Display
  readonly #waiting: string[]
  readonly #running: Set<string>
  readonly #seenAt = new Map<string, number>()

  constructor(client: Client, plan: readonly PlannedTask[], ids: readonly string[], display: Display) {
    const idsOf = (fate: keyof typeof FATES) => ids.filter((_, index) => plan[index]?.fate === fate)
    this.#client = client
    this.#display = display
    this.#waiting = idsOf('cancel-waiting')
    this.#running = new Set(idsOf('cancel-running'))
  }

  async cancelWaiting(): Promise<void> {
    await Promise.all(this.#waiting.map(id => this.#client.cancel(id, { reason: 'No longer wanted.' })))
    this.#display.event(`${this.#waiting.length} tasks are cancelled while they wait`)
  }

  async cancelRunning(): Promise<void> {
    const now = performance.now()
    let cancelled = 0
    for (const id of this.#running) {
      if (!this.#seenAt.has(id)) {
        const { status } = await this.#client.get(id)
        if (status === 'PROCESSING') this.#seenAt.set(id, now)
      } else if (now - this.#seenAt.get(id)! > CANCEL_AFTER_MS) {
        await this.#client.cancel(id, { reason: 'It takes too long.' })
        this.#running.delete(id)
        cancelled++
      }
    }
    if (cancelled > 0) this.#display.event(`${cancelled} more cancelled, while a worker paints`)
  }
}

/** Accepted tasks that ended otherwise than the plan says, one line each. */
export function surprises(
  plan: readonly PlannedTask[],
  ids: readonly string[],
  tasks: ReadonlyMap<string, { status: string }>,
): string[] {
  return ids.flatMap((id, index) => {
    const status = tasks.get(id)?.status
    const planned = plan[index]!
    const expected = FATES[planned.fate].outcome
    return status === undefined || status === expected
      ? []
      : [`${id} (${planned.fate}) is ${status} and was to be ${expected}`]
  })
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise(resolve => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, ms)
    signal.addEventListener('abort', end, { once: true })
  })
