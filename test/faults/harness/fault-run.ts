/**
 * One fault run: starts the parts, lets the load flow while the plan's faults strike, waits until all is quiet, and
 * examines what is left. What it starts it ends; the folder stays where something was found.
 */
import { chmod, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { EventLog } from '../../../src/eventlog/event-log.ts'
import { openLog } from '../../../src/runtime/open-log.ts'
import { readWorkerAnswers } from './answers.ts'
import { type Examined, examine, type Findings, readEvents } from './examine.ts'
import { endKafkaFaults, strikeKafka } from './kafka-faults.ts'
import type { KafkaTraffic } from './kafka-traffic.ts'
import type { BrokerKind, LinkName, LogKind } from './kinds.ts'
import { Load } from './load.ts'
import { endLogFaults, strikeLogServer } from './log-faults.ts'
import { Parts, until } from './parts.ts'
import { countKinds, type Fault, makePlan, type Plan } from './plan.ts'
import { Random } from './random.ts'

/** After the last fault everything has to come to its end in this time. */
const SETTLE_MS = 180_000
const SAY_MS = 5_000
/** Work state of finished tasks has to be gone by then. */
const TIDY_MS = 20_000
/** Where an old status has come late, the newest follows after two minutes. */
const PUBLISHED_MS = 150_000

export interface FaultReport extends Omit<Examined, 'findings'> {
  log: LogKind
  broker: BrokerKind
  seed: number
  /** Of the plan; the whole run takes longer. */
  seconds: number
  tookSeconds: number
  /** From the end of the faults until nothing was open any more. */
  settledSeconds: number
  faults: Partial<Record<Fault['kind'], number>>
  /** Times that clients asked again. */
  repeats: number
  lost: number
  doubled: number
  stuck: number
  drift: number
  brokenChains: number
  answersBroken: number
  leftovers: number
  letters: number
  statuses: number
  /** Tasks that workers were handed by the broker, and began. */
  overKafka: number
  /** Records that were on a topic already and came again; bad records. */
  sentAgain: number
  garbage: number
  /** Processes that ended without being told to, or not when they were. */
  crashed: number
  verdict: 'ok' | 'failed'
  /** The first of what was found of each kind. */
  found: string[]
  /** Data and logs of a run that failed; null where all was well, and nothing is left. */
  folder: string | null
}

export interface FaultRunOptions {
  /** Where the log is: in the same Postgres, or on the double of EventStoreDB. */
  on?: LogKind
  broker?: BrokerKind
  log?: (line: string) => void
  /** Keep the folder also where nothing was found. */
  keep?: boolean
}

export async function faultRun(
  seed: number,
  seconds: number,
  options: FaultRunOptions = {},
): Promise<FaultReport> {
  const plan = makePlan(seed, seconds, options.on, options.broker)
  const folder = await mkdtemp(join(tmpdir(), `rollcall-faults-${seed}-`))
  // As root the database runs as another user, who has to pass.
  await chmod(folder, 0o755)
  await writeFile(join(folder, 'plan.json'), JSON.stringify(plan, null, 1))
  const run = new FaultRun(plan, folder, options.log ?? (() => {}))
  let report: FaultReport | null = null
  try {
    report = await run.run()
    await writeFile(join(folder, 'report.json'), JSON.stringify(report, null, 1))
  } finally {
    await run.cleanUp()
    if (report?.verdict === 'ok' && !options.keep)
      await rm(folder, { recursive: true, force: true, maxRetries: 20 })
    else options.log?.(`data, logs and findings are kept in ${folder}`)
  }
  return { ...report, folder: report.verdict === 'ok' && !options.keep ? null : folder }
}

class FaultRun {
  readonly #plan: Plan
  readonly #folder: string
  readonly #log: (line: string) => void
  readonly #parts: Parts
  #load: Load | null = null
  #overKafka = 0
  #began = performance.now()

  constructor(plan: Plan, folder: string, log: (line: string) => void) {
    this.#plan = plan
    this.#folder = folder
    this.#log = log
    this.#parts = new Parts(plan, folder, line => this.#say(line))
  }

  async run(): Promise<FaultReport> {
    const { log, broker = 'none', seed, seconds, faults, submits } = this.#plan
    const startedAt = performance.now()
    await this.#parts.start()
    const load = new Load(
      (['front-a', 'front-b'] as const).map(link => `http://127.0.0.1:${this.#parts.links[link].port}`),
    )
    this.#load = load
    this.#began = performance.now()
    this.#say(`${faults.length} faults and ${submits.length} submits are planned`)
    const answered = load.run(submits, this.#began)
    await Promise.all(faults.map(fault => this.#inject(fault)))
    await sleep(Math.max(0, this.#began + seconds * 1_000 - performance.now()))
    if (this.#parts.logServer) await endLogFaults(this.#parts.logServer)
    if (this.#parts.kafka) await endKafkaFaults(this.#parts.kafka, new Random(seed))
    this.#say('the faults are over')
    const { settledSeconds, inVain } = await this.#settle(load, answered)
    const examined = await this.#stopAndExamine(load)
    examined.findings.stuck.push(...inVain)
    const tookSeconds = Math.round((performance.now() - startedAt) / 1_000)
    return this.#report(load, examined, {
      log,
      broker,
      seed,
      seconds,
      tookSeconds,
      settledSeconds,
    })
  }

  /** Lets a fault strike at its time; resolves when it is over. */
  async #inject(fault: Fault): Promise<void> {
    const { kind, target, atMs, forMs, amount } = fault
    await sleep(Math.max(0, this.#began + atMs - performance.now()))
    this.#say(`${kind} ${target} for ${forMs} ms${amount ? ` (${amount})` : ''}`)
    switch (kind) {
      case 'kill_service':
      case 'kill_worker':
        this.#parts.process(target).kill(forMs)
        await sleep(forMs)
        return
      case 'stop_service':
      case 'stop_worker':
        this.#parts.process(target).freeze()
        await sleep(forMs)
        return this.#parts.process(target).thaw()
      case 'postgres_quit':
        return this.#parts.restartDatabase('SIGQUIT', forMs)
      case 'postgres_kill':
        return this.#parts.restartDatabase('SIGKILL', forMs)
      case 'postgres_restart':
        return this.#parts.restartDatabase('fast', forMs)
      case 'cut':
        return this.#parts.links[target as LinkName].cut()
      case 'hold':
      case 'slow':
      case 'lose_answers':
      case 'refuse': {
        const link = this.#parts.links[target as LinkName]
        if (kind === 'hold') link.hold()
        else if (kind === 'slow') link.slow(amount)
        else if (kind === 'lose_answers') link.loseAnswers(amount)
        else link.refuse()
        await sleep(forMs)
        return link.restore()
      }
      case 'kafka_kill':
      case 'kafka_restart':
      case 'kafka_freeze':
      case 'kafka_redeliver':
      case 'kafka_garbage':
        return strikeKafka(this.#parts.kafka!, { kind, forMs, amount }, new Random(this.#plan.seed ^ atMs))
      default:
        return strikeLogServer(this.#parts.logServer!, { kind, forMs, amount })
    }
  }

  /**
   * Until every ask is answered, nothing is open, nothing lags, and the roll call misses nobody.
   *
   * @returns how long that took, in seconds, and what was waited for in vain
   */
  async #settle(load: Load, answered: Promise<void>): Promise<{ settledSeconds: number; inVain: string[] }> {
    const began = performance.now()
    let saidAt = began
    let waiting = ''
    const quiet = await until(SETTLE_MS, async () => {
      waiting = [await load.waitsFor(), (await this.#parts.kafka?.traffic.waitsFor()) ?? '']
        .filter(Boolean)
        .join(', ')
      const starting = this.#parts.all().filter(({ ready }) => !ready)
      if (starting.length > 0) waiting += ` ${starting.map(({ name }) => name).join(', ')} to be ready`
      if (waiting !== '' && performance.now() - saidAt > SAY_MS) {
        saidAt = performance.now()
        this.#say(`waiting for ${waiting}`)
      }
      return waiting === ''
    })
    load.giveUp()
    await answered
    this.#say(quiet ? 'nothing is open any more' : 'not all came to an end')
    return {
      settledSeconds: Math.round((performance.now() - began) / 1_000),
      inVain: quiet ? [] : [`after ${SETTLE_MS / 1_000} s there is still ${waiting}`],
    }
  }

  async #stopAndExamine(load: Load): Promise<Examined> {
    const pool = new pg.Pool({ connectionString: this.#parts.database.url, max: 4 })
    pool.on('error', () => {})
    const log = await openLog(this.#parts.logServer?.address ?? 'postgres', {
      databaseUrl: this.#parts.database.url,
    })
    try {
      const { kafka } = this.#parts
      if (kafka) await until(PUBLISHED_MS, () => isPublished(pool, kafka.traffic))
      await until(TIDY_MS, async () => {
        const { rows } = await pool.query<{ rows: string }>(
          `SELECT (SELECT count(*) FROM rollcall.ready) + (SELECT count(*) FROM rollcall.offers)
                + (SELECT count(*) FROM rollcall.leases) AS rows`,
        )
        return rows[0]?.rows === '0'
      })
      await this.#parts.stop()
      // What they said last is read, too.
      if (this.#parts.kafka) await until(TIDY_MS, () => this.#parts.kafka!.traffic.hasReadAll())
      const answers = (await readdir(this.#folder))
        .filter(name => name.endsWith('.answers'))
        .flatMap(name => readWorkerAnswers(join(this.#folder, name)))
      await writeFile(join(this.#folder, 'clients.answers.json'), JSON.stringify(load.answers))
      if (this.#parts.logServer) await this.#keepEvents(log)
      this.#overKafka = answers.filter(answer => answer.of === 'begun').length
      return await examine(pool, log, load.answers, answers, this.#parts.kafka?.traffic ?? null)
    } finally {
      await log.close()
      await pool.end()
    }
  }

  /** The server's memory is its log: what is to be looked up later has to be written down. */
  async #keepEvents(log: EventLog): Promise<void> {
    const lines = (await readEvents(log)).map(event => `${JSON.stringify(event)}\n`)
    await writeFile(join(this.#folder, 'events.jsonl'), lines.join(''))
  }

  #report(
    load: Load,
    examined: Examined,
    times: Pick<FaultReport, 'log' | 'broker' | 'seed' | 'seconds' | 'tookSeconds' | 'settledSeconds'>,
  ): FaultReport {
    const { findings, ...figures } = examined
    const { again: sentAgain = 0 } = this.#parts.kafka?.traffic.sent ?? {}
    const counts = Object.fromEntries(
      Object.entries(findings).map(([what, lines]: [string, string[]]) => [what, lines.length]),
    ) as Record<keyof Findings, number>
    const found = [...Object.values(findings), this.#parts.crashes].flatMap((lines: string[]) =>
      lines.slice(0, 20),
    )
    return {
      ...times,
      faults: countKinds(this.#plan.faults),
      ...figures,
      repeats: load.repeats,
      ...counts,
      overKafka: this.#overKafka,
      sentAgain,
      garbage: this.#parts.kafka?.traffic.garbage.size ?? 0,
      crashed: this.#parts.crashes.length,
      verdict: found.length === 0 ? 'ok' : 'failed',
      found,
      folder: null,
    }
  }

  #say(line: string): void {
    this.#log(`${((performance.now() - this.#began) / 1_000).toFixed(1)} s: ${line}`)
  }

  /** Whatever happened, nothing is left running. */
  async cleanUp(): Promise<void> {
    this.#load?.giveUp()
    await this.#parts.end()
  }
}

/** Whether the newest that was published of each task is how its row stands. */
async function isPublished(pool: pg.Pool, { readsStatus, statuses }: KafkaTraffic): Promise<boolean> {
  if (!readsStatus) return true
  const { rows } = await pool.query<{ task_id: string; status: string }>(
    'SELECT task_id, status FROM rollcall.tasks',
  )
  return rows.every(({ task_id, status }) => statuses.get(task_id)?.status === status)
}
