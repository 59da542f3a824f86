/** Rounds of a race between processes: prepare, hold ready, release together, examine. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import type { Test } from 'tap'
import type { EventType } from '../../../src/domain/events.ts'
import { openPostgresEventLog } from '../../../src/eventlog/postgres/postgres-event-log.ts'
import { DatabaseClock } from '../../../src/runtime/database-clock.ts'
import { testDatabase } from '../../support/postgres.ts'
import { history, mustBe, SILENT, signalled, startEngine } from '../../support/service-parts.ts'
import { Random } from '../harness/random.ts'
import { examineRound } from './examine.ts'
import type { Fault, FromProcess, Hold, RaceAnswer, ToProcess } from './process.ts'
import { PROCESSES, type RacingTrigger, type Round, roundsOf, TRIGGERS } from './round.ts'

const SCRIPT = fileURLToPath(new URL('./process.ts', import.meta.url))
/** Rounds under way at once, so that no process waits for another's. */
const LANES = 8

export interface RaceReport {
  found: string[]
  /** How often each trigger moved its task. */
  won: Record<RacingTrigger, number>
  outcomes: Partial<Record<EventType, number>>
  /** Answers by what they said. */
  answers: Record<string, number>
  /** Appends that were turned away, since another process had been first. */
  conflicts: number
  /** Between the first and the last process that let go, in milliseconds. */
  spreadMs: { median: number; p99: number }
}

export interface RaceOptions {
  seed: number
  rounds: number
  /** Of the first process. */
  fault?: Fault
}

interface Finished {
  answers: RaceAnswer[]
  releasedAt: number
}

/** One racing process as its parent has it. */
class Racer {
  readonly #child: ChildProcess
  readonly #ready = new Map<number, () => void>()
  readonly #answered = new Map<number, (finished: Finished) => void>()
  readonly opened: Promise<void>
  /** Rejects when the process ends by itself: what it holds is never answered. */
  readonly failed: Promise<never>
  conflicts = 0

  constructor(t: Test, url: string, fault: Fault) {
    this.#child = fork(SCRIPT, [url, fault], {
      execArgv: ['--import=tsx'],
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    })
    const { promise, resolve } = signalled()
    this.opened = promise
    const exited = once(this.#child, 'exit')
    this.failed = exited.then(([code]) => {
      throw new Error(`a racing process ended with ${code}`)
    })
    this.failed.catch(() => {})
    t.teardown(async () => {
      if (this.#child.connected) this.#child.disconnect()
      await exited
    })
    this.#child.on('message', (message: FromProcess) => {
      if ('opened' in message) resolve()
      else if ('ready' in message) this.#ready.get(message.ready)?.()
      else {
        this.conflicts = message.conflicts
        this.#answered.get(message.answered)?.(message)
      }
    })
  }

  /** Resolves when the process holds the commands ready. */
  hold(what: Hold): Promise<void> {
    const { promise, resolve } = signalled()
    this.#ready.set(what.round, resolve)
    this.#tell({ hold: what })
    return promise.finally(() => this.#ready.delete(what.round))
  }

  answersOf(round: number): Promise<Finished> {
    const { promise, resolve } = signalled<Finished>()
    this.#answered.set(round, resolve)
    return promise.finally(() => this.#answered.delete(round))
  }

  letGo(round: number): void {
    this.#tell({ go: round })
  }

  #tell(message: ToProcess): void {
    this.#child.send(message)
  }
}

/** Runs rounds on a database of their own. */
export async function race(t: Test, { seed, rounds, fault = 'none' }: RaceOptions): Promise<RaceReport> {
  const { url } = await testDatabase(t)
  const log = await openPostgresEventLog({ connectionString: url, readConnections: 2 })
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  const clock = await DatabaseClock.start(pool, SILENT)
  const engine = await startEngine(log, { clock })
  const racers = Array.from({ length: PROCESSES }, (_, at) => new Racer(t, url, at === 0 ? fault : 'none'))
  t.teardown(async () => {
    await engine.stop()
    clock.stop()
    await log.close()
    await pool.end()
  })
  const broken = Promise.race(racers.map(({ failed }) => failed))
  await Promise.race([Promise.all(racers.map(({ opened }) => opened)), broken])

  const random = new Random(seed)
  const draw = roundsOf(random)
  const report: RaceReport = {
    found: [],
    won: Object.fromEntries(TRIGGERS.map(trigger => [trigger, 0])) as RaceReport['won'],
    outcomes: {},
    answers: {},
    conflicts: 0,
    spreadMs: { median: 0, p99: 0 },
  }
  const spreads: number[] = []
  const runOne = async (round: Round): Promise<void> => {
    for (const command of round.preparation) mustBe('accepted', await engine.execute(command))
    await Promise.all(
      racers.map((racer, at) =>
        racer.hold({
          round: round.number,
          taskId: round.taskId,
          warm: round.warm[at]!,
          commands: round.entries.filter(({ process }) => process === at).map(({ envelope }) => envelope),
        }),
      ),
    )
    const finishing = racers.map(racer => racer.answersOf(round.number))
    // Nobody is always the first to hear.
    for (const racer of random.shuffled(racers)) racer.letGo(round.number)
    const finished = await Promise.all(finishing)
    const answers = finished.flatMap(one => one.answers)
    const result = examineRound(round, await history(log, round.taskId), answers)
    report.found.push(...result.found)
    for (const trigger of result.won) report.won[trigger]++
    if (result.outcome) report.outcomes[result.outcome] = (report.outcomes[result.outcome] ?? 0) + 1
    for (const { said, code } of answers)
      report.answers[code ?? said] = (report.answers[code ?? said] ?? 0) + 1
    const released = finished.map(({ releasedAt }) => releasedAt)
    spreads.push(Math.max(...released) - Math.min(...released))
  }
  let next = 0
  const lane = async (): Promise<void> => {
    while (next < rounds) await runOne(draw(next++))
  }
  await Promise.race([Promise.all(Array.from({ length: LANES }, lane)), broken])

  report.conflicts = racers.reduce((sum, { conflicts }) => sum + conflicts, 0)
  spreads.sort((one, other) => one - other)
  const at = (part: number): number => Number((spreads[Math.floor(spreads.length * part)] ?? 0).toFixed(2))
  report.spreadMs = { median: at(0.5), p99: at(0.99) }
  return report
}
