/** Makes topics; nothing else may (PITFALLS K4). */
import type { Admin, ITopicConfig, Kafka } from 'kafkajs'
import type { BaseLogger } from 'pino'
import type { Topic } from '../broker.ts'
import { pause, within } from '../deadline.ts'
import type { Contact } from './contact.ts'
import { brokerCodes, portError } from './errors.ts'
import { type KafkaTimeouts, RETRY } from './options.ts'

/** The broker's own setting. */
const BROKER_DECIDES = -1
const LEADER_LOOKS = 20
const LEADER_PAUSE_MS = 50
const NEVER = new AbortController().signal

interface Making {
  kafka: Kafka
  contact: Contact
  timeouts: KafkaTimeouts
  logger: BaseLogger
  replicationFactor: number | undefined
}

/** @throws BrokerUnavailableError, or RecordRefusedError for a name that the broker does not allow */
export async function makeTopics(topics: readonly Topic[], making: Making): Promise<void> {
  const { kafka, timeouts, logger } = making
  if (topics.length === 0) return
  const admin = kafka.admin({ retry: RETRY })
  const names = topics.map(topic => topic.name).join(', ')
  try {
    await within(make(admin, topics, making), timeouts.sendMs, `The making of the topics ${names}`)
  } catch (error) {
    throw portError(error, `The making of the topics ${names}`)
  } finally {
    void within(admin.disconnect(), timeouts.stopMs, 'The end of the admin client').catch(err =>
      logger.debug({ err }, 'the kafka admin client did not end in order'),
    )
  }
}

async function make(admin: Admin, topics: readonly Topic[], making: Making): Promise<void> {
  await making.contact.ask()
  await admin.connect()
  const there = new Set(await admin.listTopics())
  const missing = topics.filter(topic => !there.has(topic.name))
  // One by one: of several at once the client does not say which were there already.
  for (const topic of missing) {
    try {
      await admin.createTopics({
        topics: [configOf(topic, making.replicationFactor)],
        waitForLeaders: true,
        timeout: making.timeouts.requestMs,
      })
    } catch (error) {
      if (!brokerCodes(error).includes('TOPIC_ALREADY_EXISTS')) throw error
    }
    await untilLed(admin, topic.name)
  }
}

/**
 * Of a new topic the broker names leaders that do not know it yet. What is sent to several partitions then is refused by
 * some, and the client sends it to all of them again: harmless, and needless. Waits a moment, and no longer.
 */
async function untilLed(admin: Admin, topic: string): Promise<void> {
  for (let look = 0; look < LEADER_LOOKS; look++) {
    const led = await admin.fetchTopicOffsets(topic).then(
      () => true,
      () => false,
    )
    if (led) return
    await pause(LEADER_PAUSE_MS, NEVER)
  }
}

function configOf(
  { name, partitions, compacted }: Topic,
  replicationFactor: number | undefined,
): ITopicConfig {
  return {
    topic: name,
    numPartitions: partitions,
    replicationFactor: replicationFactor ?? BROKER_DECIDES,
    configEntries: [
      { name: 'cleanup.policy', value: compacted ? 'compact' : 'delete' },
      // The broker takes records in any codec and keeps them in none, so none comes that the client cannot read.
      { name: 'compression.type', value: 'uncompressed' },
    ],
  }
}
