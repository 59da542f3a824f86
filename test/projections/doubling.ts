import type { EventLog } from '../../src/eventlog/event-log.ts'
import { wrapLog } from '../support/service-parts.ts'

/** A log that delivers small batches, each event twice in its batch, and each batch twice. */
export const doubling = (log: EventLog): EventLog =>
  wrapLog(log, {
    follow: (from, onBatch, signal) =>
      log.follow(
        from,
        async batch => {
          for (let at = 0; at < batch.length; at += 3) {
            const part = batch.slice(at, at + 3)
            await onBatch(part.flatMap(event => [event, event]))
            await onBatch(part)
          }
          if (batch.length === 0) await onBatch(batch)
        },
        signal,
      ),
  })
