/** Looks at where the partitions end and where the group has got to: what a consumer has still before it. */
import type { Admin, Kafka } from 'kafkajs'
import { within } from '../deadline.ts'
import type { Contact } from './contact.ts'
import { type KafkaTimeouts, RETRY } from './options.ts'

export interface Place {
  /** Of the oldest record that is kept. */
  first: bigint
  /** After the newest. */
  end: bigint
  /** The first that the group has not passed; null when it has no place. */
  committed: bigint | null
}

export class Places {
  readonly #kafka: Kafka
  readonly #contact: Contact
  readonly #timeouts: KafkaTimeouts
  #admin: Admin | null = null

  constructor({ kafka, contact, timeouts }: { kafka: Kafka; contact: Contact; timeouts: KafkaTimeouts }) {
    this.#kafka = kafka
    this.#contact = contact
    this.#timeouts = timeouts
  }

  /** By `topic/partition`. Rejects when the broker does not answer in time. */
  async read(group: string, topics: readonly string[]): Promise<Map<string, Place>> {
    try {
      return await within(this.#read(group, topics), this.#timeouts.requestMs, 'A look at the partitions')
    } catch (error) {
      // A new one finds its way where the old one may be left with a broker that is gone.
      await this.close()
      throw error
    }
  }

  async close(): Promise<void> {
    const admin = this.#admin
    this.#admin = null
    if (admin)
      await within(admin.disconnect(), this.#timeouts.stopMs, 'The end of the admin client').catch(() => {})
  }

  async #read(group: string, topics: readonly string[]): Promise<Map<string, Place>> {
    const admin = await this.#connected()
    const places = new Map<string, Place>()
    for (const topic of topics)
      for (const { partition, low, high } of await admin.fetchTopicOffsets(topic))
        places.set(`${topic}/${partition}`, { first: BigInt(low), end: BigInt(high), committed: null })
    for (const { topic, partitions } of await admin.fetchOffsets({ groupId: group, topics: [...topics] }))
      for (const { partition, offset } of partitions) {
        const place = places.get(`${topic}/${partition}`)
        if (place && !offset.startsWith('-')) place.committed = BigInt(offset)
      }
    return places
  }

  async #connected(): Promise<Admin> {
    if (this.#admin) return this.#admin
    await this.#contact.ask()
    const admin = this.#kafka.admin({ retry: { ...RETRY, retries: 1 } })
    this.#admin = admin
    await admin.connect()
    return admin
  }
}
