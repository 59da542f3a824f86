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
import { migrate } from '../../../src/runtime/migrate.ts'
import { openLog } from '../../../src/runtime/open-log.ts'
import {
  type SpawnedEventStoreDBDouble,
  spawnEventStoreDBDouble,
} from '../../support/eventstoredb-double/spawn.ts'
import { TcpProxy } from '../../support/tcp-proxy.ts'
import { readWorkerAnswers } from './answers.ts'
import { type Examined, examine, type Findings, readEvents } from './examine.ts'
import { Load } from './load.ts'
import { endLogFaults, strikeLogServer } from './log-faults.ts'
import {
  countKinds,
  type Fault,
  LINKS,
  type LinkName,
  LOG_LINKS,
  type LogKind,
  makePlan,
  type Plan,
  SERVICES,
  type ServiceName,
  WORKERS,
  type WorkerName,
} from './plan.ts'
import { Database, Supervised } from './processes.ts'

const ROLES: Record<ServiceName, string> = {
  a: 'api',
  b: 'api,projector,timers',
  // Stands by for the projector's lease, and runs timers beside those of b.
  c: 'projector,timers',
}
/** All parts run; on a busy machine a process takes its time to start. */
const READY_MS = 120_000
/** After the last fault everything has to come to its end in this time. */
const SETTLE_MS = 180_000
const SAY_MS = 5_000
/** Work state of finished tasks has to be gone by then. */
const TIDY_MS = 20_000
const DATABASE_STARTS = 5

export interface FaultReport extends Omit<Examined, 'findings'> {
  log: LogKind
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
  log?: (line: string) => void
  /** Keep the folder also where nothing was found. */
  keep?: boolean
}

export async function faultRun(
  seed: number,
  seconds: number,
  options: FaultRunOptions = {},
): Promise<FaultReport> {
  const plan = makePlan(seed, seconds, options.on)
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
  readonly #database: Database
  readonly #links = {} as Record<LinkName, TcpProxy>
  readonly #services = {} as Record<ServiceName, Supervised>
  readonly #workers = {} as Record<WorkerName, Supervised>
  readonly #apiPorts = new Map<ServiceName, number>()
  #load: Load | null = null
  #logServer: SpawnedEventStoreDBDouble | null = null
  #restarting: Promise<void> = Promise.resolve()
  #began = performance.now()
  /** The parts were not started, or not ended, as they should. */
  readonly #crashes: string[] = []

  constructor(plan: Plan, folder: string, log: (line: string) => void) {
    this.#plan = plan
    this.#folder = folder
    this.#log = log
    this.#database = new Database(folder, join(folder, 'postgres.log'), port => {
      for (const service of SERVICES) this.#links[`db-${service}`].lead(port)
    })
  }

  async run(): Promise<FaultReport> {
    const { log, seed, seconds, faults, submits } = this.#plan
    const startedAt = performance.now()
    await this.#start()
    const load = new Load(
      (['front-a', 'front-b'] as const).map(link => `http://127.0.0.1:${this.#links[link].port}`),
    )
    this.#load = load
    this.#began = performance.now()
    this.#say(`${faults.length} faults and ${submits.length} submits are planned`)
    const answered = load.run(submits, this.#began)
    await Promise.all(faults.map(fault => this.#inject(fault)))
    await sleep(Math.max(0, this.#began + seconds * 1_000 - performance.now()))
    if (this.#logServer) await endLogFaults(this.#logServer)
    this.#say('the faults are over')
    const { settledSeconds, inVain } = await this.#settle(load, answered)
    const examined = await this.#stopAndExamine(load)
    examined.findings.stuck.push(...inVain)
    const tookSeconds = Math.round((performance.now() - startedAt) / 1_000)
    return this.#report(load, examined, { log, seed, seconds, tookSeconds, settledSeconds })
  }

  async #start(): Promise<void> {
    for (const link of LINKS) this.#links[link] = await TcpProxy.start()
    await this.#database.start()
    await migrate(this.#database.url)
    if (this.#plan.log === 'eventstoredb') {
      this.#logServer = await spawnEventStoreDBDouble(null)
      for (const link of LOG_LINKS) this.#links[link] = await TcpProxy.start(this.#logServer.port)
    }
    for (const name of SERVICES) this.#services[name] = this.#service(name)
    for (const name of WORKERS) this.#workers[name] = this.#worker(name)
    for (const one of this.#all()) one.start()
    await this.#until(READY_MS, () => this.#all().every(({ ready }) => ready))
    const late = this.#all().filter(({ ready }) => !ready)
    if (late.length > 0) throw new Error(`these did not start: ${late.map(({ name }) => name).join(', ')}`)
  }

  #all(): Supervised[] {
    return [...Object.values(this.#services), ...Object.values(this.#workers)]
  }

  #service(name: ServiceName): Supervised {
    const databaseUrl = new URL(this.#database.url)
    databaseUrl.port = String(this.#links[`db-${name}`].port)
    const given = [
      'serve',
      '--json',
      '--port',
      '0',
      '--database-url',
      databaseUrl.href,
      '--roles',
      ROLES[name],
      ...(this.#logServer ? ['--log', `esdb://127.0.0.1:${this.#links[`log-${name}`].port}?tls=false`] : []),
    ]
    return new Supervised({
      name: `service ${name}`,
      program: 'src/cli/main.ts',
      args: () => given,
      logPath: join(this.#folder, `service-${name}.log`),
      onReady: ({ url }) => {
        // Every service listens, for its health and figures; that does not make it one that workers can ask.
        if (ROLES[name].split(',').includes('api'))
          this.#apiPorts.set(name, Number(new URL(String(url)).port))
        this.#leadToApis()
      },
      onGone: () => {
        this.#apiPorts.delete(name)
        this.#leadToApis()
      },
    })
  }

  #leadToApis(): void {
    const ports = [...this.#apiPorts.values()]
    for (const worker of WORKERS) this.#links[worker].lead(...ports)
    for (const name of ['a', 'b'] as const) {
      const port = this.#apiPorts.get(name)
      this.#links[`front-${name}`].lead(...(port === undefined ? [] : [port]))
    }
  }

  #worker(name: WorkerName): Supervised {
    const url = `http://127.0.0.1:${this.#links[name].port}`
    return new Supervised({
      name,
      program: 'test/faults/harness/worker.ts',
      args: () => [url, name, join(this.#folder, `${name}.answers`)],
      logPath: join(this.#folder, `${name}.log`),
      isMeant: signal => signal === 'SIGKILL',
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
        this.#process(target).kill(forMs)
        await sleep(forMs)
        return
      case 'stop_service':
      case 'stop_worker':
        this.#process(target).freeze()
        await sleep(forMs)
        return this.#process(target).thaw()
      case 'postgres_quit':
        return this.#restartDatabase('SIGQUIT', forMs)
      case 'postgres_kill':
        return this.#restartDatabase('SIGKILL', forMs)
      case 'postgres_restart':
        return this.#restartDatabase('fast', forMs)
      case 'cut':
        return this.#links[target as LinkName].cut()
      case 'hold':
      case 'slow':
      case 'lose_answers':
      case 'refuse': {
        const link = this.#links[target as LinkName]
        if (kind === 'hold') link.hold()
        else if (kind === 'slow') link.slow(amount)
        else if (kind === 'lose_answers') link.loseAnswers(amount)
        else link.refuse()
        await sleep(forMs)
        return link.restore()
      }
      default:
        return strikeLogServer(this.#logServer!, { kind, forMs, amount })
    }
  }

  #process(target: string): Supervised {
    return this.#services[target as ServiceName] ?? this.#workers[target as WorkerName]
  }

  /** One after the other: an end and a start take longer than the pause that the plan knows. */
  #restartDatabase(how: 'fast' | 'SIGQUIT' | 'SIGKILL', pauseMs: number): Promise<void> {
    this.#restarting = this.#restarting.then(() => this.#restart(how, pauseMs))
    return this.#restarting
  }

  async #restart(how: 'fast' | 'SIGQUIT' | 'SIGKILL', pauseMs: number): Promise<void> {
    await this.#database.end(how)
    await sleep(pauseMs)
    for (let tries = 1; ; tries++) {
      try {
        return await this.#database.start()
      } catch (error) {
        if (tries === DATABASE_STARTS) throw error
        this.#say(`the database did not start: ${(error as Error).message.split('\n')[0]}`)
      }
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
    const quiet = await this.#until(SETTLE_MS, async () => {
      waiting = await load.waitsFor()
      const starting = this.#all().filter(({ ready }) => !ready)
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
    const pool = new pg.Pool({ connectionString: this.#database.url, max: 4 })
    pool.on('error', () => {})
    const log = await openLog(this.#logServer?.address ?? 'postgres', { databaseUrl: this.#database.url })
    try {
      await this.#until(TIDY_MS, async () => {
        const { rows } = await pool.query<{ rows: string }>(
          `SELECT (SELECT count(*) FROM rollcall.ready) + (SELECT count(*) FROM rollcall.offers)
                + (SELECT count(*) FROM rollcall.leases) AS rows`,
        )
        return rows[0]?.rows === '0'
      })
      await this.#stopAll(Object.values(this.#workers))
      await this.#stopAll(Object.values(this.#services))
      const answers = (await readdir(this.#folder))
        .filter(name => name.endsWith('.answers'))
        .flatMap(name => readWorkerAnswers(join(this.#folder, name)))
      await writeFile(join(this.#folder, 'clients.answers.json'), JSON.stringify(load.answers))
      if (this.#logServer) await this.#keepEvents(log)
      return await examine(pool, log, load.answers, answers)
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

  async #stopAll(processes: readonly Supervised[]): Promise<void> {
    await Promise.all(
      processes.map(async one => {
        if (!(await one.stop())) this.#crashes.push(`${one.name} did not end when it was asked to`)
        this.#crashes.push(...one.crashes)
      }),
    )
  }

  #report(
    load: Load,
    examined: Examined,
    times: Pick<FaultReport, 'log' | 'seed' | 'seconds' | 'tookSeconds' | 'settledSeconds'>,
  ): FaultReport {
    const { findings, ...figures } = examined
    const counts = Object.fromEntries(
      Object.entries(findings).map(([what, lines]: [string, string[]]) => [what, lines.length]),
    ) as Record<keyof Findings, number>
    const found = [...Object.values(findings), this.#crashes].flatMap((lines: string[]) => lines.slice(0, 20))
    return {
      ...times,
      faults: countKinds(this.#plan.faults),
      ...figures,
      repeats: load.repeats,
      ...counts,
      crashed: this.#crashes.length,
      verdict: found.length === 0 ? 'ok' : 'failed',
      found,
      folder: null,
    }
  }

  async #until(ms: number, holds: () => boolean | Promise<boolean>): Promise<boolean> {
    const until = performance.now() + ms
    while (performance.now() < until) {
      if (await holds()) return true
      await sleep(250)
    }
    return false
  }

  #say(line: string): void {
    this.#log(`${((performance.now() - this.#began) / 1_000).toFixed(1)} s: ${line}`)
  }

  /** Whatever happened, nothing is left running. */
  async cleanUp(): Promise<void> {
    this.#load?.giveUp()
    await Promise.all(
      this.#all().map(async one => {
        one.kill(0)
        await one.stop()
      }),
    )
    for (const link of Object.values(this.#links)) link.close()
    await this.#database.close()
    await this.#logServer?.stop()
  }
}
