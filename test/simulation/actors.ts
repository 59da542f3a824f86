/** Those who ask the service: clients that submit, cancel and retry, and workers that do what workers do. */
import { hash } from 'node:crypto'
import type { Command, CommandEnvelope } from '../../src/domain/commands.ts'
import type { Actor } from '../../src/domain/events.ts'
import type { ProcessingTask } from '../../src/domain/task.ts'
import type { Answer } from '../../src/engine/answer.ts'
import type { Service } from './service.ts'
import type { Simulation } from './simulation.ts'
import { Process } from './world.ts'

export const TASK_TYPE = 'image.generate'
export const LEASE_MS = 3_000
const ASK_MS = 6_000
const ASKS_MAX = 200
/** Answers that say nothing about the command: it is sent again. */
const PASSING = new Set(['conflict', 'overloaded', 'log_unavailable', 'shutting_down', 'internal_error'])

type Definite = Exclude<Answer, { kind: 'refused' }> | Extract<Answer, { kind: 'refused' }>

/** Sends a command again and again until it has a definite answer, to whichever process is picked each time. */
async function insist(
  sim: Simulation,
  from: Process,
  execute: (service: Service) => Promise<Answer>,
): Promise<Definite | null> {
  for (let asked = 0; asked < ASKS_MAX; asked++) {
    const service = sim.anyService()
    const answer = await sim.world.ask(
      from,
      () => service.process,
      ASK_MS,
      () => execute(service),
    )
    if (answer && !(answer.kind === 'refused' && PASSING.has(answer.code))) return answer
    await sim.world.sleep(sim.world.between(10, 500))
  }
  return null
}

function envelope(taskId: string, command: Command, commandId: string, actor: Actor): CommandEnvelope {
  return {
    taskId,
    command,
    commandId,
    actor,
    source: 'http',
    correlationId: null,
    causationId: null,
    trace: null,
    ifRevision: null,
  }
}

/** Submits one task, and perhaps cancels or retries it later. */
export async function client(sim: Simulation, number: number): Promise<void> {
  const { world } = sim
  const process = new Process(`client-${number}`)
  const actor: Actor = { kind: 'client', id: process.name }
  const taskId = sim.taskId(number)
  await world.sleep(world.between(0, sim.troubledMs / 2))
  const command: Command = {
    trigger: 'SUBMIT',
    type: TASK_TYPE,
    priority: world.between(0, 2),
    tenant: null,
    lifecycle: sim.lifecycle,
    timeouts: {
      queueMs: world.between(30_000, 90_000),
      executionMs: world.between(4_000, 15_000),
      leaseMs: LEASE_MS,
      totalMs: world.between(60_000, 240_000),
    },
    retry: {
      maxAttempts: world.between(1, 4),
      initialDelayMs: world.between(1, 2_000),
      factor: 2,
      maxDelayMs: 10_000,
      jitter: 0.2,
    },
    runAt: null,
    delayMs: world.chance(0.3) ? world.between(1, 8_000) : null,
    payload: { number },
    labels: {},
    salt: `salt-${number}`,
    fingerprint: hash('sha256', `salt-${number}`),
  }
  const insistOn = (asked: Command, commandId: string): Promise<Definite | null> =>
    insist(sim, process, service => {
      world.tell(process.name, `${asked.trigger} task-${number} at ${service.name}`)
      return service.execute(envelope(taskId, asked, commandId, actor), salt => hash('sha256', salt))
    })
  sim.answered(taskId, await insistOn(command, `submit-${number}`))
  if (world.chance(0.2)) {
    await world.sleep(world.between(0, 15_000))
    const cancelled = await insistOn({ trigger: 'CANCEL', reason: 'not wanted' }, `cancel-${number}`)
    sim.answered(taskId, cancelled)
  }
  if (world.chance(0.2)) {
    await world.sleep(world.between(0, 30_000))
    sim.answered(taskId, await insistOn({ trigger: 'RETRY', reason: 'once more' }, `retry-${number}`))
  }
}

/** How a worker treats one attempt. */
type Manner = 'succeeds' | 'fails' | 'fails_for_good' | 'hangs' | 'is_silent' | 'hands_back'
const TROUBLED_MANNERS: readonly Manner[] = [
  'succeeds',
  'succeeds',
  'succeeds',
  'succeeds',
  'fails',
  'fails_for_good',
  'hangs',
  'is_silent',
  'is_silent',
  'hands_back',
]

export class Worker {
  readonly process: Process
  readonly #sim: Simulation
  #claims = 0

  constructor(sim: Simulation, name: string) {
    this.#sim = sim
    this.process = new Process(name)
    void this.#work().catch(error => sim.world.fail(error))
  }

  kill(): void {
    this.process.alive = false
  }

  async #work(): Promise<void> {
    const { world } = this.#sim
    while (this.process.alive && !this.#sim.over) {
      const claimId = `${this.process.name}-claim-${++this.#claims}`
      const token = `${this.process.name}-token-${this.#claims}`
      const tasks = await this.#claim(claimId, token)
      const all = Promise.all(tasks.map(task => this.#attempt(task, token)))
      // Sometimes more is claimed while the first is under way.
      if (world.chance(0.5)) await all
      else void all.catch(error => world.fail(error))
      await world.sleep(world.between(10, 400))
    }
  }

  /** Asks with one claim id until an answer comes. */
  async #claim(claimId: string, token: string): Promise<ProcessingTask[]> {
    const { world } = this.#sim
    for (let asked = 0; asked < ASKS_MAX && !this.#sim.over; asked++) {
      const service = this.#sim.anyService()
      const claim = {
        worker: this.process.name,
        types: [TASK_TYPE],
        max: 3,
        waitMs: 1_000,
        claimId,
        leaseTokenHash: hash('sha256', token),
        source: 'http' as const,
        tenant: null,
      }
      const tasks = await world.ask(
        this.process,
        () => service.process,
        ASK_MS,
        () => service.claims.claim(claim, new AbortController().signal),
      )
      if (tasks) {
        for (const task of tasks)
          world.tell(this.process.name, `got ${this.#sim.nameOf(task.taskId)} attempt ${task.attempt}`)
        return tasks
      }
      await world.sleep(world.between(10, 500))
    }
    return []
  }

  async #attempt(task: ProcessingTask, token: string): Promise<void> {
    const { world, calm } = this.#sim
    const manner = calm ? 'succeeds' : world.pick(TROUBLED_MANNERS)
    if (manner === 'hangs') return
    const endsAt = world.now + world.between(0, calm ? 500 : 2 * LEASE_MS)
    const fence = { attempt: task.attempt, leaseTokenHash: hash('sha256', token) }
    while (manner !== 'is_silent' && endsAt - world.now > LEASE_MS / 3) {
      await world.sleep(LEASE_MS / 3)
      // One that is told to stop does so, mostly.
      if (!(await this.#beat(task, fence)) && world.chance(0.8)) return
    }
    if (manner === 'is_silent') {
      // It is heard of again when its lease is about to be taken, or is being taken.
      await world.sleep(LEASE_MS + world.between(-200, 1_500))
      if (!(await this.#beat(task, fence)) && world.chance(0.5)) return
    }
    await world.sleep(Math.max(0, endsAt - world.now))
    const said = { attempt: task.attempt, token }
    const error = { code: 'test', message: JSON.stringify(said) }
    const command: Command =
      manner === 'hands_back'
        ? { trigger: 'RELEASE', reason: JSON.stringify(said), ...fence }
        : manner === 'fails' || manner === 'fails_for_good'
          ? { trigger: 'FAIL', error, retryable: manner === 'fails', retryAfterMs: null, ...fence }
          : { trigger: 'SUCCEED', result: said, resultUrl: null, ...fence }
    const commandId = `${token}-${task.taskId}-${command.trigger}`
    const answer = await insist(this.#sim, this.process, service => {
      world.tell(
        this.process.name,
        `${command.trigger} ${this.#sim.nameOf(task.taskId)} attempt ${task.attempt} at ${service.name}`,
      )
      return service.execute(
        envelope(task.taskId, command, commandId, { kind: 'worker', id: this.process.name }),
        null,
      )
    })
    this.#sim.answered(task.taskId, answer)
  }

  /** Whether the worker may go on. */
  async #beat(task: ProcessingTask, fence: { attempt: number; leaseTokenHash: string }): Promise<boolean> {
    const service = this.#sim.anyService()
    const results = await this.#sim.world.ask(
      this.process,
      () => service.process,
      ASK_MS,
      () => service.leases.heartbeat([{ taskId: task.taskId, ...fence, progress: null }]),
    )
    const [result] = results ?? []
    if (result?.state === 'held') this.#sim.toldHeld(task.taskId, task.attempt, Number(result.until))
    return !result || result.state === 'held'
  }
}
