/** A broker in memory that fails as a test wants it to; for the edge cases of scheduling, not of delivery. */
import {
  type Broker,
  BrokerUnavailableError,
  type Consumer,
  type OutgoingRecord,
  RecordRefusedError,
  type Topic,
} from '../../src/broker/broker.ts'

export class FakeBroker implements Broker {
  readonly topics = new Map<string, Topic>()
  readonly sent: { topic: string; record: OutgoingRecord }[] = []
  /** Topics that nobody answers for. */
  readonly away = new Set<string>()
  /** What it will never take. */
  refuses: (record: OutgoingRecord) => boolean = () => false
  /** Called before a send is answered. */
  onSend: (topic: string) => Promise<void> | void = () => {}

  async ensureTopics(topics: readonly Topic[]): Promise<void> {
    for (const topic of topics) {
      this.#answer(topic.name)
      if (!this.topics.has(topic.name)) this.topics.set(topic.name, topic)
    }
  }

  async send(topic: string, records: readonly OutgoingRecord[]): Promise<void> {
    this.#answer(topic)
    if (!this.topics.has(topic)) throw new BrokerUnavailableError(`${topic} is not there`)
    await this.onSend(topic)
    if (records.some(this.refuses)) throw new RecordRefusedError('too large')
    this.sent.push(...records.map(record => ({ topic, record })))
  }

  /** The tasks that were sent, each time they were. */
  keys(topic?: string): string[] {
    return this.sent.filter(one => topic === undefined || one.topic === topic).map(({ record }) => record.key)
  }

  consume(): Consumer {
    throw new Error('the dispatcher consumes nothing')
  }

  async close(): Promise<void> {}

  #answer(topic: string): void {
    if (this.away.has(topic)) throw new BrokerUnavailableError(`nobody answers for ${topic}`)
  }
}
