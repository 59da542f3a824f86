/** What a worker fed by Kafka is told. */
import type { KafkaOptions } from '../../broker/kafka/options.ts'

export interface KafkaWorkerOptions extends Pick<KafkaOptions, 'tls' | 'sasl'> {
  /** Each as `host:port`; one that answers is enough, it names the others. */
  brokers: readonly string[]
  /**
   * Who confirms that a task is this worker's before its handler runs. `api` (default): the service, over HTTP, which
   * takes heartbeats as well, so that a handler hears of a cancel and of a lost lease. `none`: nobody. Then no `url` is
   * needed; all goes to the broker, a handler hears of nothing, and now and then does what another has done.
   */
  confirm?: 'api' | 'none'
  /** What the names of the consumer groups begin with, one for each type. Default `rollcall.workers`. */
  group?: string
  /** The Kafka client's own waits, where the defaults do not fit the network. */
  timeouts?: KafkaOptions['timeouts']
}

export interface KafkaSettings extends KafkaWorkerOptions {
  confirm: 'api' | 'none'
  group: string
}

const BROKER = /^(\[[0-9a-fA-F:.]+\]|[^\s:/@]+):\d{1,5}$/
const GROUP = /^[A-Za-z0-9._-]{1,150}$/

/** The options, checked and complete. Throws a TypeError that names the one at fault. */
export function kafkaSettingsOf(options: KafkaWorkerOptions): KafkaSettings {
  const { brokers, confirm = 'api', group = 'rollcall.workers' } = options
  if (!Array.isArray(brokers) || brokers.length === 0)
    throw new TypeError('kafka.brokers must name at least one broker as host:port')
  for (const broker of brokers)
    if (typeof broker !== 'string' || !BROKER.test(broker))
      throw new TypeError(`kafka.brokers: ${JSON.stringify(broker)} must be host:port, such as kafka-1:9092`)
  if (confirm !== 'api' && confirm !== 'none')
    throw new TypeError(`kafka.confirm must be 'api' or 'none', not ${JSON.stringify(confirm)}`)
  if (typeof group !== 'string' || !GROUP.test(group))
    throw new TypeError('kafka.group must be 1 to 150 letters, digits, dots, dashes or underscores')
  return { ...options, brokers: [...brokers], confirm, group }
}
