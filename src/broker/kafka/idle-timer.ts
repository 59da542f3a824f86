/**
 * kafkajs 2.2.4 asks for a timer of a negative time after every answer, whether something waits or not. Node makes it
 * 1 ms, and the timer asks again: an idle connection wakes the process some 900 times a second, for good. Node 20 does
 * so silently, later ones warn as well. The correction was proposed to kafkajs and never released (PITFALLS K15).
 *
 * Importing this corrects it for the process: there is a timer only while requests wait.
 */
import { createRequire } from 'node:module'

interface RequestQueue {
  pending: readonly unknown[]
  /** Milliseconds since 1970, -1 for not at all. */
  throttledUntil: number
  throttleCheckTimeoutId: NodeJS.Timeout | null
  checkPendingRequests(): void
  scheduleCheckPendingRequests(): void
}

/** What the client itself takes where it is not told to wait for longer. */
const CHECK_MS = 10

const loaded: unknown = createRequire(import.meta.url)('kafkajs/src/network/requestQueue/index.js')
// The shape of a file that has no types; the version is pinned, and a test counts the timers.
const queue = (loaded as { prototype: RequestQueue }).prototype

queue.scheduleCheckPendingRequests = function scheduleCheckPendingRequests(this: RequestQueue) {
  // Whatever begins to wait calls this again.
  if (this.throttleCheckTimeoutId || this.pending.length === 0) return
  const throttledMs = this.throttledUntil - Date.now()
  this.throttleCheckTimeoutId = setTimeout(
    () => {
      this.throttleCheckTimeoutId = null
      this.checkPendingRequests()
    },
    throttledMs > 0 ? throttledMs : CHECK_MS,
  )
}
