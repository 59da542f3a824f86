/** One life of the client's consumer, from its start to its end. It is not started twice. */
import type { Consumer, EachBatchPayload, Kafka } from 'kafkajs'
import type { BaseLogger } from 'pino'
import type { Consuming, IncomingRecord } from '../broker.ts'
import { within } from '../deadline.ts'
import { describe } from './errors.ts'
import { type KafkaTimeouts, RETRY } from './options.ts'
import type { Delivery } from './partition-work.ts'
import { standsFor, UNREADABLE } from './unreadable.ts'

export interface MemberOptions {
  kafka: Kafka
  consuming: Consuming
  timeouts: KafkaTimeouts
  logger: BaseLogger
  take: (topic: string, partition: number, delivery: Delivery) => Promise<void>
  /** The partitions it has from now on; `generation` counts these. */
  onAssigned: (assignment: Readonly<Record<string, number[]>>) => void
  /** Records that are for nobody, aborted ones for example, were passed over up to here. */
  onPassedOver: (topic: string, partition: number, next: bigint) => void
}

/** Bounds memory: a fetch is held until its records are handled (PITFALLS K20). */
const FETCH_BYTES = 8 * 1024 * 1024
const PARTITION_BYTES = 1024 * 1024
const PARTITIONS_AT_ONCE = 16

export class Member {
  readonly #options: MemberOptions
  readonly #consumer: Consumer
  #generation = 0
  #left = false
  /** By performance.now(). */
  #joinedAt: number | null = null
  #heardAt: number | null = null
  #die: (reason: string) => void = () => {}
  #go: () => void = () => {}
  /** Resolves when it is to leave. */
  readonly #gone: Promise<void>
  /** Resolves with the reason when the client has given up. Never rejects. */
  readonly died: Promise<string>

  constructor(options: MemberOptions) {
    const { kafka, consuming, timeouts } = options
    this.#options = options
    this.died = new Promise(resolve => {
      this.#die = resolve
    })
    this.#gone = new Promise(resolve => {
      this.#go = resolve
    })
    this.#consumer = kafka.consumer({
      groupId: consuming.group,
      allowAutoTopicCreation: false,
      sessionTimeout: timeouts.sessionMs,
      rebalanceTimeout: timeouts.rebalanceMs,
      heartbeatInterval: timeouts.heartbeatMs,
      maxWaitTimeInMs: timeouts.fetchWaitMs,
      maxBytes: FETCH_BYTES,
      maxBytesPerPartition: PARTITION_BYTES,
      retry: {
        ...RETRY,
        // Whether it ended for a passing reason or not (PITFALLS K6), it is ours to build it anew.
        restartOnFailure: async () => false,
      },
    })
    this.#listen()
  }

  /** Whether it is in its group, as far as the client knows. */
  get joined(): boolean {
    return this.#joinedAt !== null && !this.#left
  }

  /** Milliseconds since it came into its group; null when it is not in it. */
  get joinedMs(): number | null {
    return this.#joinedAt === null ? null : performance.now() - this.#joinedAt
  }

  /** Milliseconds since the group's coordinator was heard of; null before that. */
  get silentMs(): number | null {
    return this.#heardAt === null ? null : performance.now() - this.#heardAt
  }

  /** Rejects when the topics are not there or no broker answers in time. */
  async start(): Promise<void> {
    const { consuming, timeouts } = this.#options
    const starting = Promise.race([this.#start(consuming), this.#gone])
    // Joining may take until the others of the group have come back to it.
    await within(starting, timeouts.requestMs + 3 * timeouts.sessionMs, 'The start of the consumer')
  }

  /** Leaves the group and closes the connections, in bounded time. Never rejects; safe to repeat. */
  async leave(): Promise<void> {
    this.#left = true
    this.#joinedAt = null
    this.#go()
    const { timeouts, logger } = this.#options
    try {
      await within(this.#consumer.disconnect(), timeouts.stopMs, 'The leave')
    } catch (error) {
      logger.debug({ error: describe(error) }, 'the consumer did not leave its group in order')
    }
  }

  /** Moves the place of the group. Errors are normal after a rebalance (PITFALLS K8); whoever calls has to repeat it. */
  async commit(topic: string, partition: number, next: bigint): Promise<boolean> {
    if (!this.joined) return false
    try {
      const committing = this.#consumer.commitOffsets([{ topic, partition, offset: String(next) }])
      await within(committing, this.#options.timeouts.requestMs, 'A commit')
      return true
    } catch (error) {
      const context = { topic, partition, error: describe(error) }
      this.#options.logger.debug(
        context,
        'a place in a partition was not committed; the next commit covers it',
      )
      return false
    }
  }

  async #start(consuming: Consuming): Promise<void> {
    const steps = [
      () => this.#consumer.connect(),
      // From the beginning where the group has no place: its places lapse when it is idle for a week (PITFALLS K14).
      () => this.#consumer.subscribe({ topics: [...consuming.topics], fromBeginning: true }),
      () =>
        this.#consumer.run({
          autoCommit: false,
          eachBatchAutoResolve: false,
          partitionsConsumedConcurrently: PARTITIONS_AT_ONCE,
          eachBatch: payload => this.#onBatch(payload),
        }),
    ]
    for (const step of steps) {
      if (this.#left) break
      await step()
    }
    // It took longer than anybody waited for it.
    if (this.#left) await this.#consumer.disconnect()
  }

  #listen(): void {
    const { events, on } = this.#consumer
    on(events.GROUP_JOIN, ({ payload }) => {
      this.#generation++
      if (this.#left) return
      this.#joinedAt ??= performance.now()
      this.#heardAt = performance.now()
      this.#options.onAssigned(payload.memberAssignment)
    })
    on(events.HEARTBEAT, () => {
      this.#heardAt = performance.now()
    })
    on(events.REBALANCING, () => {
      this.#generation++
      this.#joinedAt = null
    })
    on(events.START_BATCH_PROCESS, ({ payload }) => {
      if (payload.batchSize === 0 && payload.lastOffset !== null)
        this.#options.onPassedOver(payload.topic, payload.partition, BigInt(payload.lastOffset) + 1n)
    })
    on(events.CRASH, ({ payload }) => {
      this.#joinedAt = null
      this.#die(describe(payload.error))
    })
  }

  async #onBatch({ batch, pause, resolveOffset, heartbeat, isRunning }: EachBatchPayload): Promise<void> {
    const { topic, partition } = batch
    const generation = this.#generation
    const isCurrent = () => !this.#left && isRunning() && generation === this.#generation
    if (!isCurrent()) return
    await this.#options.take(topic, partition, {
      records: batch.messages.flatMap(message => incoming(topic, partition, message)),
      next: BigInt(batch.lastOffset()) + 1n,
      isCurrent,
      pass: async next => {
        resolveOffset(String(next - 1n))
        await this.commit(topic, partition, next)
      },
      // A rebalance shows in it as an error; the client asks again itself and sees to it.
      heartbeat: () => heartbeat().catch(() => {}),
      hold: () => {
        if (this.#left) return () => {}
        const resume = pause()
        return () => {
          if (!this.#left) resume()
        }
      },
    })
  }
}

function incoming(
  topic: string,
  partition: number,
  message: EachBatchPayload['batch']['messages'][number],
): IncomingRecord[] {
  const { offset, key, value } = message
  const timestamp = Number(message.timestamp)
  const whole = standsFor(message)
  if (whole === 'nothing') return []
  if (whole !== 'itself') {
    const headers = [[UNREADABLE, Buffer.from(whole.reason)] as const]
    return [{ topic, partition, offset, key, value, headers, timestamp }]
  }
  const headers: [string, Buffer][] = []
  for (const [name, values] of Object.entries(message.headers ?? {}))
    for (const value of Array.isArray(values) ? values : [values])
      headers.push([name, typeof value === 'string' ? Buffer.from(value) : (value ?? Buffer.alloc(0))])
  return [{ topic, partition, offset, key, value, headers, timestamp }]
}
