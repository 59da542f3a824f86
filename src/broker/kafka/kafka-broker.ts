/** The adapter of the port to the message broker, over kafkajs. All that rests on that client is in this folder. */
import { Kafka, type SASLOptions } from 'kafkajs'
import './idle-timer.ts'
import './snappy.ts'
import './unreadable.ts'
import { type Broker, BrokerUnavailableError, type Consuming } from '../broker.ts'
import { clientLog } from './client-log.ts'
import { Consumption } from './consumption.ts'
import { Contact } from './contact.ts'
import { type KafkaOptions, RETRY, TIMEOUTS, tlsOptions } from './options.ts'
import { Sender } from './sender.ts'
import { makeTopics } from './topics.ts'

export type { KafkaOptions, KafkaSasl, KafkaTimeouts, KafkaTls } from './options.ts'

/** Connects when it is first needed, so it can be opened while no broker runs. One is enough for a process. */
export function openKafkaBroker(options: KafkaOptions): Broker {
  const { brokers, clientId, logger, replicationFactor, sasl } = options
  const timeouts = { ...TIMEOUTS, ...options.timeouts }
  const tls = tlsOptions(options.tls)
  if (sasl?.mechanism === 'plain' && tls === false)
    logger.warn(
      'the password for kafka goes over the network as it is: without TLS a mechanism of SCRAM hides it',
    )
  const contact = new Contact({ brokers, tls, timeoutMs: timeouts.connectMs, logger })
  const kafka = new Kafka({
    brokers: [...brokers],
    clientId,
    connectionTimeout: timeouts.connectMs,
    requestTimeout: timeouts.requestMs,
    enforceRequestTimeout: true,
    logCreator: clientLog(logger),
    ssl: tls,
    // There each mechanism has a type of its own, all of the same shape.
    ...(sasl ? { sasl: { ...sasl } as SASLOptions } : {}),
    retry: RETRY,
  })
  const sender = new Sender({ kafka, contact, timeouts, logger })
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
      await makeTopics(topics, { kafka, contact, timeouts, logger, replicationFactor })
    },
    send: (topic, records) => sender.send(topic, records),
    consume: (consuming: Consuming) => {
      open()
      const child = logger.child({ group: consuming.group })
      const consumption = new Consumption({ kafka, contact, consuming, timeouts, logger: child })
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
