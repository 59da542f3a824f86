/**
 * Streams that earlier versions stored, read and folded by this one. A difference means that tasks of an
 * existing installation would change: give the event a new version instead.
 */
import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { EVENT_SCHEMAS } from '../../src/domain/events.ts'
import { fold } from '../../src/domain/evolve.ts'
import type { Task } from '../../src/domain/task.ts'
import { decodeEvent, encodeEvent } from '../../src/eventlog/codec.ts'
import type { StoredEvent } from '../../src/eventlog/event-log.ts'

const STREAMS = new URL('../fixtures/streams/', import.meta.url)

interface OldStream {
  taskId: string
  events: StoredEvent[]
  task: Task
}

const streams = readdirSync(STREAMS)
  .filter(file => file.endsWith('.json'))
  .map(file => ({
    name: file.slice(0, -'.json'.length),
    old: JSON.parse(readFileSync(new URL(file, STREAMS), 'utf8')) as OldStream,
  }))

/** Fields of the fold that are younger than the streams, as they fold to: the events hold nothing of them. */
const ADDED = { silentLeasesInRun: 0 }

/** What was written is remembered since later than the streams were stored. */
const withoutDigest = (remembered: string): string => remembered.split(' ')[0]!

for (const { name, old } of streams) {
  t.test(`${name} folds to the task that was stored`, async t => {
    const task = fold(old.taskId, null, old.events.map(decodeEvent))!
    t.strictSame(
      { ...task, recentCommands: task.recentCommands.map(withoutDigest) },
      { ...ADDED, ...old.task },
    )
  })

  t.test(`${name} is encoded to the same bytes and hashes`, async t => {
    for (const stored of old.events) {
      const read = decodeEvent(stored)
      const { encoded, recorded } = encodeEvent(
        stored.stream,
        stored.revision,
        stored.id,
        read.event,
        read.metadata,
      )
      t.equal(encoded.data, stored.data)
      t.equal(encoded.metadata, stored.metadata)
      t.equal(recorded.hash, read.hash)
    }
  })
}

t.test('the old streams hold every event in each of its versions', async t => {
  const held = new Set(
    streams.flatMap(({ old }) => old.events.map(({ type, version }) => `${type} ${version}`)),
  )
  for (const [type, versions] of Object.entries(EVENT_SCHEMAS))
    for (const version of Object.keys(versions)) t.ok(held.has(`${type} ${version}`), `${type} ${version}`)
})
