/**
 * An installation that runs is moved from Postgres to EventStoreDB (the double) and back, with clients that submit all the
 * time; at the end nothing that was accepted is missing.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { auditLog } from '../../src/engine/audit.ts'
import type { EventLog, StoredEvent } from '../../src/eventlog/event-log.ts'
import { openEventStoreDBEventLog } from '../../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../../src/eventlog/eventstoredb/settings.ts'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { type Copied, copyLog } from '../../src/projections/copy-log.ts'
import { examinePage } from '../../src/projections/examine.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import {
  ask,
  openParts,
  type Parts,
  startParts,
  submitTasks,
  submitting,
  until,
  wrapLog,
} from '../support/service-parts.ts'

/** Sealing EventStoreDB takes as long as both together. */
const SEAL = { sealFreshMs: 500, appendTimeoutMs: 2_000 }

const PAUSE_MS = 10

/** @param events as many are in the log before the first move, about */
export async function thereAndBack(t: Test, events: number): Promise<void> {
  const parts = await startParts(t)
  parts.projector.start()
  for (let stored = 0; stored < events; stored += 1_000) await submitTasks(parts.engine, 1_000)
  const double = await startEventStoreDBDouble(t)
  const settings = eventStoreDBSettings(double.address)
  const [elsewhere, pastSeal] = [false, true].map(past => {
    const log = openEventStoreDBEventLog({ settings, pastSeal: past, ...SEAL })
    t.teardown(() => log.close())
    return log
  }) as [EventLog, EventLog]

  const there = await moveUnderLoad(t, parts, parts.log, pastSeal, 'there')
  await until('the old projector halts', () => parts.projector.mode === 'halted')
  const next = await openParts(t, parts.url, {
    log: own => {
      void own.close()
      return wrapLog(elsewhere, { close: async () => {} })
    },
  })
  next.projector.start()
  const old = await openPostgresEventLog({ connectionString: parts.url, pastSeal: true })
  t.teardown(() => old.close())
  const back = await moveUnderLoad(t, next, elsewhere, old, 'back')
  t.ok(back.copied.events < there.copied.events / 2, 'the way back copies only what came since')

  const last = await openParts(t, parts.url)
  last.projector.start()
  await submitTasks(last.engine, 10)
  await last.projected()
  const { tasks, broken, doubled } = await auditLog(last.log, null)
  t.strictSame([broken, doubled], [[], []])
  for (const taskId of [...there.accepted, ...back.accepted])
    if (!tasks.has(taskId)) t.fail(`${taskId} is lost`)
  const { taskIds, findings } = await examinePage({ pool: last.pool, log: last.log }, null, 1_000_000)
  t.strictSame(findings, [], 'the rows are the fold')
  t.equal(taskIds.length, tasks.size)
}

async function moveUnderLoad(t: Test, parts: Parts, from: EventLog, to: EventLog, way: string) {
  const accepted: string[] = []
  const write = async () => {
    for (;;) {
      const taskId = randomUUID() as string
      const answer = await parts.engine.execute(ask(taskId, submitting()))
      if (answer.kind !== 'accepted') return answer
      accepted.push(taskId)
      // Server, clients and copy share this process; without a pause they would only measure each other.
      await sleep(PAUSE_MS)
    }
  }
  const writers = Promise.all(Array.from({ length: 4 }, write))
  const since = performance.now()
  const copied: Copied = await copyLog({
    from,
    to,
    pool: parts.pool,
    patienceMs: 30_000,
  })
  const seconds = (performance.now() - since) / 1_000
  for (const answer of await writers)
    t.match(answer, { kind: 'refused', code: 'log_unavailable', message: to.id })
  t.comment(
    `${way}: ${copied.events} events in ${seconds.toFixed(1)} s, sealed for ${copied.sealedMs} ms, ` +
      `${accepted.length} accepted meanwhile`,
  )
  t.match(copied, { already: false, chains: { broken: 0 } })
  t.ok(accepted.length > 0)
  await sameStreams(t, from, to)
  return { accepted, copied }
}

/** Byte by byte, by other means than the copy's own. */
async function sameStreams(t: Test, one: EventLog, other: EventLog): Promise<void> {
  const key = (stream: string, revision: number) => `${stream} ${revision}`
  const [events, others] = [await everyEvent(one), await everyEvent(other)]
  t.equal(others.length, events.length)
  const twins = new Map(others.map(event => [key(event.stream, event.revision), event]))
  const different = events.filter(({ position: _, ...event }) => {
    const twin = twins.get(key(event.stream, event.revision))
    if (!twin) return true
    const { position: __, ...same } = twin
    return JSON.stringify(same, FIELDS) !== JSON.stringify(event, FIELDS)
  })
  t.equal(different.length, 0, 'every stream is the same, byte by byte')
}

const FIELDS = ['stream', 'revision', 'id', 'type', 'version', 'data', 'metadata']

async function everyEvent(log: EventLog): Promise<StoredEvent[]> {
  const head = await log.head()
  const events: StoredEvent[] = []
  const done = new AbortController()
  const onBatch = async (batch: readonly StoredEvent[]) => {
    events.push(...batch)
    if (batch.at(-1)?.id === head?.eventId) done.abort()
  }
  await log.follow(null, onBatch, done.signal)
  return events
}
