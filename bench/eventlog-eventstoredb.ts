/**
 * The EventStoreDB adapter beside a bare loop of the same client library against the same server: the double, in a
 * process of its own. The two take turns; a share is the median of the pairs'. The double holds its log in memory,
 * so the rates say what adapter and client cost, not what an EventStoreDB does.
 */
import eventstoredb from '@eventstore/db-client'
import type { Append, EventLog } from '../src/eventlog/event-log.ts'
import { openEventStoreDBEventLog } from '../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../src/eventlog/eventstoredb/settings.ts'
import { spawnEventStoreDBDouble } from '../test/support/eventstoredb-double/spawn.ts'
import { median, quantile, round } from './support.ts'

const PAIRS = 5
const EVENTS = { batch500: 15_000, single: 1_500, follow: 15_000 }

type Client = InstanceType<typeof eventstoredb.EventStoreDBClient>
type Kept = Record<string, number[]>

/** @param anAppend one task's submission, as the engine appends it */
export async function eventStoreDBFigures(anAppend: () => Append): Promise<Record<string, number>> {
  const double = await spawnEventStoreDBDouble(null)
  const log = openEventStoreDBEventLog({ settings: eventStoreDBSettings(double.address) })
  const client = eventstoredb.EventStoreDBClient.connectionString(double.address)
  try {
    const kept: Kept = {}
    // The first pair warms the compilers; it is not counted.
    for (let pair = -1; pair < PAIRS; pair++) {
      const keep = pair < 0 ? {} : kept
      const sides = [() => adapter(log, anAppend, keep), () => bare(client, anAppend, keep)]
      for (const side of pair % 2 === 0 ? sides : sides.reverse()) await side()
    }
    return figuresOf(kept)
  } finally {
    await log.close()
    await client.dispose()
    await double.stop()
  }
}

async function adapter(log: EventLog, anAppend: () => Append, kept: Kept): Promise<void> {
  // The client serializes what it is given; so that both do the same work, this does too.
  const written = (appends: readonly Append[]) =>
    appends.map(append => ({
      ...append,
      events: append.events.map(event => ({ ...event, data: JSON.stringify(JSON.parse(event.data)) })),
    }))
  await appends('eventstoredb', anAppend, batch => log.appendMany(written(batch)), kept)
  const from = await log.head()
  await log.appendMany(Array.from({ length: 500 }, anAppend))
  for (let sent = 500; sent < EVENTS.follow; sent += 500)
    await log.appendMany(Array.from({ length: 500 }, anAppend))
  const done = new AbortController()
  let seen = 0
  const startedAt = performance.now()
  await log.follow(
    from,
    async batch => {
      for (const event of batch) JSON.parse(event.data)
      seen += batch.length
      if (seen >= EVENTS.follow) done.abort()
    },
    done.signal,
  )
  keepRate(kept, 'eventstoredb_follow_per_second', seen, startedAt)
}

async function bare(client: Client, anAppend: () => Append, kept: Kept): Promise<void> {
  const append = ({ stream, events: [event] }: Append) =>
    client.appendToStream(
      `bare.${stream}`,
      eventstoredb.jsonEvent({
        id: event!.id,
        type: event!.type,
        data: JSON.parse(event!.data),
        metadata: JSON.parse(event!.metadata),
      }),
      { expectedRevision: eventstoredb.NO_STREAM },
    )
  await appends('bare', anAppend, batch => Promise.all(batch.map(append)), kept)
  const last = await append(anAppend())
  for (let sent = 0; sent < EVENTS.follow; sent += 500)
    await Promise.all(Array.from({ length: 500 }, () => append(anAppend())))
  const startedAt = performance.now()
  let seen = 0
  const subscription = client.subscribeToAll({
    fromPosition: last.position!,
    filter: eventstoredb.streamNameFilter({ prefixes: ['bare.'] }),
  })
  for await (const _event of subscription) if (++seen === EVENTS.follow) break
  keepRate(kept, 'bare_follow_per_second', seen, startedAt)
}

async function appends(
  side: string,
  anAppend: () => Append,
  send: (batch: Append[]) => Promise<unknown>,
  kept: Kept,
): Promise<void> {
  for (const [name, size, events] of [
    ['batch500', 500, EVENTS.batch500],
    ['single', 1, EVENTS.single],
  ] as const) {
    const batches = Array.from({ length: events / size }, () => Array.from({ length: size }, anAppend))
    global.gc?.()
    const latencies: number[] = []
    const startedAt = performance.now()
    for (const batch of batches) {
      const sentAt = performance.now()
      await send(batch)
      latencies.push(performance.now() - sentAt)
    }
    keepRate(kept, `${side}_append_${name}_per_second`, events, startedAt)
    keep(kept, `${side}_append_${name}_p50_ms`, quantile(latencies, 0.5))
    keep(kept, `${side}_append_${name}_p99_ms`, quantile(latencies, 0.99))
  }
}

function keep(kept: Kept, name: string, value: number): void {
  kept[name] ??= []
  kept[name].push(value)
}

const keepRate = (kept: Kept, name: string, events: number, startedAt: number): void =>
  keep(kept, name, events / ((performance.now() - startedAt) / 1_000))

function figuresOf(kept: Kept): Record<string, number> {
  const figures: Record<string, number> = {}
  for (const [name, values] of Object.entries(kept))
    figures[name] = name.endsWith('_per_second') ? Math.round(median(values)) : round(median(values), 2)
  for (const what of ['append_batch500', 'append_single', 'follow']) {
    const own = kept[`eventstoredb_${what}_per_second`]!
    const others = kept[`bare_${what}_per_second`]!
    const shares = own.map((value, pair) => value / others[pair]!)
    figures[`eventstoredb_${what}_share_of_bare`] = round(median(shares), 2)
  }
  return figures
}
