/**
 * Consumes for as long as it is asked to: it watches over one {@link Member} after the other.
 *
 * The client ends for good on some errors, tries for ever on others, and looks alive in both (PITFALLS K5, K6). So it
 * never starts again by itself; here a member that died, or no longer does anything, is replaced after a pause that
 * grows, and what counts as life is that the handled place moves while there is something before it.
 */
import type { Kafka } from 'kafkajs'
import type { BaseLogger } from 'pino'
import type { Consumer, Consuming } from '../broker.ts'
import { growing, pause, within } from '../deadline.ts'
import type { Contact } from './contact.ts'
import { describe } from './errors.ts'
import { Member } from './member.ts'
import type { KafkaTimeouts } from './options.ts'
import { type Delivery, PartitionWork } from './partition-work.ts'
import { type Place, Places } from './progress.ts'

/** So many deaths in a row, without a sign of life between them, are reported however soon it joins again. */
const DEATHS_TO_REPORT = 5
/** To ask whether a broker is there costs it next to nothing, so that work goes on soon after it is back. */
const LONGEST_POLL_MS = 2_000

export interface ConsumptionOptions {
  kafka: Kafka
  contact: Contact
  consuming: Consuming
  timeouts: KafkaTimeouts
  logger: BaseLogger
}

export class Consumption implements Consumer {
  readonly #options: ConsumptionOptions
  readonly #logger: BaseLogger
  readonly #places: Places
  readonly #works = new Map<string, PartitionWork>()
  readonly #stopping = new AbortController()
  readonly #giveUp = new AbortController()
  readonly #stopped = new Promise<null>(resolve => {
    this.#stopping.signal.addEventListener('abort', () => resolve(null), { once: true })
  })
  #member: Member | null = null
  #assigned = new Set<string>()
  /** Those that have something before them, as of the last look. */
  #behind = new Set<string>()
  #deaths = 0
  #lastDeath: string | null = null
  /** Why the broker cannot be used now. */
  #unreachable: string | null = null
  /** By performance.now(): when it was last in its group and heard of, and when the broker last answered a look. */
  #inGroupAt: number | null = null
  #lookedAt = performance.now()
  readonly #running: Promise<unknown>
  #stop: Promise<void> | null = null

  constructor(options: ConsumptionOptions) {
    this.#options = options
    this.#logger = options.logger
    this.#places = new Places(options)
    this.#running = Promise.all([this.#keepAMember(), this.#watch()])
  }

  health(): { ok: boolean; reason: string | null } {
    const { outMs, stallMs } = this.#options.timeouts
    const now = performance.now()
    const ended = this.#lastDeath === null ? '' : ` It ended last with: ${this.#lastDeath}`
    const because = this.#unreachable === null ? ended : ` ${this.#unreachable}`
    const ill = (reason: string) => ({
      ok: false,
      reason: `${this.#options.consuming.group}: ${reason}${because}`,
    })

    if (this.#stopping.signal.aborted) return ill('stopped.')
    this.#noteMembership()
    if (this.#inGroupAt === null) return ill('has not joined its group yet.')
    if (now - this.#inGroupAt > outMs) return ill(`out of its group for ${seconds(now - this.#inGroupAt)} s.`)
    if (this.#deaths >= DEATHS_TO_REPORT)
      return ill(`ended ${this.#deaths} times and has handled nothing since.`)
    if (now - this.#lookedAt > outMs + this.#options.timeouts.watchMs)
      return ill(`the broker has not said for ${seconds(now - this.#lookedAt)} s where the partitions end.`)
    for (const key of this.#behind) {
      const still = now - (this.#works.get(key)?.movedAt ?? now)
      if (still > stallMs) return ill(`${key} has records and has not moved for ${seconds(still)} s.`)
    }
    return { ok: true, reason: null }
  }

  stop(): Promise<void> {
    this.#stop ??= this.#end()
    return this.#stop
  }

  async #end(): Promise<void> {
    const { stopMs } = this.#options.timeouts
    this.#stopping.abort()
    const settled = Promise.all([...this.#works.values()].map(work => work.settled()))
    await within(settled, stopMs, 'The wait for the batches under way').catch(error =>
      this.#logger.warn({ error: describe(error) }, 'batches were left under way; their records come again'),
    )
    this.#giveUp.abort()
    await this.#member?.leave()
    await within(this.#running, stopMs, 'The end of the consumer').catch(error =>
      this.#logger.warn({ error: describe(error) }, 'the consumer did not end in order'),
    )
    await this.#places.close()
  }

  async #keepAMember(): Promise<void> {
    const { timeouts } = this.#options
    while (await this.#reached()) {
      const member = this.#newMember()
      this.#member = member
      const reason = await this.#life(member)
      if (reason === null) return // the stop has the member leave, when its batches are done
      await member.leave()
      this.#options.contact.forget()
      this.#deaths++
      this.#lastDeath = reason
      const pauseMs = growing(this.#deaths, { firstMs: timeouts.firstRetryMs, lastMs: timeouts.lastRetryMs })
      this.#logger.warn({ reason, deaths: this.#deaths, pauseMs: Math.round(pauseMs) }, 'the consumer ended')
      await pause(pauseMs, this.#stopping.signal)
    }
  }

  /** Waits for a broker that can be used, however long; false when it is to stop. */
  async #reached(): Promise<boolean> {
    const { contact, timeouts } = this.#options
    const { signal } = this.#stopping
    const lastMs = Math.min(LONGEST_POLL_MS, timeouts.lastRetryMs)
    for (let failures = 1; !signal.aborted; failures++) {
      try {
        await Promise.race([contact.ask(), this.#stopped])
        this.#unreachable = null
        return !signal.aborted
      } catch (error) {
        const reason = error instanceof Error ? error.message : describe(error)
        if (reason !== this.#unreachable) this.#logger.warn({ reason }, 'the consumer waits for a broker')
        this.#unreachable = reason
        await pause(growing(failures, { firstMs: timeouts.firstRetryMs, lastMs }), signal)
      }
    }
    return false
  }

  /** Resolves with what a member ended of, or with null when it is to stop. */
  async #life(member: Member): Promise<string | null> {
    const idle = this.#untilIdle(member)
    const started = member.start().then(() => member.died, describe)
    try {
      return await Promise.race([started, idle.reason, this.#stopped])
    } finally {
      idle.cancel()
    }
  }

  /** A member that the client holds for alive, and that does nothing. */
  #untilIdle(member: Member): { reason: Promise<string>; cancel: () => void } {
    const { sessionMs, stallMs, watchMs } = this.#options.timeouts
    const startedAt = performance.now()
    let timer: NodeJS.Timeout | undefined
    const reason = new Promise<string>(resolve => {
      timer = setInterval(() => {
        const lives = performance.now() - startedAt
        // Joining can take as long as the slowest of the group may.
        if ((member.silentMs ?? lives) > 3 * sessionMs) resolve('It was not heard of by its group.')
        // Out of the group it takes nothing, and is not to: until it is in, its start has a deadline of its own.
        if ((member.joinedMs ?? 0) < stallMs) return
        for (const key of this.#behind) {
          const work = this.#works.get(key)
          if (work && !work.busy && performance.now() - work.movedAt > stallMs)
            resolve(`It took nothing from ${key}, which has records.`)
        }
      }, watchMs)
    })
    return { reason, cancel: () => clearInterval(timer) }
  }

  #newMember(): Member {
    return new Member({
      ...this.#options,
      take: (topic, partition, delivery) => this.#take(topic, partition, delivery),
      onAssigned: assignment => this.#onAssigned(assignment),
      onPassedOver: (topic, partition, next) => {
        this.#work(topic, partition).next = next
      },
    })
  }

  async #take(topic: string, partition: number, delivery: Delivery): Promise<void> {
    await this.#work(topic, partition).take({
      ...delivery,
      pass: async next => {
        this.#wellAgain()
        await delivery.pass(next)
      },
    })
  }

  #onAssigned(assignment: Readonly<Record<string, number[]>>): void {
    this.#inGroupAt = performance.now()
    this.#assigned = new Set()
    this.#behind = new Set()
    for (const [topic, partitions] of Object.entries(assignment))
      for (const partition of partitions) {
        this.#assigned.add(`${topic}/${partition}`)
        // Another may have moved the place of the group meanwhile.
        this.#work(topic, partition).next = null
      }
    this.#logger.info({ partitions: [...this.#assigned].slice(0, 50) }, 'the consumer is in its group')
  }

  #work(topic: string, partition: number): PartitionWork {
    const key = `${topic}/${partition}`
    let work = this.#works.get(key)
    if (!work) {
      const { timeouts, consuming } = this.#options
      work = new PartitionWork({
        topic,
        partition,
        onBatch: consuming.onBatch,
        recordsAtOnce: consuming.recordsAtOnce,
        retry: { firstMs: timeouts.firstRetryMs, lastMs: timeouts.lastRetryMs },
        logger: this.#logger,
        stopping: this.#stopping.signal,
        giveUp: this.#giveUp.signal,
      })
      this.#works.set(key, work)
    }
    return work
  }

  async #watch(): Promise<void> {
    const { consuming, timeouts } = this.#options
    while (!this.#stopping.signal.aborted) {
      await pause(timeouts.watchMs, this.#stopping.signal)
      if (this.#stopping.signal.aborted) return
      this.#noteMembership()
      try {
        const places = await this.#places.read(consuming.group, consuming.topics)
        this.#lookedAt = performance.now()
        await this.#compare(places)
        // With nothing before it there is nothing to show its life by but that it stays.
        if (this.#behind.size === 0 && (this.#member?.joinedMs ?? 0) > timeouts.sessionMs) this.#wellAgain()
      } catch (error) {
        this.#logger.debug({ error: describe(error) }, 'the ends of the partitions could not be read')
      }
    }
  }

  async #compare(places: ReadonlyMap<string, Place>): Promise<void> {
    for (const key of this.#assigned) {
      const place = places.get(key)
      const work = this.#works.get(key)
      if (!place || !work) continue
      const next = work.next ?? place.committed ?? place.first
      if (next >= place.end) {
        work.movedAt = performance.now()
        this.#behind.delete(key)
      } else if (!this.#behind.has(key)) {
        work.movedAt = performance.now()
        this.#behind.add(key)
      }
      // A commit that failed, with nothing after it that would cover it.
      const slash = key.lastIndexOf('/')
      if (work.next !== null && !work.busy && (place.committed ?? -1n) < work.next)
        await this.#member?.commit(key.slice(0, slash), Number(key.slice(slash + 1)), work.next)
    }
  }

  #wellAgain(): void {
    this.#deaths = 0
    this.#lastDeath = null
  }

  #noteMembership(): void {
    const { sessionMs } = this.#options.timeouts
    const member = this.#member
    if (member?.joined && (member.silentMs ?? 0) < sessionMs) this.#inGroupAt = performance.now()
  }
}

function seconds(ms: number): number {
  return Math.round(ms / 1_000)
}
