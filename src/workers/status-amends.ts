/**
 * Puts right what the topic may keep wrong. A send whose outcome is not known, or that of a publisher that was replaced
 * meanwhile, can arrive after what was sent later, and an old status would then stand as the newest. So the newest change
 * of each of its tasks is sent once more when it has arrived or can arrive no more. What is in doubt is kept in the
 * database, for the publisher that is there by then.
 */
import type { Logger } from 'pino'
import type { StatusChanges } from './status-changes.ts'
import type { StatusChange } from './status-message.ts'

export interface StatusDoubt {
  taskId: string
  /** Something old has arrived for sure; otherwise it may still do so. */
  arrived: boolean
  /** Changes whenever the doubt begins anew. */
  mark: string
}

/** Tasks in doubt, and until when. */
export interface StatusDoubts {
  /** @param afterMs for how long something old may still arrive, 0 where it has; of several the longest counts */
  add(taskIds: readonly string[], afterMs: number): Promise<void>
  /** Those that are due; they come again after `againMs` unless they are settled. */
  takeDue(limit: number, againMs: number): Promise<StatusDoubt[]>
  /** Ends those that have the same mark still. */
  settle(taken: readonly StatusDoubt[]): Promise<void>
}

export interface StatusAmendsOptions {
  doubts: StatusDoubts
  changes: StatusChanges
  /** Rejects soon after the signal. */
  send: (changes: readonly StatusChange[], signal: AbortSignal) => Promise<void>
  /** @throws ProjectorFencedError when another publishes */
  stillPublishing: () => Promise<void>
  /** For how long a send can still arrive after it failed. */
  settleMs: number
  logger: Logger
}

const AT_ONCE = 1_000
/** Between looks at what is due. */
const LOOK_MS = 1_000

export class StatusAmends {
  readonly #options: StatusAmendsOptions
  #lookedAt = Number.NEGATIVE_INFINITY
  #fails = false

  constructor(options: StatusAmendsOptions) {
    this.#options = options
  }

  /** Resolves when it is kept; nothing newer may be sent before. @param afterMs as in {@link StatusDoubts.add} */
  async add(taskIds: readonly string[], afterMs = this.#options.settleMs): Promise<void> {
    if (taskIds.length > 0) await this.#options.doubts.add(taskIds, afterMs)
  }

  /**
   * Looks now and then for what is due, and sends it. For the one who publishes, between its batches: what it sends in
   * between is never older than this. A failure leaves it for a later look.
   */
  async putRight(signal: AbortSignal): Promise<void> {
    const now = performance.now()
    if (now - this.#lookedAt < LOOK_MS) return
    this.#lookedAt = now
    const { doubts, changes, send, stillPublishing, settleMs, logger } = this.#options
    try {
      const taken = await doubts.takeDue(AT_ONCE, settleMs)
      if (taken.length === 0) return
      const newest = await changes.newest([...new Set(taken.map(({ taskId }) => taskId))])
      await send(newest, signal)
      // Where another publishes by now, this came too late itself.
      await stillPublishing()
      await doubts.settle(taken)
      this.#fails = false
    } catch (err) {
      if (signal.aborted) return
      if (!this.#fails) logger.warn({ err }, 'old statuses cannot be put right; this goes on until they can')
      this.#fails = true
    }
  }
}
