/** Reads a log from one place to another: what copying and comparing do with it. */
import { type Checkpoint, type EventLog, LogUnavailableError, type StoredEvent } from '../event-log.ts'
import type { Patience } from './patience.ts'

/** The place of an event. */
export const placeOf = (log: EventLog, { position, id }: StoredEvent): Checkpoint => ({
  logId: log.id,
  position,
  eventId: id,
})

export const isSamePlace = (one: Checkpoint | null, other: Checkpoint | null): boolean =>
  one?.position === other?.position && one?.eventId === other?.eventId

export interface Stretch {
  log: EventLog
  /** Null begins at the start of the log. */
  after: Checkpoint | null
  /** Its last event; null where there is none. */
  until: Checkpoint | null
}

/**
 * Hands over every event of a stretch in its order, batch by batch.
 *
 * @param onBatch ends the walk where it answers false
 * @throws LogUnavailableError when nothing came for `patienceMs`, LogWentBackwardsError, the signal's reason
 */
export async function walk(
  { log, after, until }: Stretch,
  { patienceMs, signal }: Patience,
  onBatch: (batch: readonly StoredEvent[]) => Promise<boolean>,
): Promise<void> {
  if (until === null || isSamePlace(after, until)) return
  signal.throwIfAborted()
  const done = new AbortController()
  const silent = new AbortController()
  let timer: NodeJS.Timeout | undefined
  const listen = () => {
    timer = setTimeout(() => silent.abort(), patienceMs)
  }
  listen()
  try {
    await log.follow(
      after,
      async batch => {
        if (batch.length === 0) return
        clearTimeout(timer)
        const last = batch.findIndex(event => isSamePlace(placeOf(log, event), until))
        const more = await onBatch(last === -1 ? batch : batch.slice(0, last + 1))
        if (last !== -1 || !more) done.abort()
        else listen()
      },
      AbortSignal.any([signal, done.signal, silent.signal]),
    )
  } finally {
    clearTimeout(timer)
  }
  if (done.signal.aborted) return
  signal.throwIfAborted()
  throw new LogUnavailableError(
    silent.signal.aborted
      ? `log ${log.id} gave nothing to read for ${patienceMs} ms, although it has more`
      : `log ${log.id} was closed while it was read`,
  )
}
