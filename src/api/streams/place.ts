/** Where a filter's stream stands in the log, as its clients keep it. */
import { z } from 'zod'
import type { Checkpoint } from '../../eventlog/event-log.ts'

/** The place before the first event of a log. */
const START = '0'

export const placeId = (place: Checkpoint | null): string =>
  place === null ? START : `${place.position}.${place.eventId}.${place.logId}`

const placeSchema = z.tuple([
  z.string().regex(/^[0-9/]{1,64}$/),
  z.uuid(),
  z.string().regex(/^[\x21-\x2d\x2f-\x7e]{1,64}$/),
])

/** Undefined for what is none; null is the start of the log. */
export function placeOf(id: string): Checkpoint | null | undefined {
  if (id === START) return null
  const parsed = placeSchema.safeParse(id.split('.'))
  if (!parsed.success) return undefined
  const [position, eventId, logId] = parsed.data
  return { logId, position, eventId }
}
