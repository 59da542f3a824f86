/** The parts of a service for tests, without its process: an engine on any log, and all parts on real Postgres. */
import { randomUUID } from 'node:crypto'
import { Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import pino, { type Logger } from 'pino'
import type { Test } from 'tap'
import type { Command, CommandEnvelope } from '../../src/domain/commands.ts'
import type { Actor, Instant, RecordedEvent } from '../../src/domain/events.ts'
import { STANDARD_LIFECYCLE } from '../../src/domain/lifecycle.ts'
import type { Task } from '../../src/domain/task.ts'
import type { Answer } from '../../src/engine/answer.ts'
import type { Clock } from '../../src/engine/clock.ts'
import { Engine, type EngineOptions } from '../../src/engine/engine.ts'
import { Lifecycles, lifecycleRef } from '../../src/engine/lifecycles.ts'
import { TaskCache } from '../../src/engine/task-cache.ts'
import { decodeEvent, streamOf } from '../../src/eventlog/codec.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { readLag } from '../../src/projections/lag.ts'
import { PostgresReadModel } from '../../src/projections/postgres/postgres-read-model.ts'
import { Projector, type ProjectorOptions } from '../../src/projections/projector.ts'
import { offerable } from '../../src/projections/work-state.ts'
import { DatabaseClock } from '../../src/runtime/database-clock.ts'
import { type Claim, Claims } from '../../src/workers/claims.ts'
import { Leases } from '../../src/workers/leases.ts'
import { PostgresWorkState } from '../../src/workers/postgres/postgres-work-state.ts'
import { Timers, type TimersOptions } from '../../src/workers/timers.ts'
import { WorkSignal } from '../../src/workers/work-signal.ts'
import type { WorkState } from '../../src/workers/work-state.ts'
import { CLIENT, PERSON, submit, TIMER, TOKEN_A, WORKER } from '../domain/specification.ts'
import { wholeStream } from './events.ts'
import { testDatabase } from './postgres.ts'

export const SILENT: Logger = pino({ level: 'silent' })
export const STANDARD = lifecycleRef(STANDARD_LIFECYCLE)
/** Longer than anything here takes on a busy machine. */
export const PATIENCE_MS = 30_000

/** What a part logs, line by line. */
export function recordingLogger(): { logger: Logger; lines: { level: number; msg: string }[] } {
  const lines: { level: number; msg: string }[] = []
  const write = (line: Buffer, _encoding: string, done: () => void) => {
    lines.push(JSON.parse(line.toString()))
    done()
  }
  return { logger: pino({ level: 'trace' }, new Writable({ write })), lines }
}

/** A clock that a test moves. */
export class ManualClock implements Clock {
  at: Instant = Date.UTC(2026, 0, 1)

  now(): Instant {
    return this.at
  }

  pass(ms: number): void {
    this.at += ms
  }
}

/** Waits until something holds; a test that waits in vain says for what. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const giveUpAt = performance.now() + PATIENCE_MS
  while (!(await holds())) {
    if (performance.now() > giveUpAt) throw new Error(`in vain: ${what}`)
    await sleep(5)
  }
}

/** A promise that is resolved from outside. */
export function signalled<T = void>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void
  const promise = new Promise<T>(done => {
    resolve = done
  })
  return { promise, resolve }
}

// Commands

const USUAL_ACTOR: Partial<Record<Command['trigger'], Actor>> = {
  SUBMIT: CLIENT,
  TIMEOUT: TIMER,
  CANCEL: PERSON,
  RETRY: PERSON,
  NOTE: PERSON,
}

export function ask(taskId: string, command: Command, over: Partial<CommandEnvelope> = {}): CommandEnvelope {
  return {
    taskId,
    command,
    commandId: randomUUID(),
    actor: USUAL_ACTOR[command.trigger] ?? WORKER,
    source: 'http',
    correlationId: null,
    causationId: null,
    trace: null,
    ifRevision: null,
    ...over,
  }
}

/** A SUBMIT under the standard lifecycle. */
export const submitting = (over: Partial<Extract<Command, { trigger: 'SUBMIT' }>> = {}): Command =>
  submit({ lifecycle: STANDARD, ...over })

/** Submits tasks and answers their ids in the order of the submits. */
export async function submitTasks(
  engine: Engine,
  count: number,
  over: (index: number) => Partial<Extract<Command, { trigger: 'SUBMIT' }>> = () => ({}),
): Promise<string[]> {
  const ids = Array.from({ length: count }, () => randomUUID() as string)
  const answers = await engine.executeMany(ids.map((id, index) => ask(id, submitting(over(index)))))
  for (const answer of answers) mustBe('accepted', answer)
  return ids
}

/** The answer, of the kind that the test cannot go on without. */
export function mustBe<K extends Answer['kind']>(
  kind: K,
  answer: Answer | undefined,
): Extract<Answer, { kind: K }> {
  if (answer?.kind !== kind)
    throw new Error(`the test expected ${kind}: ${JSON.stringify(answer, ['kind', 'code', 'message'])}`)
  return answer as Extract<Answer, { kind: K }>
}

/** What an answer says, in one word. */
export const said = (answer: Answer): string => (answer.kind === 'refused' ? answer.code : answer.kind)

// The log

/** The log with some of its methods replaced. */
export function wrapLog(log: EventLog, over: Partial<EventLog>): EventLog {
  return {
    get id() {
      return log.id
    },
    appendMany: appends => log.appendMany(appends),
    readStream: (stream, from, limit) => log.readStream(stream, from, limit),
    readStreams: streams => log.readStreams(streams),
    follow: (from, onBatch, signal) => log.follow(from, onBatch, signal),
    head: () => log.head(),
    countAfter: (from, limit) => log.countAfter(from, limit),
    seal: movedTo => log.seal(movedTo),
    sealedFor: () => log.sealedFor(),
    close: () => log.close(),
    ...over,
  }
}

/** The events of a task as stored. */
export async function history(log: EventLog, taskId: string): Promise<RecordedEvent[]> {
  return (await wholeStream(log, streamOf(taskId))).map(decodeEvent)
}

export const typesOf = async (log: EventLog, taskId: string): Promise<string[]> =>
  (await history(log, taskId)).map(({ event }) => event.type)

// The parts

export async function startEngine(log: EventLog, options: Partial<EngineOptions> = {}): Promise<Engine> {
  const lifecycles = options.lifecycles ?? (await Lifecycles.open(log))
  return new Engine({ clock: new ManualClock(), logger: SILENT, ...options, log, lifecycles })
}

export interface Parts {
  url: string
  pool: pg.Pool
  log: EventLog
  clock: Clock
  engine: Engine
  cache: TaskCache
  signal: WorkSignal
  /** Not started. */
  projector: Projector
  workState: WorkState
  claims: Claims
  leases: Leases
  /** Not started; most tests call `tick`. */
  timers: Timers
  /** Waits until the read model has every event. */
  projected(): Promise<void>
  rows<R extends object>(sql: string, values?: unknown[]): Promise<R[]>
  task(taskId: string): Promise<Task>
  close(): Promise<void>
}

export interface PartsOptions {
  clock?: Clock
  logger?: Logger
  projector?: Partial<ProjectorOptions>
  engine?: Partial<EngineOptions>
  timers?: Partial<TimersOptions>
  log?: (log: EventLog) => EventLog
  /** The log in the database where none is given. */
  openLog?: () => EventLog
}

/** All parts on a database of their own. */
export async function startParts(t: Test, options: PartsOptions = {}): Promise<Parts> {
  const { url } = await testDatabase(t)
  return openParts(t, url, options)
}

/** All parts, as one more process on a database would have them. */
export async function openParts(t: Test, url: string, options: PartsOptions = {}): Promise<Parts> {
  const logger = options.logger ?? SILENT
  const pool = new pg.Pool({ connectionString: url, max: 6, options: '-c timezone=UTC -c datestyle=ISO' })
  // Tests end connections on purpose.
  pool.on('error', () => {})
  const opened =
    options.openLog?.() ?? (await openPostgresEventLog({ connectionString: url, readConnections: 4 }))
  const log = options.log?.(opened) ?? opened
  const sampled = options.clock ? null : await DatabaseClock.start(pool, SILENT)
  const clock = options.clock ?? sampled!
  const cache = new TaskCache()
  const signal: WorkSignal = new WorkSignal(() => projector.mode === 'projecting')
  const followUp = (task: Task) => (offerable(task) ? signal.hand(task) : null)
  const engine = await startEngine(log, { clock, cache, logger, followUp, ...options.engine })
  const workState = new PostgresWorkState(pool)
  const projector: Projector = new Projector({
    log,
    readModel: new PostgresReadModel(pool),
    cache,
    logger,
    onMoved: tasks => signal.ready(tasks.filter(offerable)),
    standbyMs: 50,
    ...options.projector,
  })
  const timers = new Timers({
    workState,
    engine,
    clock,
    signal,
    logger,
    intervalMs: 20,
    // A busy machine makes gaps; tests that are about them ask for a grace.
    graceMs: 0,
    ...options.timers,
  })
  let closing: Promise<void> | null = null
  const close = async () => {
    await timers.stop()
    await projector.stop()
    await engine.stop()
    sampled?.stop()
    await log.close()
    await pool.end()
  }
  const parts: Parts = {
    url,
    pool,
    log,
    clock,
    engine,
    cache,
    signal,
    projector,
    workState,
    claims: new Claims(workState, engine, signal),
    leases: new Leases(workState, engine),
    timers,
    projected: () => until('the projector catches up', async () => (await readLag(pool, log)).caughtUp),
    rows: async (sql, values = []) => (await pool.query(sql, values)).rows,
    task: async taskId => {
      const loaded = await engine.read(taskId)
      if (loaded.kind !== 'task') throw new Error(`task ${taskId} is ${loaded.kind}`)
      return loaded.task
    },
    close: () => {
      closing ??= close()
      return closing
    },
  }
  t.teardown(() => parts.close())
  return parts
}

export const aClaim = (over: Partial<Claim> = {}): Claim => ({
  worker: WORKER.id,
  types: ['image.generate'],
  max: 10,
  waitMs: 0,
  claimId: randomUUID(),
  leaseTokenHash: TOKEN_A,
  source: 'http',
  tenant: null,
  ...over,
})

/** A signal that is never aborted. */
export const NEVER = new AbortController().signal
