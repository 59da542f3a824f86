/**
 * What goes over the broker in a fault run, kept by a reader of our own, and what is added to it: records that were there
 * already, and records that nobody can handle.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { type Admin, Kafka, logLevel, type Message, Partitioners, type Producer } from 'kafkajs'
import { pino } from 'pino'
import type { Broker, IncomingRecord } from '../../../src/broker/broker.ts'
import { openKafkaBroker } from '../../../src/broker/kafka/kafka-broker.ts'
import { TASK_STATUS, tasksTopic, WORKER_EVENTS } from '../../../src/broker/topics.ts'
import { GARBAGE_HEADER, type Garbage, garbageOf } from './kafka-garbage.ts'
import { TASK_TYPE } from './plan.ts'
import type { Random } from './random.ts'

export const TASKS = tasksTopic(TASK_TYPE)
/** Who has to have read what in the end. */
const GROUPS = { 'rollcall-ingest': WORKER_EVENTS, [`rollcall.workers.${TASK_TYPE}`]: TASKS }
const REMEMBERED = 400
const AGAIN_MAX = 5
/** A quarter of the garbage is for the workers. */
const FOR_WORKERS = 0.25
const SEND_MS = 60_000
const AGAIN_MS = 500
const RETRY = { retries: 2, initialRetryTime: 100, maxRetryTime: 1_000, factor: 0.2, multiplier: 2 }

export interface StatusRecord {
  status: string
  revision: number
}

export class KafkaTraffic {
  /** Every bad record on the topic of worker events, by its place. */
  readonly garbage = new Map<string, IncomingRecord>()
  /** What was said last of each task, by the topic of their status. */
  readonly statuses = new Map<string, StatusRecord>()
  readonly #broker: Broker
  readonly #kafka: Kafka
  readonly #topics: readonly string[]
  readonly #lately = new Map<string, IncomingRecord[]>()
  /** The next offset to be read, by topic and partition. */
  readonly #next = new Map<string, bigint>()
  #producer: Producer | null = null
  #admin: Admin | null = null
  readonly sent = { again: 0, garbage: 0 }

  /** @param status whether the topic of task status is written */
  constructor(brokers: readonly string[], status: boolean) {
    const logger = pino({ level: 'silent' })
    this.#broker = openKafkaBroker({ brokers, clientId: 'faults', logger, timeouts: { lastRetryMs: 2_000 } })
    this.#kafka = new Kafka({ brokers: [...brokers], logLevel: logLevel.NOTHING, retry: RETRY })
    this.#topics = [WORKER_EVENTS, TASKS, ...(status ? [TASK_STATUS] : [])]
  }

  get readsStatus(): boolean {
    return this.#topics.includes(TASK_STATUS)
  }

  /** Whether the service has made the topics that it makes at its start. */
  async hasTopics(): Promise<boolean> {
    const there = await this.#ask(admin => admin.listTopics())
    return [WORKER_EVENTS, TASKS].every(topic => there.includes(topic))
  }

  /** Reads everything from the beginning, through all that is done to the broker. */
  start(): void {
    // Each by itself: that of the statuses is made with the first of them.
    for (const topic of this.#topics)
      this.#broker.consume({
        group: `faults.${topic}`,
        topics: [topic],
        onBatch: async records => this.#keep(records),
      })
  }

  /** Whether there is something of each to send again and to spoil. */
  get hasSamples(): boolean {
    return [WORKER_EVENTS, TASKS].every(topic => this.#lately.has(topic))
  }

  /** Sends records again that are there already. */
  async redeliver(count: number, random: Random): Promise<void> {
    for (const topic of [WORKER_EVENTS, TASKS]) {
      const lately = this.#lately.get(topic) ?? []
      if (lately.length === 0) continue
      const some = Array.from({ length: Math.ceil(count / 2) }, () => random.pick(lately))
      const again = some.flatMap(record => Array<Message>(random.whole(1, AGAIN_MAX)).fill(messageOf(record)))
      this.sent.again += again.length
      await this.#send(topic, again)
    }
  }

  async spoil(count: number, random: Random): Promise<void> {
    for (const [topic, of] of [
      [WORKER_EVENTS, 'event'],
      [TASKS, 'task'],
    ] as const) {
      const good = (this.#lately.get(topic) ?? []).filter(record => !isGarbage(record))
      const share = of === 'task' ? FOR_WORKERS : 1 - FOR_WORKERS
      if (good.length === 0) continue
      const bad = Array.from({ length: Math.ceil(count * share) }, () =>
        garbageOf(of, random.pick(good), String(++this.sent.garbage), random),
      )
      await this.#send(topic, bad)
    }
  }

  /** What is not read to its end, by the groups of the service and of the workers and by ourselves; empty where all is. */
  async waitsFor(): Promise<string> {
    try {
      const lags = Object.entries(GROUPS).map(
        async ([group, topic]) => [group, await this.#lagOf(group, topic)] as const,
      )
      const waiting = (await Promise.all(lags)).filter(([, lag]) => lag > 0)
      const own = await this.#ownLag()
      return [...waiting, ...(own > 0 ? [['the harness', own] as const] : [])]
        .map(([group, lag]) => `${lag} records before ${group}`)
        .join(', ')
    } catch (error) {
      return `the broker (${(error as Error).message})`
    }
  }

  /** Whether we have; others may be gone by then. */
  async hasReadAll(): Promise<boolean> {
    return (await this.#ownLag().catch(() => 1)) === 0
  }

  async close(): Promise<void> {
    await Promise.allSettled([this.#broker.close(), this.#producer?.disconnect(), this.#admin?.disconnect()])
  }

  #keep(records: readonly IncomingRecord[]): void {
    for (const record of records) {
      const { topic, partition, offset } = record
      const partitionKey = `${topic}/${partition}`
      if (BigInt(offset) < (this.#next.get(partitionKey) ?? 0n)) continue
      this.#next.set(partitionKey, BigInt(offset) + 1n)
      if (topic === TASK_STATUS) {
        if (record.value)
          this.statuses.set(String(record.key), JSON.parse(record.value.toString('utf8')) as StatusRecord)
        continue
      }
      if (topic === WORKER_EVENTS && isGarbage(record)) this.garbage.set(`${partitionKey}/${offset}`, record)
      const lately = this.#lately.get(topic) ?? []
      this.#lately.set(topic, lately)
      lately.push(record)
      if (lately.length > REMEMBERED) lately.shift()
    }
  }

  async #lagOf(group: string, topic: string): Promise<number> {
    const [ends, places] = await this.#ask(admin =>
      Promise.all([admin.fetchTopicOffsets(topic), admin.fetchOffsets({ groupId: group, topics: [topic] })]),
    )
    const passed = new Map(places[0]?.partitions.map(({ partition, offset }) => [partition, Number(offset)]))
    return ends.reduce(
      (sum, { partition, high }) => sum + Number(high) - Math.max(0, passed.get(partition) ?? 0),
      0,
    )
  }

  async #ownLag(): Promise<number> {
    let lag = 0
    for (const topic of this.#topics)
      for (const { partition, high } of await this.#ask(admin => admin.fetchTopicOffsets(topic)))
        lag += Number(BigInt(high) - (this.#next.get(`${topic}/${partition}`) ?? 0n))
    return lag
  }

  async #ask<T>(question: (admin: Admin) => Promise<T>): Promise<T> {
    if (!this.#admin) {
      const admin = this.#kafka.admin({ retry: RETRY })
      await admin.connect()
      this.#admin = admin
    }
    return question(this.#admin)
  }

  /** Until the broker has it. What it took without an answer is there twice then: what counts is what is on the topic. */
  async #send(topic: string, messages: readonly (Message | Garbage)[]): Promise<void> {
    for (const until = performance.now() + SEND_MS; ; ) {
      try {
        this.#producer ??= await this.#connect()
        await this.#producer.send({ topic, messages: [...messages] as Message[], acks: -1 })
        return
      } catch (error) {
        if (performance.now() > until) throw error
        await sleep(AGAIN_MS)
      }
    }
  }

  async #connect(): Promise<Producer> {
    const producer = this.#kafka.producer({
      createPartitioner: Partitioners.DefaultPartitioner,
      retry: RETRY,
    })
    await producer.connect()
    return producer
  }
}

const isGarbage = ({ headers }: IncomingRecord): boolean => headers.some(([name]) => name === GARBAGE_HEADER)

function messageOf({ key, value, headers }: IncomingRecord): Message {
  const named: Record<string, Buffer | Buffer[]> = {}
  for (const [name, content] of headers) {
    const before = named[name]
    named[name] = before === undefined ? content : [...(Array.isArray(before) ? before : [before]), content]
  }
  return { key, value, headers: named }
}
