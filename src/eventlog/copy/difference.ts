/** Where two logs that should hold the same first differ: looked for only once their sums do. */
import type { EventLog, StoredEvent } from '../event-log.ts'
import { type Patience, patiently } from './patience.ts'
import { type Stretch, walk } from './walk.ts'

export interface Difference {
  stream: string
  revision: number
  what: string
}

const STREAMS_AT_ONCE = 100

/** The first difference, in the order of the source, then of the target; null where there is none any more. */
export async function findDifference(
  source: Stretch,
  target: Stretch,
  patience: Patience,
): Promise<Difference | null> {
  return (
    (await firstUnlike(source, target.log, patience, 'is not in the target')) ??
    (await firstUnlike(target, source.log, patience, 'is in the target and not in the source'))
  )
}

/** The first event of a stretch that does not stand in the other log as it does here. */
export async function firstUnlike(
  stretch: Stretch,
  other: EventLog,
  patience: Patience,
  absent: string,
): Promise<Difference | null> {
  let found: Difference | null = null
  await walk(stretch, patience, async batch => {
    const there = await eventsOf(other, batch, patience)
    for (const event of batch) {
      const { stream, revision } = event
      const twin = there.get(`${stream} ${revision}`)
      const what = twin ? unlike(event, twin) : absent
      if (what === null) continue
      found = { stream, revision, what }
      return false
    }
    return true
  })
  return found
}

async function eventsOf(
  log: EventLog,
  batch: readonly StoredEvent[],
  patience: Patience,
): Promise<Map<string, StoredEvent>> {
  const from = new Map<string, number>()
  for (const { stream, revision } of batch) from.set(stream, Math.min(revision, from.get(stream) ?? revision))
  const asked = [...from].map(([stream, fromRevision]) => ({ stream, fromRevision }))
  const found = new Map<string, StoredEvent>()
  for (let at = 0; at < asked.length; at += STREAMS_AT_ONCE) {
    const some = asked.slice(at, at + STREAMS_AT_ONCE)
    const streams = await patiently(patience, () => log.readStreams(some))
    for (const events of streams.values())
      for (const event of events) found.set(`${event.stream} ${event.revision}`, event)
  }
  return found
}

const FIELDS = ['id', 'type', 'version', 'data', 'metadata'] as const

function unlike(one: StoredEvent, other: StoredEvent): string | null {
  const field = FIELDS.find(name => one[name] !== other[name])
  return field === undefined ? null : `has another ${field} in the other log`
}
