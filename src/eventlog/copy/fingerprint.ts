/**
 * What a stretch of a log holds, in one number: the sum of its events' hashes. It does not depend on their order, which
 * two logs need not share, and two stretches with the same sum and count hold the same events.
 */
import { hashEvent } from '../codec.ts'
import type { StoredEvent } from '../event-log.ts'
import type { Patience } from './patience.ts'
import { type Stretch, walk } from './walk.ts'

export interface Fingerprint {
  events: number
  /** Modulo 2^256. */
  sum: bigint
}

/** @param onEvents sees each batch with its hashes */
export async function fingerprint(
  stretch: Stretch,
  patience: Patience,
  onEvents: (events: readonly StoredEvent[], hashes: readonly string[]) => Promise<void> = async () => {},
): Promise<Fingerprint> {
  let events = 0
  let sum = 0n
  await walk(stretch, patience, async batch => {
    const hashes = batch.map(event => hashEvent(event.stream, event.revision, event))
    for (const hash of hashes) sum = BigInt.asUintN(256, sum + BigInt(`0x${hash}`))
    events += batch.length
    await onEvents(batch, hashes)
    return true
  })
  return { events, sum }
}
