/**
 * The stage of the tests with Kafka: a real broker, a real database, the service in this process and in others that can
 * be killed, and at the end a look through everything that was stored.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Admin } from 'kafkajs'
import type pg from 'pg'
import pino from 'pino'
import type { Test } from 'tap'
import type { SubmitRequest } from '../../src/api/schemas/tasks.ts'
import type { Broker } from '../../src/broker/broker.ts'
import { openKafkaBroker } from '../../src/broker/kafka/kafka-broker.ts'
import { WORKER_EVENTS } from '../../src/broker/topics.ts'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import {
  type FileConfig,
  fileConfigSchema,
  type Role,
  serviceConfigSchema,
} from '../../src/runtime/config.ts'
import type { KafkaBroker } from '../../src/runtime/kafka-broker/kafka-broker.ts'
import { type Service, startService } from '../../src/runtime/service.ts'
import { Api, until } from '../api/fixture.ts'
import { plainClient } from '../broker/kafka/fixture.ts'
import { type Running, startCommand, temporaryFolder } from '../cli/fixture.ts'
import { ownKafkaBroker } from '../support/kafka.ts'
import { testServer } from '../support/postgres.ts'
import { SILENT } from '../support/service-parts.ts'
import { expelMembers } from './kafka-expel.ts'

/** The group of ingest; its name is stored at the broker, so it never changes. */
export const INGEST_GROUP = 'rollcall-ingest'
/** Longer than anything here takes on a busy machine. */
export const PATIENCE_MS = 60_000
/** Looks cost what the service could use. */
const LOOK_MS = 50

type Kinds = Record<string, Partial<NonNullable<FileConfig['types'][string]['kafka']>>>

/** A process of the service, as an operator starts it. */
export interface Killable {
  running: Running
  url: string | null
  kill(): Promise<void>
}

export class Stage {
  readonly databaseUrl: string
  readonly kafka: KafkaBroker
  /** The port to the broker, for whoever is no part of the service. */
  readonly broker: Broker
  readonly admin: Admin
  readonly api: Api
  /** The service in this process. */
  readonly home: Service
  readonly pool: pg.Pool
  readonly log: EventLog
  readonly #t: Test
  readonly #types: Kinds
  readonly #configFile: string

  private constructor(
    t: Test,
    of: Pick<Stage, 'databaseUrl' | 'kafka' | 'broker' | 'admin' | 'home'> & {
      types: Kinds
      configFile: string
    },
  ) {
    this.databaseUrl = of.databaseUrl
    this.kafka = of.kafka
    this.broker = of.broker
    this.admin = of.admin
    this.home = of.home
    this.pool = of.home.pool
    this.log = of.home.log
    this.api = new Api(t, of.home.url!)
    this.#t = t
    this.#types = of.types
    this.#configFile = of.configFile
  }

  /** Null where there is no Kafka; the test is then marked as skipped. */
  static async open(t: Test, roles: Role[], types: Kinds): Promise<Stage | null> {
    const kafka = await ownKafkaBroker(t)
    if (!kafka) return null
    const { url: databaseUrl } = await testServer(t)
    const file = {
      types: Object.fromEntries(Object.entries(types).map(([type, kafka]) => [type, { kafka }])),
    }
    const configFile = join(await temporaryFolder(t), 'rollcall.json')
    await writeFile(configFile, JSON.stringify(file))
    const broker = openKafkaBroker({ brokers: kafka.brokers, clientId: 'worker', logger: SILENT })
    t.teardown(() => broker.close())
    const admin = plainClient(kafka).admin()
    await admin.connect()
    t.teardown(() => admin.disconnect())
    const home = await serve(t, { databaseUrl, kafka, file, roles })
    return new Stage(t, { databaseUrl, kafka, broker, admin, home, types, configFile })
  }

  /** More of the service in this process; it listens, for health at least. */
  serve(roles: Role[]): Promise<Service> {
    const types = Object.fromEntries(Object.entries(this.#types).map(([type, kafka]) => [type, { kafka }]))
    return serve(this.#t, { databaseUrl: this.databaseUrl, kafka: this.kafka, file: { types }, roles })
  }

  /** More of it in a process of its own; `port` gives it health and metrics. */
  async spawn(roles: Role[], port?: number): Promise<Killable> {
    const at = port === undefined ? [] : ['--port', String(port)]
    const running = startCommand(
      [
        'serve',
        '--json',
        '--log-level',
        'silent',
        '--roles',
        roles.join(','),
        '--config',
        this.#configFile,
        ...at,
      ],
      {
        env: {
          ROLLCALL_DATABASE_URL: this.databaseUrl,
          ROLLCALL_KAFKA_BROKERS: this.kafka.brokers.join(','),
        },
      },
    )
    this.#t.teardown(() => running.child.kill('SIGKILL'))
    await running.until(/"ready":true/)
    return {
      running,
      url: port === undefined ? null : `http://127.0.0.1:${port}`,
      kill: async () => {
        const exited = once(running.child, 'exit')
        running.child.kill('SIGKILL')
        await exited
      },
    }
  }

  /** Submits tasks that must be accepted; their ids stand in the order of the submits. */
  async submit(type: string, count: number, over: (index: number) => Partial<SubmitRequest> = () => ({})) {
    const tasks = Array.from({ length: count }, (_, index) => ({
      type,
      idempotencyKey: randomUUID() as string,
      retry: { initialDelayMs: 0, jitter: 0 },
      ...over(index),
    }))
    const { status, body, text } = await this.api.post<{ results: { kind: string; taskId: string }[] }>(
      '/v1/tasks/batch',
      { tasks },
    )
    if (status !== 200 || body.results.some(({ kind }) => kind !== 'accepted'))
      throw new Error(`a submit was answered ${status}: ${text.slice(0, 1_000)}`)
    return body.results.map(({ taskId }) => taskId)
  }

  /** Waits until the read model has all of these as final. */
  async final(taskIds: readonly string[], ms = PATIENCE_MS): Promise<void> {
    let left = ''
    const look = async () => {
      await sleep(LOOK_MS)
      const { rows } = await this.pool.query<{ status: string; count: number }>(
        `SELECT status, count(*)::int FROM rollcall.tasks WHERE task_id = ANY ($1) GROUP BY status`,
        [taskIds],
      )
      left = JSON.stringify(rows)
      const done = rows.filter(({ status }) => /^(SUCCESS|FAILED|CANCELLED)$/.test(status))
      return done.reduce((sum, { count }) => sum + count, 0) === taskIds.length
    }
    await until('all are final', look, ms).catch(error => {
      throw new Error(`${error.message}: of ${taskIds.length} there are ${left}`)
    })
  }

  /** How many tasks of a type are handed out and not seen started. */
  async outstanding(type: string): Promise<number> {
    const { rows } = await this.pool.query<{ count: number }>(
      'SELECT count(*)::int FROM rollcall.offers WHERE type = $1',
      [type],
    )
    return rows[0]!.count
  }

  /** Records of a topic, as the broker counts them. */
  async recordsOf(topic: string): Promise<number> {
    const ends = await this.admin.fetchTopicOffsets(topic)
    return ends.reduce((sum, { offset }) => sum + Number(offset), 0)
  }

  /** Waits until ingest has passed every worker event that the broker has. */
  passed(): Promise<unknown> {
    return until(
      'ingest has passed everything',
      async () => {
        await sleep(LOOK_MS)
        const ends = await this.admin.fetchTopicOffsets(WORKER_EVENTS)
        const [of] = await this.admin.fetchOffsets({ groupId: INGEST_GROUP, topics: [WORKER_EVENTS] })
        const at = new Map(of?.partitions.map(({ partition, offset }) => [partition, offset]))
        return ends.every(({ partition, offset }) => offset === '0' || at.get(partition) === offset)
      },
      PATIENCE_MS,
    )
  }

  /** Waits until the read model has every event. */
  projected(): Promise<unknown> {
    return until('it is projected', async () => {
      await sleep(LOOK_MS)
      const { status, body } = await this.api.get<{ lagSeconds: number }>('/v1/tasks?limit=1')
      return status === 200 && body.lagSeconds === 0
    })
  }

  /** Takes the members that were killed out of the group, or it would wait for each as long as its session lasts. */
  expel(group: string): Promise<void> {
    return expelMembers(this.admin, this.kafka.port, group)
  }
}

async function serve(
  t: Test,
  {
    databaseUrl,
    kafka,
    file,
    roles,
  }: { databaseUrl: string; kafka: KafkaBroker; file: object; roles: Role[] },
): Promise<Service> {
  const service = await startService({
    ...serviceConfigSchema.parse({ databaseUrl, port: 0, kafkaBrokers: [...kafka.brokers], roles }),
    file: fileConfigSchema.parse(file),
    logger: pino({ level: 'silent' }),
  })
  t.teardown(() => service.stop())
  return service
}

interface Ready {
  status: string
  checks: { name: string; ok: boolean; needed?: boolean; reason: string | null }[]
}

/** What `/livez` and `/readyz` of a process say. */
export async function healthOf(
  url: string,
): Promise<{ alive: boolean; ready: boolean; checks: Ready['checks'] }> {
  const [live, ready] = await Promise.all([fetch(`${url}/livez`), fetch(`${url}/readyz`)])
  const { checks } = (await ready.json()) as Ready
  return { alive: live.status === 200, ready: ready.status === 200, checks }
}

/** Waits until a process says that it is ready, or that it is not. */
export const untilReady = (url: string, ready = true): Promise<unknown> =>
  until(
    `${url} is ${ready ? '' : 'not '}ready`,
    async () => (await healthOf(url)).ready === ready,
    PATIENCE_MS,
  )
