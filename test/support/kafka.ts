/**
 * A real Kafka for tests: one broker per test process, started when the first test asks for it (2 to 4 s).
 *
 * `KAFKA_BROKERS` (`host:port`, several by commas) takes one that runs already instead. Where there is neither that nor
 * Java and Maven, a test that asks is skipped, and says so on stderr; with `ROLLCALL_TEST_KAFKA_REQUIRED` it fails.
 */
import { randomBytes } from 'node:crypto'
import { rm } from 'node:fs/promises'
import root, { type Test } from 'tap'
import { kafkaJars } from '../../src/runtime/kafka-broker/jars.ts'
import { findJava } from '../../src/runtime/kafka-broker/java.ts'
import {
  type KafkaBroker,
  KafkaBrokerError,
  startKafkaBroker,
} from '../../src/runtime/kafka-broker/kafka-broker.ts'
import { temporaryFolder } from './postgres.ts'

const RUN = `${process.pid}-${randomBytes(4).toString('hex')}`
/** What a machine may lack; anything else that goes wrong is a failure. */
const LACKING: readonly string[] = ['java_missing', 'maven_missing', 'jars_missing']
let names = 0
let shared: Promise<{ brokers: string[] } | string> | null = null
let told = false

/**
 * The addresses of a broker that is shared with other tests: topics and groups need names of their own. Null when there
 * is none; the test is then marked as skipped and has to return.
 */
export async function kafkaBroker(t: Test): Promise<{ brokers: string[] } | null> {
  shared ??= findBroker()
  const found = await shared
  return typeof found === 'string' ? skip(t, found) : found
}

/** A broker of one's own, to be stopped, killed and started again; null as for {@link kafkaBroker}. */
export async function ownKafkaBroker(
  t: Test,
  properties: Readonly<Record<string, string>> = {},
): Promise<KafkaBroker | null> {
  const found = await startBroker(properties)
  if (typeof found === 'string') return skip(t, found)
  t.teardown(() => end(found))
  return found.broker
}

/** Whether a broker could be started here; if not, the test is marked as skipped and has to return. */
export async function canStartKafka(t: Test): Promise<boolean> {
  const lacking = await findJava()
    .then(() => kafkaJars())
    .then(() => null, lackingOf)
  if (lacking !== null) skip(t, lacking)
  return lacking === null
}

/** For a topic or a group that no other test and no other run uses. */
export function uniqueName(what: string): string {
  return `test-${what}-${RUN}-${++names}`
}

interface Started {
  broker: KafkaBroker
  dataDir: string
}

async function findBroker(): Promise<{ brokers: string[] } | string> {
  const given = process.env.KAFKA_BROKERS
  if (given) return { brokers: given.split(',').map(broker => broker.trim()) }
  const started = await startBroker()
  if (typeof started === 'string') return started
  root.teardown(() => end(started))
  return { brokers: [...started.broker.brokers] }
}

/** The broker, or what the machine lacks. */
async function startBroker(properties: Readonly<Record<string, string>> = {}): Promise<Started | string> {
  const dataDir = await temporaryFolder()
  try {
    return { broker: await startKafkaBroker({ dataDir, properties }), dataDir }
  } catch (error) {
    await rm(dataDir, { recursive: true, force: true })
    return lackingOf(error)
  }
}

function lackingOf(error: unknown): string {
  if (error instanceof KafkaBrokerError && LACKING.includes(error.code)) return error.message
  throw error
}

async function end({ broker, dataDir }: Started): Promise<void> {
  await broker.stop()
  await rm(dataDir, { recursive: true, force: true })
}

function skip(t: Test, reason: string): null {
  const message = `NOT RUN: tests with Kafka. ${reason} Or set KAFKA_BROKERS to the address of a broker.`
  if (process.env.ROLLCALL_TEST_KAFKA_REQUIRED) throw new Error(message)
  if (!told) process.stderr.write(`${message}\n`)
  told = true
  t.plan(0, message)
  return null
}
