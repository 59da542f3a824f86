/** The adapter of the port to the message broker, over kafkajs. All that rests on that client is in this folder. */
import { Kafka } from 'kafkajs'
import './idle-timer.ts'
import './snappy.ts'
import { type Broker, BrokerUnavailableError, type Consuming } from '../broker.ts'
import { clientLog } from './client-log.ts'
import { Consumption } from './consumption.ts'
import { type KafkaOptions, TIMEOUTS } from './options.ts'
import { Sender } from './sender.ts'
import { makeTopics } from './topics.ts'

export type { KafkaOptions, KafkaTimeouts } from './options.ts'

/** Connects when it is first needed, so it can be opened while no broker runs. One is enough for a process. */
export function openKafkaBroker(options: KafkaOptions): Broker {
  const { brokers, clientId, logger, replicationFactor } = options
  const timeouts = { ...TIMEOUTS, ...options.timeouts }
  const kafka = new Kafka({
    brokers: [...brokers],
    clientId,
    connectionTimeout: timeouts.connectMs,
    requestTimeout: timeouts.requestMs,
    enforceRequestTimeout: true,
    logCreator: clientLog(logger),
    // Said in full: without it the client has others when NODE_ENV is test (PITFALLS K16).
    retry: { retries: 5, initialRetryTime: 200, maxRetryTime: 2_000, factor: 0.2, multiplier: 2 },
  })
  const sender = new Sender(kafka, timeouts, logger)
  const consumptions = new Set<Consumption>()
  let closed: Promise<void> | null = null

  const open = (): void => {
    if (closed) throw new BrokerUnavailableError('The connection to the broker has been closed.')
  }
  const close = async (): Promise<void> => {
    await Promise.all([...consumptions].map(consumption => consumption.stop()))
    await sender.close()
  }
  return {
    ensureTopics: async topics => {
      open()
      await makeTopics(topics, { kafka, timeouts, logger, replicationFactor })
    },
    send: (topic, records) => sender.send(topic, records),
    consume: (consuming: Consuming) => {
      open()
      const child = logger.child({ group: consuming.group })
      const consumption = new Consumption({ kafka, consuming, timeouts, logger: child })
      consumptions.add(consumption)
      return {
        health: () => consumption.health(),
        stop: () => consumption.stop().finally(() => consumptions.delete(consumption)),
      }
    },
    close: () => {
      closed ??= close()
      return closed
    },
  }
}
