/**
 * The work on one partition of one consumer, whatever becomes of the client below it.
 *
 *   idle      a delivery comes, and its records are handed on, slice by slice
 *   busy      no other delivery is handed on; the partition is paused when it takes longer than a moment
 *   waiting   the last slice was rejected: paused, the same records come after a pause that grows
 *
 * A batch that takes its time thus holds up neither the other partitions, which the client would let wait for it, nor
 * the heartbeats (PITFALLS K7), nor a stop or a rebalance. What a batch does after its partition has gone to another
 * member is not committed: the records come again (K8).
 */
import type { BaseLogger } from 'pino'
import type { Consuming, IncomingRecord } from '../broker.ts'
import { growing, pause } from '../deadline.ts'
import { describe } from './errors.ts'

/** Records of a partition, from one fetch. */
export interface Delivery {
  records: readonly IncomingRecord[]
  /** The offset after all of them, and after what the client has filtered out behind them. */
  next: bigint
  /** Whether the partition still is with the member that fetched them, and the member lives. */
  isCurrent(): boolean
  /** Moves the place of the group; never rejects. */
  pass(next: bigint): Promise<void>
  heartbeat(): Promise<void>
  /** Keeps the partition from being fetched until the returned function is called. */
  hold(): () => void
}

export interface PartitionWorkOptions {
  topic: string
  partition: number
  onBatch: Consuming['onBatch']
  recordsAtOnce?: number | undefined
  retry: { firstMs: number; lastMs: number }
  logger: BaseLogger
  /** No more is taken. */
  stopping: AbortSignal
  /** What is under way shall end. */
  giveUp: AbortSignal
}

/** At most so many records are handed on at once, however many a fetch brings. */
const SLICE_RECORDS = 500
/** A batch that is done by then costs no pause: after one, a fetch that is under way has to end first. */
const MOMENT_MS = 250

export class PartitionWork {
  /** The offset after the last record that was handled; null when this member has not handled any yet. */
  next: bigint | null = null
  /** When it moved last, or was seen to have nothing before it. By performance.now(). */
  movedAt = performance.now()
  #handling: Promise<boolean> | null = null
  #busy: Promise<void> | null = null
  #failures = 0
  readonly #options: PartitionWorkOptions

  constructor(options: PartitionWorkOptions) {
    this.#options = options
  }

  get busy(): boolean {
    return this.#busy !== null
  }

  /** Resolves when no batch is under way; a pause after a rejection is none. */
  async settled(): Promise<void> {
    await this.#handling
  }

  /** Returns soon, whatever the records take; never rejects. */
  async take(delivery: Delivery): Promise<void> {
    if (this.#options.stopping.aborted) {
      delivery.hold()
      return
    }
    if (this.#busy) {
      // The partition has come back while its last batch still is under way.
      void this.#busy.then(delivery.hold())
      return
    }
    const handling = this.#handle(delivery)
    this.#handling = handling
    const busy = handling.then(async passed => {
      this.#handling = null
      if (!passed && this.#failures > 0)
        await pause(growing(this.#failures, this.#options.retry), this.#options.stopping)
      this.#busy = null
    })
    this.#busy = busy
    const moment = new AbortController()
    const passed = await Promise.race([handling, pause(MOMENT_MS, moment.signal).then(() => false)])
    moment.abort()
    if (passed) await busy
    else void busy.then(delivery.hold())
  }

  /** Whether all was handled. */
  async #handle(delivery: Delivery): Promise<boolean> {
    const { onBatch, stopping, giveUp, topic, partition, logger } = this.#options
    const { records } = delivery
    const atOnce = this.#options.recordsAtOnce ?? SLICE_RECORDS
    for (let from = 0; from < records.length; ) {
      if (stopping.aborted || !delivery.isCurrent()) return false
      const slice = records.slice(from, from + atOnce)
      let part: Awaited<ReturnType<typeof onBatch>>
      try {
        part = await onBatch(slice, giveUp)
      } catch (error) {
        // Of whatever class: the client ends for good on a TypeError and its like (PITFALLS K5).
        this.#failures++
        // Whoever stops may reject what it has not begun.
        logger[stopping.aborted ? 'debug' : 'warn'](
          { topic, partition, offset: slice[0]?.offset, failures: this.#failures, error: describe(error) },
          'a batch was rejected; it comes again',
        )
        return false
      }
      this.#failures = 0
      from += part?.count ?? slice.length
      const after = records[from]
      await this.#pass(delivery, after === undefined ? delivery.next : BigInt(after.offset))
      part?.onPassed()
    }
    return true
  }

  async #pass(delivery: Delivery, next: bigint): Promise<void> {
    this.movedAt = performance.now()
    if (!delivery.isCurrent()) return
    this.next = next
    await delivery.pass(next)
    await delivery.heartbeat()
  }
}
