/** The parts of a fault run: servers, services, workers, and the networks between them. Whatever happens, `end` ends them. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { KAFKA_ROLES } from '../../../src/runtime/config.ts'
import { migrate } from '../../../src/runtime/migrate.ts'
import { ROLLCALL } from '../../support/built-program.ts'
import {
  type SpawnedEventStoreDBDouble,
  spawnEventStoreDBDouble,
} from '../../support/eventstoredb-double/spawn.ts'
import { TcpProxy } from '../../support/tcp-proxy.ts'
import { KafkaServer } from './kafka-server.ts'
import { KafkaTraffic } from './kafka-traffic.ts'
import {
  KAFKA_LINKS,
  LINKS,
  type LinkName,
  LOG_LINKS,
  SERVICES,
  type ServiceName,
  WORKERS,
  type WorkerName,
} from './kinds.ts'
import { type Plan, TASK_TYPE } from './plan.ts'
import { Database, Supervised, script } from './processes.ts'

const ROLES: Record<ServiceName, string> = {
  a: 'api',
  b: 'api,projector,timers',
  // Stands by for the projector's lease, and runs timers beside those of b.
  c: 'projector,timers',
}
/** With a broker these have its roles as well; an API without them has to get on. */
const AT_BROKER: ReadonlySet<ServiceName> = new Set(['b', 'c'])
/** What is lost on its way to a worker is soon offered again. */
const KAFKA_TYPE = { maxOutstanding: 60, partitions: 6, offerHoldMs: 2_500 }
/** What the workers that it feeds wait for before they begin. */
const CONFIRM = { 'worker-2': 'api', 'worker-3': 'none' } as const
/** All parts run; on a busy machine a process takes its time to start. */
const READY_MS = 120_000
const DATABASE_STARTS = 5

/** Of a worker that Kafka feeds: the bounds of drain, consumer, last reports and producer add up to 21 s. */
const FED_STOP_MS = 30_000

export class Parts {
  readonly links = {} as Record<LinkName, TcpProxy>
  readonly database: Database
  /** Of its own, where the log is not in the database. */
  logServer: SpawnedEventStoreDBDouble | null = null
  kafka: { server: KafkaServer; traffic: KafkaTraffic } | null = null
  /** Parts that ended by themselves, or not when they should. */
  readonly crashes: string[] = []
  readonly #plan: Plan
  readonly #folder: string
  readonly #say: (line: string) => void
  readonly #services = {} as Record<ServiceName, Supervised>
  readonly #workers = {} as Record<WorkerName, Supervised>
  readonly #apiPorts = new Map<ServiceName, number>()
  #restarting: Promise<void> = Promise.resolve()

  constructor(plan: Plan, folder: string, say: (line: string) => void) {
    this.#plan = plan
    this.#folder = folder
    this.#say = say
    this.database = new Database(folder, join(folder, 'postgres.log'), port => {
      for (const service of SERVICES) this.links[`db-${service}`].lead(port)
    })
  }

  /** @throws Error when they are not ready in time */
  async start(): Promise<void> {
    for (const link of LINKS) this.links[link] = await TcpProxy.start()
    await this.database.start()
    await migrate(this.database.url)
    if (this.#plan.log === 'eventstoredb') {
      this.logServer = await spawnEventStoreDBDouble(null)
      for (const link of LOG_LINKS) this.links[link] = await TcpProxy.start(this.logServer.port)
    }
    if (this.#plan.broker) this.kafka = await this.#startKafka()
    for (const name of SERVICES) this.#services[name] = this.#service(name)
    for (const name of WORKERS) this.#workers[name] = this.#worker(name)
    for (const one of this.all()) one.start()
    await until(READY_MS, () => this.all().every(({ ready }) => ready))
    const late = this.all().filter(({ ready }) => !ready)
    if (late.length > 0) throw new Error(`these did not start: ${late.map(({ name }) => name).join(', ')}`)
    if (!this.kafka) return
    const { traffic } = this.kafka
    if (!(await until(READY_MS, () => traffic.hasTopics().catch(() => false))))
      throw new Error('the services have not made their topics')
    traffic.start()
  }

  async #startKafka(): Promise<{ server: KafkaServer; traffic: KafkaTraffic }> {
    for (const link of KAFKA_LINKS) this.links[link] = await TcpProxy.start()
    await writeFile(this.#configPath, JSON.stringify({ types: { [TASK_TYPE]: { kafka: KAFKA_TYPE } } }))
    const server = await KafkaServer.start(this.#folder, join(this.#folder, 'kafka.log'), this.links)
    const publishes = (KAFKA_ROLES as readonly string[]).includes('publisher')
    return { server, traffic: new KafkaTraffic(server.brokers, publishes) }
  }

  get #configPath(): string {
    return join(this.#folder, 'service.json')
  }

  #roles(name: ServiceName): string[] {
    return [...ROLES[name].split(','), ...(this.kafka && AT_BROKER.has(name) ? KAFKA_ROLES : [])]
  }

  /** What a service or a worker is given to find the broker by. */
  #brokerOf(name: 'b' | 'c' | 'worker-2' | 'worker-3'): string {
    return `127.0.0.1:${this.links[`kafka-${name}`].port}`
  }

  all(): Supervised[] {
    return [...Object.values(this.#services), ...Object.values(this.#workers)]
  }

  #service(name: ServiceName): Supervised {
    const databaseUrl = new URL(this.database.url)
    databaseUrl.port = String(this.links[`db-${name}`].port)
    const given = [
      'serve',
      '--json',
      '--port',
      '0',
      '--database-url',
      databaseUrl.href,
      '--roles',
      this.#roles(name).join(','),
      ...(this.kafka ? ['--config', this.#configPath] : []),
      ...(this.kafka && name !== 'a' ? ['--kafka-brokers', this.#brokerOf(name)] : []),
      ...(this.logServer ? ['--log', `esdb://127.0.0.1:${this.links[`log-${name}`].port}?tls=false`] : []),
    ]
    return new Supervised({
      name: `service ${name}`,
      program: ROLLCALL,
      args: () => given,
      logPath: join(this.#folder, `service-${name}.log`),
      onReady: ({ url }) => {
        // Every service listens, for its health and figures; that does not make it one that workers can ask.
        if (this.#roles(name).includes('api')) this.#apiPorts.set(name, Number(new URL(String(url)).port))
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
    for (const worker of WORKERS) this.links[worker].lead(...ports)
    for (const name of ['a', 'b'] as const) {
      const port = this.#apiPorts.get(name)
      this.links[`front-${name}`].lead(...(port === undefined ? [] : [port]))
    }
  }

  #worker(name: WorkerName): Supervised {
    const url = `http://127.0.0.1:${this.links[name].port}`
    const fed =
      this.kafka && (name === 'worker-2' || name === 'worker-3') ? [this.#brokerOf(name), CONFIRM[name]] : []
    return new Supervised({
      name,
      program: script('test/faults/harness/worker.ts'),
      args: () => [url, name, join(this.#folder, `${name}.answers`), ...fed],
      logPath: join(this.#folder, `${name}.log`),
      ...(fed.length > 0 && { stopMs: FED_STOP_MS }),
      isMeant: signal => signal === 'SIGKILL',
    })
  }

  process(target: string): Supervised {
    return this.#services[target as ServiceName] ?? this.#workers[target as WorkerName]
  }

  /** One after the other: an end and a start take longer than the pause that the plan knows. */
  restartDatabase(how: 'fast' | 'SIGQUIT' | 'SIGKILL', pauseMs: number): Promise<void> {
    this.#restarting = this.#restarting.then(() => this.#restart(how, pauseMs))
    return this.#restarting
  }

  async #restart(how: 'fast' | 'SIGQUIT' | 'SIGKILL', pauseMs: number): Promise<void> {
    await this.database.end(how)
    await sleep(pauseMs)
    for (let tries = 1; ; tries++) {
      try {
        return await this.database.start()
      } catch (error) {
        if (tries === DATABASE_STARTS) throw error
        this.#say(`the database did not start: ${(error as Error).message.split('\n')[0]}`)
      }
    }
  }

  /** Workers first, then services, in order; what they said last can be read then. */
  async stop(): Promise<void> {
    await this.#stopAll(Object.values(this.#workers))
    await this.#stopAll(Object.values(this.#services))
    this.crashes.push(...(this.kafka?.server.crashes ?? []))
  }

  /** Nothing is left running. */
  async end(): Promise<void> {
    await Promise.all(
      this.all().map(async one => {
        one.kill(0)
        await one.stop()
      }),
    )
    await this.kafka?.traffic.close()
    await this.kafka?.server.close()
    for (const link of Object.values(this.links)) link.close()
    await this.database.close()
    await this.logServer?.stop()
  }

  async #stopAll(processes: readonly Supervised[]): Promise<void> {
    await Promise.all(
      processes.map(async one => {
        if (!(await one.stop())) this.crashes.push(`${one.name} did not end when it was asked to`)
        this.crashes.push(...one.crashes)
      }),
    )
  }
}

/** Looks again and again; false where it does not come true in time. */
export async function until(ms: number, holds: () => boolean | Promise<boolean>): Promise<boolean> {
  const limit = performance.now() + ms
  while (performance.now() < limit) {
    if (await holds()) return true
    await sleep(250)
  }
  return false
}
