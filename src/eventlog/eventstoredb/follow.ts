/**
 * Following by a subscription that is never trusted: it begins at an event that was seen to be where it was left, is
 * opened again whenever it ends, and while it is silent its place is compared with the head of the log, since a
 * subscription may be dropped without a word or hang on a node that lost its place (PITFALLS E11, E15).
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { BaseLogger } from 'pino'
import {
  type Checkpoint,
  FOLLOW_IDLE_MS,
  LogUnavailableError,
  LogWentBackwardsError,
  type StoredEvent,
} from '../event-log.ts'
import { unlessAborted } from '../unless-aborted.ts'
import type { Connection } from './connection.ts'
import type { Identity } from './identity.ts'
import { isAfter, placeOf } from './names.ts'
import type { Reader } from './read.ts'
import { Subscription } from './subscription.ts'

const IDLE_WAIT_MS = FOLLOW_IDLE_MS - 100
const RETRY_MS = { min: 50, max: 2_000 }
/** A silence after which the head is looked at, first and from then on, while nothing comes. */
const SILENCE_MS = { unsure: 500, sure: 5_000 }
/** The head may be ahead for so long until its event must have come. */
const ON_ITS_WAY_MS = 1_000

export interface Following {
  connection: Connection
  reader: Reader
  identity: Identity
  logger: BaseLogger | undefined
  silenceMs?: number
}

/** As the port's `follow`. While the log cannot be reached `onBatch` is not called: nothing is known then. */
export async function follow(
  following: Following,
  from: Checkpoint | null,
  onBatch: (batch: readonly StoredEvent[]) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  let last = from
  let calledAt = performance.now()
  let subscription: Subscription | null = null
  let watch = new Watch(following)
  try {
    while (!signal.aborted) {
      if (!subscription) {
        subscription = await open(following, last, signal)
        if (!subscription) return
        watch = new Watch(following)
      }
      const batch = subscription.take()
      const end = batch.at(-1)
      if (end) {
        last = { logId: following.identity.id, position: end.position, eventId: end.id }
        await onBatch(batch)
        calledAt = performance.now()
      } else if (subscription.failure || (await watch.isLost(subscription))) {
        following.logger?.info({ err: subscription.failure }, 'following anew')
        subscription.close()
        subscription = null
        // One that ends as soon as it was opened must not be opened again and again without a pause.
        await sleep(RETRY_MS.min, undefined, { signal }).catch(() => {})
      } else if (subscription.caughtUp && performance.now() - calledAt >= IDLE_WAIT_MS) {
        await onBatch([])
        calledAt = performance.now()
      } else {
        const idleMs = subscription.caughtUp ? IDLE_WAIT_MS - (performance.now() - calledAt) : IDLE_WAIT_MS
        await subscription.wait(Math.max(1, idleMs), signal)
      }
    }
  } finally {
    subscription?.close()
  }
}

/** A subscription from where the follower stands, as soon as the log can be reached; null when aborted meanwhile. */
async function open(
  following: Following,
  last: Checkpoint | null,
  signal: AbortSignal,
): Promise<Subscription | null> {
  const { connection, reader, identity, logger } = following
  for (let delayMs = RETRY_MS.min; !signal.aborted; delayMs = Math.min(delayMs * 2, RETRY_MS.max)) {
    try {
      const opened = await unlessAborted(
        (async () => {
          await identity.look()
          if (last) assertOurs(identity.id, last)
          if (last) await reader.verify(last)
          return Subscription.open(connection, reader.names, last)
        })(),
        signal,
        late => late.close(),
      )
      if (opened && delayMs > RETRY_MS.min) logger?.info('the log can be read again')
      return opened
    } catch (error) {
      if (!(error instanceof LogUnavailableError)) throw error
      if (delayMs === RETRY_MS.min) logger?.warn({ err: error }, 'the log cannot be read; trying again')
      await sleep(delayMs, undefined, { signal }).catch(() => {})
    }
  }
  return null
}

/** @throws LogWentBackwardsError for a place that cannot be one of this log */
export function assertOurs(logId: string, from: Checkpoint): void {
  if (from.logId !== logId)
    throw new LogWentBackwardsError(`the checkpoint is of log ${from.logId}, this is ${logId}`)
  if (!placeOf(from.position))
    throw new LogWentBackwardsError(`${from.position} is no position of log ${logId}`)
}

/** Whether a silent subscription is still one. */
class Watch {
  readonly #following: Following
  #checkedAt = performance.now()
  /** A head that had not come when it was looked at, and when that was. */
  #ahead: { position: string; since: number } | null = null

  constructor(following: Following) {
    this.#following = following
  }

  async isLost(subscription: Subscription): Promise<boolean> {
    const now = performance.now()
    const sureMs = this.#following.silenceMs ?? SILENCE_MS.sure
    const silenceMs = subscription.caughtUp ? (this.#ahead ? ON_ITS_WAY_MS : sureMs) : SILENCE_MS.unsure
    if (now - Math.max(subscription.heardAt, this.#checkedAt) < silenceMs) return false
    this.#checkedAt = now
    try {
      const head = await this.#following.reader.head()
      const { last } = subscription
      if (head && (last === null || isAfter(head, last))) {
        if (this.#ahead && (last === null || isAfter(this.#ahead, last)))
          return now - this.#ahead.since >= ON_ITS_WAY_MS
        this.#ahead = { position: head.position, since: now }
        return false
      }
      this.#ahead = null
      // Servers before 23.10 do not say so themselves.
      subscription.caughtUp = true
      return false
    } catch (error) {
      if (!(error instanceof LogUnavailableError)) throw error
      return true
    }
  }
}
