/** A real service with a real broker, a proxy before its API, and workers fed by Kafka. */
import pino from 'pino'
import type { Test } from 'tap'
import type { Broker, OutgoingRecord } from '../../src/broker/broker.ts'
import { openKafkaBroker } from '../../src/broker/kafka/kafka-broker.ts'
import { fileConfigSchema, serviceConfigSchema } from '../../src/runtime/config.ts'
import { startService } from '../../src/runtime/service.ts'
import { type Client, createClient, type TaskView } from '../../src/sdk/client.ts'
import {
  createWorker,
  type Handler,
  type KafkaWorkerOptions,
  type Worker,
  type WorkerOptions,
} from '../../src/sdk/worker.ts'
import { kafkaBroker, uniqueName } from '../support/kafka.ts'
import { testDatabase } from '../support/postgres.ts'
import { SILENT } from '../support/service-parts.ts'
import { type FaultProxy, type LogLine, recorder, startFaultProxy } from './fixture.ts'

export interface KafkaFixture {
  client: Client
  /** For messages that the service did not send. */
  broker: Broker
  brokers: readonly string[]
  proxy: FaultProxy
  /** A type of its own, from those the service was started with. */
  aType(): string
  /** A worker through the proxy, started; stopped when the test ends. */
  worker(t: Test, types: Record<string, Handler>, options?: FixtureWorker): Worker
  log: LogLine[]
}

export type FixtureWorker = Omit<Partial<WorkerOptions>, 'kafka'> & { kafka?: Partial<KafkaWorkerOptions> }

const PARTITIONS = 2

/**
 * Null where there is no broker; the test is then marked as skipped and has to return.
 *
 * @param given a broker that is to be used instead of the shared one
 */
export async function startKafkaFixture(
  t: Test,
  types: number,
  given?: { brokers: readonly string[] },
): Promise<KafkaFixture | null> {
  const kafka = given ?? (await kafkaBroker(t))
  if (!kafka) return null
  const names = Array.from({ length: types }, () => uniqueName('type'))
  const { url: databaseUrl } = await testDatabase(t)
  const service = await startService({
    ...serviceConfigSchema.parse({ databaseUrl, port: 0, kafkaBrokers: kafka.brokers }),
    file: fileConfigSchema.parse({
      types: Object.fromEntries(names.map(name => [name, { kafka: { partitions: PARTITIONS } }])),
    }),
    logger: pino({ level: 'silent' }),
    requireDurable: false,
  })
  t.teardown(() => service.stop())
  const proxy = await startFaultProxy(t, service.url!)
  const broker = openKafkaBroker({ brokers: kafka.brokers, clientId: 'test', logger: SILENT })
  t.teardown(() => broker.close())
  const log: LogLine[] = []
  return {
    client: createClient({ url: service.url! }),
    broker,
    brokers: kafka.brokers,
    proxy,
    log,
    aType: () => {
      const name = names.pop()
      if (name === undefined) throw new Error('start the fixture with more types')
      return name
    },
    worker: (t, types, { kafka: more, ...options } = {}) => {
      const made = createWorker({
        url: proxy.url,
        types,
        logger: recorder(log),
        ...options,
        kafka: { brokers: kafka.brokers, ...more },
      })
      t.teardown(() => made.stop({ drainMs: 0 }))
      made.start()
      return made
    },
  }
}

/** A message as the dispatcher sends it, with other fields where they are given. */
export function messageOf(
  { taskId, type }: Pick<TaskView, 'taskId' | 'type'>,
  fields: object = {},
): OutgoingRecord {
  const message = {
    taskId,
    type,
    run: 1,
    attempt: 1,
    maxAttempts: 3,
    attemptsCharged: 0,
    payload: null,
    context: null,
    labels: {},
    correlationId: null,
    leaseMs: 60_000,
    executionMs: 60_000,
    ...fields,
  }
  return { key: taskId, value: Buffer.from(JSON.stringify(message)), headers: {} }
}
