/**
 * A seeded story of clients, workers and several processes of the service: troubles for a while, then calm, then the
 * streams are held against the promises of DESIGN 1.
 */
import { hash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import type { CommandEnvelope } from '../../src/domain/commands.ts'
import { isDelayed, nextDeadline } from '../../src/domain/deadlines.ts'
import type { Instant, LifecycleRef, RecordedEvent } from '../../src/domain/events.ts'
import { isOpen, type Task } from '../../src/domain/task.ts'
import type { Answer } from '../../src/engine/answer.ts'
import { auditLog } from '../../src/engine/audit.ts'
import { Lifecycles } from '../../src/engine/lifecycles.ts'
import { decodeEvent, streamOf } from '../../src/eventlog/codec.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { PROJECTOR_NAME } from '../../src/projections/projector.ts'
import { client, LEASE_MS, Worker } from './actors.ts'
import { MemoryTables } from './memory-tables.ts'
import { Service } from './service.ts'
import { CALM, type Troubles, World } from './world.ts'

/** What is broken on purpose, to see that it would be noticed. */
export interface Broken {
  log?: (log: EventLog) => EventLog
  tables?: (now: () => Instant) => MemoryTables
  /** What a process of the service makes of a command before it decides it. */
  envelope?: (asked: CommandEnvelope, task: Task | null) => CommandEnvelope
}

export interface SimulationOptions {
  seed: number
  tasks?: number
  services?: number
  workers?: number
  troubles?: Partial<Troubles>
  broken?: Broken
  /** An empty one in memory where none is given; closed when the story has been told. */
  log?: EventLog
}

export interface SimulationReport {
  seed: number
  steps: number
  events: number
  /** Virtual time. */
  seconds: number
  outcomes: Record<string, number>
  /** What did not hold, one line each; empty is right. */
  violations: string[]
  story: string[]
}

const TROUBLES: Troubles = {
  lost: 0.08,
  doubled: 0.08,
  late: 0.08,
  failing: 0.04,
  crash: 0.002,
  pause: 0.002,
}
const LATE_MS = 3 * LEASE_MS
const STEPS_MAX = 20_000
const CHECK_EVERY = 20
const REST_MS = 3_000

/** Tells one story and what did not hold in it. */
export async function simulate(options: SimulationOptions): Promise<SimulationReport> {
  const log = options.log ?? createMemoryEventLog()
  const lifecycles = await Lifecycles.open(log)
  const world = new World({
    seed: options.seed,
    troubles: { ...TROUBLES, ...options.troubles },
    lateMs: LATE_MS,
    stepsMax: STEPS_MAX,
  })
  try {
    return await new Simulation(world, log, lifecycles, options).tell()
  } finally {
    world.end()
    await log.close()
  }
}

export class Simulation {
  readonly world: World
  readonly lifecycle: LifecycleRef
  readonly troubledMs: number
  calm = false
  over = false
  readonly #options: SimulationOptions
  readonly #log: EventLog
  readonly #tables: MemoryTables
  readonly #services: Service[]
  readonly #workers: Worker[] = []
  readonly #accepted = new Set<string>()
  readonly #acceptedEvents: { taskId: string; event: RecordedEvent }[] = []
  readonly #held = new Map<string, Instant>()
  readonly #violations = new Set<string>()
  #clientsLeft = 0
  /** Where the log ends, as of the last step. */
  #end: string | undefined

  constructor(world: World, log: EventLog, lifecycles: Lifecycles, options: SimulationOptions) {
    this.world = world
    this.#options = options
    this.#log = log
    this.lifecycle = lifecycles.named('standard')!
    this.troubledMs = world.between(5_000, 30_000)
    const now = (): Instant => Date.now()
    this.#tables = options.broken?.tables?.(now) ?? new MemoryTables(now)
    const storage = { log: options.broken?.log?.(log) ?? log, tables: this.#tables, lifecycles }
    const services = options.services ?? world.between(1, 3)
    const names = Array.from({ length: services }, (_, index) => `service-${index + 1}`)
    this.#services = names.map(name => new Service(world, storage, name, options.broken?.envelope))
  }

  async tell(): Promise<SimulationReport> {
    const { world } = this
    const { tasks = world.between(1, 8), workers = world.between(1, 3) } = this.#options
    for (let number = 1; number <= workers; number++) this.#workers.push(new Worker(this, `worker-${number}`))
    this.#clientsLeft = tasks
    for (let number = 1; number <= tasks; number++)
      void client(this, number).then(
        () => this.#clientsLeft--,
        error => world.fail(error),
      )
    const began = world.now
    try {
      await world.run(
        () => world.now - began >= this.troubledMs,
        () => this.#disturb(),
      )
      this.#becomeCalm()
      await world.run(
        () => world.steps % CHECK_EVERY === 0 && this.#clientsLeft === 0 && this.#isAtRest(),
        () => {},
      )
      // What is still on its way arrives and is projected: late reports, looks of the timers.
      this.over = true
      const rest = world.now
      await world.run(
        () => world.now - rest >= REST_MS && this.#tables.placeOf(PROJECTOR_NAME) === this.#end,
        () => void this.#log.head().then(head => (this.#end = head?.position)),
      )
    } catch (error) {
      this.#violations.add(`it did not come to an end: ${(error as Error).stack}`)
    }
    this.over = true
    return this.#report(began)
  }

  anyService(): Service {
    return this.world.pick(this.#services)
  }

  taskId(number: number): string {
    return `018f4e7a-0000-7000-8000-${String(number).padStart(12, '0')}`
  }

  nameOf(taskId: string): string {
    return `task-${Number(taskId.slice(-12))}`
  }

  /** Keeps what a client or worker was promised. */
  answered(taskId: string, answer: Answer | null): void {
    if (answer === null) return
    const refused = answer.kind === 'refused' ? ` ${answer.code}` : ''
    this.world.tell(this.nameOf(taskId), `${answer.kind}${refused}: ${answer.task?.status}`)
    if (answer.kind === 'refused') return
    this.#accepted.add(taskId)
    if (answer.kind === 'accepted') this.#acceptedEvents.push({ taskId, event: answer.event })
  }

  toldHeld(taskId: string, attempt: number, until: Instant): void {
    const key = `${taskId}/${attempt}`
    this.#held.set(key, Math.max(until, this.#held.get(key) ?? 0))
  }

  #disturb(): void {
    const { world } = this
    for (const [taskId, ready] of this.#tables.ready)
      if (this.#tables.offers.get(taskId)?.attempt === ready.attempt)
        this.#violations.add(
          `${this.nameOf(taskId)} attempt ${ready.attempt} is claimable while it is offered`,
        )
    if (world.chance(world.troubles.crash)) {
      const victim = world.pick([...this.#services, ...this.#workers])
      if (victim.process.alive) this.#crash(victim)
    }
    if (world.chance(world.troubles.pause)) {
      const { process } = world.pick([...this.#services, ...this.#workers])
      process.pausedUntil = world.now + world.between(1, world.lateMs)
      world.tell(process.name, `stops until ${process.pausedUntil - world.now} ms later`)
    }
  }

  #crash(victim: Service | Worker): void {
    const { world } = this
    victim.kill()
    world.tell(victim.process.name, 'dies')
    void world.sleep(world.between(1, world.lateMs)).then(() => {
      if (victim.process.alive) return
      world.tell(victim.process.name, 'starts again')
      if (victim instanceof Service) victim.restart()
      else this.#replace(victim)
    })
  }

  #replace(victim: Worker): void {
    const index = this.#workers.indexOf(victim)
    if (index >= 0) this.#workers[index] = new Worker(this, `${victim.process.name}'`)
  }

  #becomeCalm(): void {
    const { world } = this
    world.tell('world', 'becomes calm')
    world.troubles = CALM
    this.calm = true
    for (const service of this.#services) {
      service.process.pausedUntil = 0
      if (!service.process.alive) service.restart()
    }
    for (const worker of [...this.#workers]) {
      worker.process.pausedUntil = 0
      if (!worker.process.alive) this.#replace(worker)
    }
  }

  /** Every accepted task is final, and everything that hangs on it is gone. */
  #isAtRest(): boolean {
    const { tasks, ready, offers, leases, deadlines } = this.#tables
    if (ready.size + offers.size + leases.size + deadlines.size > 0) return false
    return [...this.#accepted].every(taskId => {
      const task = tasks.get(taskId)
      return task !== undefined && !isOpen(task)
    })
  }

  async #report(began: number): Promise<SimulationReport> {
    const audit = await auditLog(this.#log, [...this.#accepted])
    const name = (taskId: string): string => this.nameOf(taskId)
    for (const taskId of audit.missing) this.#violations.add(`${name(taskId)} is not final`)
    for (const taskId of audit.doubled) this.#violations.add(`${name(taskId)} has two outcomes in a run`)
    for (const taskId of audit.broken)
      this.#violations.add(`${name(taskId)} is broken: ${audit.tasks.get(taskId)?.broken}`)
    const outcomes: Record<string, number> = {}
    let events = 0
    for (const [taskId, audited] of audit.tasks) {
      events += audited.events
      if (!audited.task) continue
      outcomes[audited.task.status] = (outcomes[audited.task.status] ?? 0) + 1
      await this.#examineStream(taskId)
      this.#examineRows(audited.task)
    }
    return {
      seed: this.#options.seed,
      steps: this.world.steps,
      events,
      seconds: (this.world.now - began) / 1000,
      outcomes,
      violations: [...this.#violations],
      story: this.world.story,
    }
  }

  /** Who reported, with which token, and whether what was accepted is there. */
  async #examineStream(taskId: string): Promise<void> {
    const { events } = await this.#log.readStream(streamOf(taskId), 0, 1_000)
    const recorded = events.map(decodeEvent)
    const bad = (what: string): void => void this.#violations.add(`${this.nameOf(taskId)} ${what}`)
    for (const { event } of this.#acceptedEvents.filter(one => one.taskId === taskId))
      if (recorded[event.revision]?.hash !== event.hash)
        bad(`lost an accepted event: ${event.event.type} at revision ${event.revision}`)
    const tokens = new Map<number, string>()
    for (const { event, metadata, revision } of recorded) {
      this.world.tell(
        this.nameOf(taskId),
        `holds ${revision} ${event.type} of ${metadata.at - this.world.now}`,
      )
      if (event.type === 'TaskStarted') {
        if (tokens.has(event.data.attempt)) bad(`started attempt ${event.data.attempt} twice`)
        tokens.set(event.data.attempt, event.data.leaseTokenHash)
      }
      const said = saidIn(event)
      if (
        said &&
        (said.attempt !== attemptOf(event) || tokens.get(said.attempt) !== hash('sha256', said.token))
      )
        bad(`took ${event.type} for attempt ${attemptOf(event)} from ${said.token}, who held ${said.attempt}`)
      if (
        (event.type === 'TaskAttemptTimedOut' || event.type === 'TaskTimedOut') &&
        event.data.timer === 'lease' &&
        metadata.at < (this.#held.get(`${taskId}/${event.data.attempt}`) ?? 0)
      )
        bad(`lost its lease of attempt ${event.data.attempt} while its worker had been told that it is held`)
    }
  }

  #examineRows(task: Task): void {
    const { taskId } = task
    const bad = (what: string): void => void this.#violations.add(`${this.nameOf(taskId)} ${what}`)
    const row = this.#tables.tasks.get(taskId)
    if (!isDeepStrictEqual(row, task))
      bad(`stands at revision ${row?.revision}, its stream at ${task.revision}`)
    const armed = this.#tables.deadlines.get(taskId)
    const allowed = [nextDeadline(task), isDelayed(task) ? nextDeadline(task, 'not_before') : null]
    const fits = isOpen(task)
      ? allowed.some(one => one && armed?.dueAt === one.at && armed.timer === one.timer)
      : armed === undefined
    if (!fits) bad(`has the wrong deadline: ${JSON.stringify(armed)}`)
  }
}

function attemptOf(event: RecordedEvent['event']): number | null {
  return 'attempt' in event.data ? event.data.attempt : null
}

/** What a worker wrote into its report of itself. */
function saidIn(event: RecordedEvent['event']): { attempt: number; token: string } | null {
  switch (event.type) {
    case 'TaskSucceeded':
      return event.data.content.result as { attempt: number; token: string }
    case 'TaskFailed':
    case 'TaskAttemptFailed':
      return JSON.parse(event.data.content.error.message) as { attempt: number; token: string }
    case 'TaskReleased':
      return JSON.parse(event.data.content.reason ?? 'null') as { attempt: number; token: string }
    default:
      return null
  }
}
