/** A process of the service in a simulated world: the real parts over a log and tables that can fail. */
import { pino } from 'pino'
import type { CommandEnvelope } from '../../src/domain/commands.ts'
import type { Task } from '../../src/domain/task.ts'
import type { Answer } from '../../src/engine/answer.ts'
import type { FingerprintOf } from '../../src/engine/command-queues.ts'
import { Engine } from '../../src/engine/engine.ts'
import type { Lifecycles } from '../../src/engine/lifecycles.ts'
import { TaskCache } from '../../src/engine/task-cache.ts'
import {
  type Append,
  type AppendResult,
  type Checkpoint,
  type EventLog,
  LogUnavailableError,
  type StoredEvent,
} from '../../src/eventlog/event-log.ts'
import { Projector } from '../../src/projections/projector.ts'
import { offerable } from '../../src/projections/work-state.ts'
import { Claims } from '../../src/workers/claims.ts'
import { Leases } from '../../src/workers/leases.ts'
import { Timers } from '../../src/workers/timers.ts'
import { WorkSignal } from '../../src/workers/work-signal.ts'
import type { MemoryTables } from './memory-tables.ts'
import { Process, type World } from './world.ts'

const SILENT = pino({ level: 'silent' })
const TIMERS_MS = 1_000
const APPEND_DEADLINE_MS = 5_000

export interface Storage {
  log: EventLog
  tables: MemoryTables
  lifecycles: Lifecycles
}

/** The log as one process reaches it: each call may fail before, after, or be done later than it failed. */
function reachLog(world: World, by: Process, log: EventLog, gone: AbortSignal): EventLog {
  const lost = () => new LogUnavailableError('the log did not answer')
  const ask = <T>(work: () => Promise<T>): Promise<T> => world.stored(by, work, lost)
  return {
    id: log.id,
    appendMany: (appends: readonly Append[]): Promise<AppendResult[]> => ask(() => log.appendMany(appends)),
    readStream: (stream, from, limit) => ask(() => log.readStream(stream, from, limit)),
    readStreams: streams => ask(() => log.readStreams(streams)),
    countAfter: (from, limit) => ask(() => log.countAfter(from, limit)),
    head: () => ask(() => log.head()),
    seal: movedTo => ask(() => log.seal(movedTo)),
    sealedFor: () => ask(() => log.sealedFor()),
    follow: (
      from: Checkpoint | null,
      onBatch: (batch: readonly StoredEvent[]) => Promise<void>,
      signal: AbortSignal,
    ) =>
      log.follow(
        from,
        async batch => {
          await world.turn(by)
          await onBatch(batch)
        },
        AbortSignal.any([signal, gone]),
      ),
    close: async () => {},
  }
}

/** The tables as one process reaches them, with the errors of a database that went away. */
function reachTables(world: World, by: Process, tables: MemoryTables): MemoryTables {
  return new Proxy(tables, {
    get(target, name) {
      const member: unknown = Reflect.get(target, name)
      if (typeof member !== 'function') return member
      return (...given: unknown[]) =>
        world.stored(
          by,
          async () => Reflect.apply(member, target, given),
          () => Object.assign(new Error('the connection ended'), { code: '08006' }),
        )
    },
  })
}

export class Service {
  readonly name: string
  readonly #world: World
  readonly #storage: Storage
  readonly #altered: (asked: CommandEnvelope, task: Task | null) => CommandEnvelope
  #gone = new AbortController()
  process!: Process
  engine!: Engine
  claims!: Claims
  leases!: Leases

  constructor(
    world: World,
    storage: Storage,
    name: string,
    altered: (asked: CommandEnvelope, task: Task | null) => CommandEnvelope = asked => asked,
  ) {
    this.#world = world
    this.#altered = altered
    this.#storage = storage
    this.name = name
    this.#start()
  }

  #start(): void {
    const by = new Process(this.name)
    this.process = by
    this.#gone = new AbortController()
    const { lifecycles } = this.#storage
    const log = reachLog(this.#world, by, this.#storage.log, this.#gone.signal)
    const tables = reachTables(this.#world, by, this.#storage.tables)
    const clock = { now: () => Date.now() }
    const cache = new TaskCache({ tasks: 100, bytes: 1024 * 1024 })
    const signal: WorkSignal = new WorkSignal(() => projector.mode === 'projecting')
    this.engine = new Engine({
      log,
      clock,
      lifecycles,
      cache,
      logger: SILENT,
      appendDeadlineMs: APPEND_DEADLINE_MS,
      followUp: task => (offerable(task) ? signal.hand(task) : null),
    })
    const projector: Projector = new Projector({
      log,
      readModel: tables,
      cache,
      logger: SILENT,
      onMoved: tasks => signal.ready(tasks.filter(offerable)),
    })
    this.claims = new Claims(tables, this.engine, signal)
    this.leases = new Leases(tables, this.engine)
    projector.start()
    const timers = new Timers({
      workState: tables,
      engine: this.engine,
      clock,
      signal,
      logger: SILENT,
      intervalMs: TIMERS_MS,
    })
    timers.start()
  }

  /** One command, as the API hands it to the engine. */
  execute(asked: CommandEnvelope, fingerprintOf: FingerprintOf | null): Promise<Answer> {
    const task = this.#storage.tables.tasks.get(asked.taskId) ?? null
    return this.engine.execute(this.#altered(asked, task), fingerprintOf)
  }

  /** Dies as by SIGKILL: nothing it had under way goes on. */
  kill(): void {
    this.process.alive = false
    this.#gone.abort()
  }

  restart(): void {
    this.#start()
  }
}
