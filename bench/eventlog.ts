/**
 * The Postgres log on the embedded server with durable settings: appends in batches and one by one, following,
 * reading. Beside it, in the same run and on the same server, its limit: the same rows by a plain insert into an
 * equal table, without lock, heads or checks. Then the other adapters: memory, and EventStoreDB beside its client.
 */
import { randomBytes, randomUUID } from 'node:crypto'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import type { Metadata, TaskEvent } from '../src/domain/events.ts'
import { DEFAULT_TIMEOUTS } from '../src/domain/limits.ts'
import { DEFAULT_RETRY_POLICY } from '../src/domain/retry-policy.ts'
import { decodeEvent, encodeEvent, streamOf } from '../src/eventlog/codec.ts'
import type { Append, EventLog, StoredEvent } from '../src/eventlog/event-log.ts'
import { createMemoryEventLog } from '../src/eventlog/memory/memory-event-log.ts'
import { openPostgresEventLog } from '../src/eventlog/postgres/postgres-event-log.ts'
import { startEmbeddedPostgres } from '../src/runtime/embedded-postgres.ts'
import { migrate } from '../src/runtime/migrate.ts'
import { assertDurable } from '../src/runtime/postgres-settings.ts'
import { eventStoreDBFigures } from './eventlog-eventstoredb.ts'
import { type BenchResult, machine, median, quantile, round, treeCpuSeconds } from './support.ts'

const ROUNDS = 3
const EVENTS = { batch500: 40_000, batch50: 15_000, single: 3_000 }

export async function bench(): Promise<BenchResult> {
  const dataDir = await mkdtemp(join(tmpdir(), 'rollcall-bench-'))
  // As root the server runs as another user, who has to pass.
  await chmod(dataDir, 0o755)
  const server = await startEmbeddedPostgres({ dataDir, durable: true })
  try {
    await migrate(server.url)
    const client = new pg.Client(server.url)
    await client.connect()
    await assertDurable(client)
    await client.query('CREATE TABLE plain (LIKE rollcall_log.events INCLUDING ALL)')
    const log = await openPostgresEventLog({ connectionString: server.url })
    const figures = await measure(log, client, server.pid)
    await log.close()
    await client.end()
    return {
      bench: 'eventlog',
      machine: machine(),
      figures: { ...figures, ...(await memoryFigures()), ...(await eventStoreDBFigures(anAppend)) },
    }
  } finally {
    await server.stop()
    await rm(dataDir, { recursive: true, force: true })
  }
}

type Samples = Record<string, number[]>

async function measure(log: EventLog, client: pg.Client, serverPid: number): Promise<Record<string, number>> {
  const samples: Samples = {}
  const sample = (name: string, value: number) => {
    samples[name] ??= []
    samples[name].push(value)
  }
  // The first pass warms the compilers and the server's cache; it is not counted.
  for (let round = -1; round < ROUNDS; round++) {
    const keep = round >= 0 ? sample : () => {}
    await appends(log, serverPid, keep)
    await plainInserts(client, serverPid, keep)
    await reads(log, serverPid, keep)
  }
  const figures: Record<string, number> = { event_bytes: bytesOf(anAppend()) }
  for (const [name, values] of Object.entries(samples)) {
    const value = median(values)
    figures[name] = name.endsWith('_per_second') ? Math.round(value) : round(value, 2)
  }
  figures.append_batch500_share_of_plain = round(
    figures.append_batch500_per_second! / figures.plain_insert500_per_second!,
    2,
  )
  return figures
}

type Keep = (name: string, value: number) => void

async function memoryFigures(): Promise<Record<string, number>> {
  const log = createMemoryEventLog()
  const latencies: number[] = []
  const batches = inBatches(EVENTS.batch500, 500)
  const startedAt = performance.now()
  for (const batch of batches) await log.appendMany(batch)
  const perSecond = EVENTS.batch500 / ((performance.now() - startedAt) / 1_000)
  for (const batch of inBatches(EVENTS.single, 1)) {
    const sentAt = performance.now()
    await log.appendMany(batch)
    latencies.push(performance.now() - sentAt)
  }
  return {
    memory_append_batch500_per_second: Math.round(perSecond),
    memory_append_single_p99_ms: round(quantile(latencies, 0.99), 3),
  }
}

async function appends(log: EventLog, serverPid: number, keep: Keep): Promise<void> {
  const append = (batch: Append[]) => log.appendMany(batch)
  const calls: number[] = []
  const call = async (batch: Append[]) => {
    const startedAt = performance.now()
    await append(batch)
    calls.push(performance.now() - startedAt)
  }
  await timed('append_batch500', inBatches(EVENTS.batch500, 500), call, 1, serverPid, keep)
  keep('append_batch500_p99_ms', quantile(calls, 0.99))
  await timed('append_batch500_two_callers', inBatches(EVENTS.batch500, 500), append, 2, serverPid, keep)
  await timed('append_batch50', inBatches(EVENTS.batch50, 50), append, 1, serverPid, keep)
  const latencies: number[] = []
  const single = async (batch: Append[]) => {
    const startedAt = performance.now()
    await log.appendMany(batch)
    latencies.push(performance.now() - startedAt)
  }
  await timed('append_single', inBatches(EVENTS.single, 1), single, 1, serverPid, keep)
  keep('append_single_p50_ms', quantile(latencies, 0.5))
  keep('append_single_p99_ms', quantile(latencies, 0.99))
}

/** The way of the log's own insert, so that what is compared is only what stands around it. */
const PLAIN_INSERT = `
  INSERT INTO plain (position, stream, revision, id, type, version, data, metadata)
  SELECT $1::bigint + number, stream, 0, id, 'TaskSubmitted', 1, data, metadata
  FROM unnest($2::text[], $3::uuid[], string_to_array($4, E'\\n'), string_to_array($5, E'\\n'))
    WITH ORDINALITY row(stream, id, data, metadata, number)`
let plainPosition = 0

async function plainInserts(client: pg.Client, serverPid: number, keep: Keep): Promise<void> {
  const insert = async (batch: Append[]) => {
    const events = batch.map(({ events: [event] }) => event!)
    const values = [
      plainPosition,
      `{${batch.map(({ stream }) => stream).join(',')}}`,
      `{${events.map(({ id }) => id).join(',')}}`,
      events.map(({ data }) => data).join('\n'),
      events.map(({ metadata }) => metadata).join('\n'),
    ]
    plainPosition += batch.length
    await client.query({ name: 'plain', text: PLAIN_INSERT, values })
  }
  await timed('plain_insert500', inBatches(EVENTS.batch500, 500), insert, 1, serverPid, keep)
}

async function reads(log: EventLog, serverPid: number, keep: Keep): Promise<void> {
  const parse = ({ data, metadata }: StoredEvent) => [JSON.parse(data), JSON.parse(metadata)]
  await follow(log, 'follow', () => {}, serverPid, keep)
  await follow(log, 'read', parse, serverPid, keep)
  await follow(log, 'decode', decodeEvent, serverPid, keep)
  const streams: string[] = []
  const collect = ({ stream }: StoredEvent) => streams.push(stream)
  await follow(log, 'collect', collect, serverPid, () => {})
  const batches: { stream: string; fromRevision: number }[][] = []
  for (let from = 0; from < 20_000; from += 500)
    batches.push(streams.slice(from, from + 500).map(stream => ({ stream, fromRevision: 0 })))
  await timed('load_streams', batches, batch => log.readStreams(batch), 1, serverPid, keep)
}

async function follow(
  log: EventLog,
  name: string,
  handle: (event: StoredEvent) => unknown,
  serverPid: number,
  keep: Keep,
): Promise<void> {
  const total = Number((await log.head())!.position)
  const done = new AbortController()
  let seen = 0
  const onBatch = async (batch: readonly StoredEvent[]) => {
    for (const event of batch) handle(event)
    seen += batch.length
    if (seen >= total) done.abort()
  }
  const stop = start(name, serverPid, keep)
  await log.follow(null, onBatch, done.signal)
  stop(seen)
}

/** Runs the batches with so many callers at a time, and keeps events per second and CPU per event. */
async function timed<T>(
  name: string,
  batches: T[][],
  run: (batch: T[]) => Promise<unknown>,
  callers: number,
  serverPid: number,
  keep: Keep,
): Promise<void> {
  const stop = start(name, serverPid, keep)
  const queue = batches.values()
  const caller = async () => {
    for (const batch of queue) await run(batch)
  }
  await Promise.all(Array.from({ length: callers }, caller))
  stop(batches.reduce((sum, batch) => sum + batch.length, 0))
}

function start(name: string, serverPid: number, keep: Keep): (events: number) => void {
  // What the last measurement left behind is not this one's.
  global.gc?.()
  const server = treeCpuSeconds(serverPid)
  const cpu = process.cpuUsage()
  const startedAt = performance.now()
  return events => {
    const seconds = (performance.now() - startedAt) / 1_000
    const { user, system } = process.cpuUsage(cpu)
    keep(`${name}_per_second`, events / seconds)
    keep(`${name}_node_us_per_event`, (user + system) / events)
    keep(`${name}_server_us_per_event`, ((treeCpuSeconds(serverPid) - server) * 1_000_000) / events)
  }
}

function inBatches(events: number, size: number): Append[][] {
  return Array.from({ length: events / size }, () => Array.from({ length: size }, anAppend))
}

const HASH = randomBytes(32).toString('hex')
const DATA: Extract<TaskEvent, { type: 'TaskSubmitted' }>['data'] = {
  type: 'image.generate',
  priority: 0,
  tenant: null,
  lifecycle: { name: 'standard', version: 1, hash: HASH },
  timeouts: DEFAULT_TIMEOUTS,
  retry: DEFAULT_RETRY_POLICY,
  runAt: 1_767_225_600_000,
  queueDeadlineAt: 1_767_312_000_000,
  totalDeadlineAt: 1_767_830_400_000,
  fingerprint: HASH,
  content: { payload: { prompt: 'a lighthouse', width: 1024 }, labels: {}, salt: 'salt' },
}

/** The submission of a task, as the engine appends it. */
function anAppend(): Append {
  const stream = streamOf(randomUUID())
  const metadata: Metadata = {
    at: 1_767_225_600_000,
    actor: { kind: 'client', id: 'bench' },
    source: 'http',
    commandId: randomUUID(),
    correlationId: null,
    causationId: null,
    trace: null,
    prevHash: null,
  }
  const event: TaskEvent = { type: 'TaskSubmitted', version: 1, data: DATA }
  const { encoded } = encodeEvent(stream, 0, randomUUID(), event, metadata)
  return { stream, expected: 'no_stream', events: [encoded] }
}

const bytesOf = ({ events: [event] }: Append): number => event!.data.length + event!.metadata.length
