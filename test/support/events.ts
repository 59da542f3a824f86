/** Events for tests of the log, which knows nothing of tasks. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Append, EncodedEvent, EventLog, Expected, StoredEvent } from '../../src/eventlog/event-log.ts'

export const anEvent = (fields: Partial<EncodedEvent> = {}): EncodedEvent => ({
  id: randomUUID(),
  type: 'SomethingHappened',
  version: 1,
  data: '{"some":"data"}',
  metadata: '{"at":1}',
  ...fields,
})

export const someEvents = (count: number, fields: Partial<EncodedEvent> = {}): EncodedEvent[] =>
  Array.from({ length: count }, () => anEvent(fields))

export const aStream = (): string => `test-${randomUUID()}`

export const anAppend = (fields: Partial<Append> = {}): Append => ({
  stream: aStream(),
  expected: 'no_stream' as Expected,
  events: [anEvent()],
  ...fields,
})

/** The whole stream, page by page. */
export async function wholeStream(log: EventLog, stream: string, limit = 1_000): Promise<StoredEvent[]> {
  const events: StoredEvent[] = []
  for (let from: number | null = 0; from !== null; ) {
    const slice = await log.readStream(stream, from, limit)
    events.push(...slice.events)
    from = slice.next
  }
  return events
}

/** The fields that were given to the log. */
export const given = ({ id, type, version, data, metadata }: EncodedEvent): EncodedEvent => ({
  id,
  type,
  version,
  data,
  metadata,
})

/** Appends and repeats the same bytes until it is answered, as the engine does. @returns the first event's id */
export async function appendUntilAnswered(log: EventLog, append: Append = anAppend()): Promise<string> {
  for (;;) {
    try {
      const [result] = await log.appendMany([append])
      if (result?.kind !== 'appended') throw new Error(`it was answered ${JSON.stringify(result)}`)
      return append.events[0]!.id
    } catch (error) {
      if ((error as { code?: string }).code !== 'log_unavailable') throw error
      await sleep(20)
    }
  }
}
