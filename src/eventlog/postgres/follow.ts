/** Following: reads page after page for ever, through outages, and notices a log that went backwards. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { BaseLogger } from 'pino'
import {
  type Checkpoint,
  FOLLOW_IDLE_MS,
  LogUnavailableError,
  LogWentBackwardsError,
  READ_LIMITS,
  type StoredEvent,
} from '../event-log.ts'
import { unlessAborted } from '../unless-aborted.ts'
import type { Connections } from './connections.ts'
import { isPosition, readLog, readLogId } from './read.ts'
import type { Tail } from './tail.ts'
import type { WakeUps } from './wake-ups.ts'

/** The wait at the end leaves time to read before the idle call is due. */
const IDLE_WAIT_MS = FOLLOW_IDLE_MS - 100
const RETRY_MS = { min: 50, max: 2_000 }

export interface Following {
  logId: string
  connections: Connections
  wakeUps: WakeUps
  tail: Tail
  logger: BaseLogger | undefined
}

/** As the port's `follow`. While the log cannot be reached `onBatch` is not called: nothing is known then. */
export async function follow(
  following: Following,
  from: Checkpoint | null,
  onBatch: (batch: readonly StoredEvent[]) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const { logId, wakeUps } = following
  if (from && from.logId !== logId) throw wentBackwards(following, `the checkpoint is of log ${from.logId}`)
  if (from && !isPosition(from.position)) throw wentBackwards(following, `${from.position} is no position`)
  wakeUps.listen()
  let last = from
  let calledAt = performance.now()
  let seen = wakeUps.count
  let reading = nextPage(following, last, signal)
  while (!signal.aborted) {
    const page = await unlessAborted(reading, signal)
    if (signal.aborted || page === null) return
    const end = page.at(-1)
    if (end) last = { logId, position: end.position, eventId: end.id }
    // Far behind, the next page is fetched while this one is handled.
    const ahead = page.length === READ_LIMITS.events
    const readOn = () => {
      seen = wakeUps.count
      reading = nextPage(following, last, signal)
      // Where nobody comes to await it, since `onBatch` rejected.
      reading.catch(() => {})
    }
    if (ahead) readOn()
    if (end || performance.now() - calledAt >= IDLE_WAIT_MS) {
      await onBatch(page)
      calledAt = performance.now()
    }
    if (!end && wakeUps.count === seen)
      await wakeUps.wait(Math.max(1, IDLE_WAIT_MS - (performance.now() - calledAt)), signal)
    if (!ahead) readOn()
  }
}

/** The events after `last`, read again until the log answers; null when the signal is aborted meanwhile. */
async function nextPage(
  following: Following,
  last: Checkpoint | null,
  signal: AbortSignal,
): Promise<StoredEvent[] | null> {
  const { connections, tail, logger } = following
  const written = last && tail.after(last)
  if (written) return written
  let checkIdentity = last === null
  for (let delayMs = RETRY_MS.min; !signal.aborted; delayMs = Math.min(delayMs * 2, RETRY_MS.max)) {
    try {
      // The event at the checkpoint shows which log this is; without one, and behind an address that was
      // gone for a while, the identity has to.
      if (checkIdentity && (await readLogId(connections)) !== following.logId)
        throw wentBackwards(following, 'another log has taken its place')
      const { at, after } = await readLog(connections, last?.position ?? '0')
      if (last && at !== last.eventId)
        throw wentBackwards(following, `event ${last.eventId} is no longer at position ${last.position}`)
      if (delayMs > RETRY_MS.min) logger?.info('the log can be read again')
      return after
    } catch (error) {
      tail.clear()
      if (!(error instanceof LogUnavailableError)) throw error
      if (delayMs === RETRY_MS.min) logger?.warn({ err: error }, 'the log cannot be read; trying again')
      checkIdentity = true
      await sleep(delayMs, undefined, { signal }).catch(() => {})
    }
  }
  return null
}

function wentBackwards({ logId }: Following, why: string): LogWentBackwardsError {
  return new LogWentBackwardsError(`log ${logId} is not what was followed: ${why}`)
}
