import { randomUUID } from 'node:crypto'
import t from 'tap'
import { hashEvent, streamOf } from '../../../src/eventlog/codec.ts'
import { Chains } from '../../../src/eventlog/copy/chains.ts'
import type { StoredEvent } from '../../../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../../../src/eventlog/memory/memory-event-log.ts'
import { anEvent, wholeStream } from '../../support/events.ts'

const patience = { patienceMs: 1_000, signal: new AbortController().signal }
const hashOf = (event: StoredEvent): string => hashEvent(event.stream, event.revision, event)

/** A stream whose event at `brokenAt` names another hash than that of the event before it. */
async function chained(brokenAt: number | null) {
  const log = createMemoryEventLog()
  const stream = streamOf(randomUUID())
  let prevHash: string | null = null
  for (let revision = 0; revision < 4; revision++) {
    const named: string | null = revision === brokenAt ? 'f'.repeat(64) : prevHash
    const event = anEvent({ metadata: JSON.stringify({ prevHash: named }) })
    await log.appendMany([{ stream, expected: 'any', events: [event] }])
    prevHash = hashEvent(stream, revision, event)
  }
  return { log, stream, events: await wholeStream(log, stream) }
}

t.test('a whole chain is whole, in one batch or in many, from its start or from within', async t => {
  const { log, events } = await chained(null)
  for (const [size, from] of [
    [4, 0],
    [1, 0],
    [2, 0],
    [4, 2],
    [1, 3],
  ] as const) {
    const chains = new Chains(log, patience)
    for (let at: number = from; at < 4; at += size) {
      const batch = events.slice(at, at + size)
      await chains.add(batch, batch.map(hashOf))
    }
    t.match(chains, { links: 4 - from, broken: 0, named: [] }, `${size} at a time, from ${from}`)
  }
})

t.test('a broken link is named', async t => {
  for (const brokenAt of [0, 1, 3]) {
    const { log, stream, events } = await chained(brokenAt)
    const kept = new Chains(log, patience)
    await kept.add(events, events.map(hashOf))
    t.match(kept, { links: 4, broken: 1, named: [{ stream, revision: brokenAt }] })
    const read = new Chains(log, patience)
    const last = events.slice(brokenAt, brokenAt + 1)
    await read.add(last, last.map(hashOf))
    t.match(
      read,
      { links: 1, broken: 1, named: [{ stream, revision: brokenAt }] },
      'also where the one before is read',
    )
  }
})

t.test('streams of another kind have no chain', async t => {
  const { log, events } = await chained(2)
  const chains = new Chains(log, patience)
  const others = events.map(event => ({ ...event, stream: 'lifecycle-a' }))
  await chains.add(others, others.map(hashOf))
  t.match(chains, { links: 0, broken: 0 })
})
