/**
 * The simulation stands on the log in memory, which no server can join: its time is virtual. So what its stories ask of
 * that log is asked of the other adapters, call by call, and every answer has to be the same.
 */
import t, { type Test } from 'tap'
import type { CommandEnvelope } from '../../src/domain/commands.ts'
import { EVENT_BYTES_MAX, type EventLog } from '../../src/eventlog/event-log.ts'
import { openEventStoreDBEventLog } from '../../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../../src/eventlog/eventstoredb/settings.ts'
import { createMemoryEventLog } from '../../src/eventlog/memory/memory-event-log.ts'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import { testDatabase } from '../support/postgres.ts'
import { wrapLog } from '../support/service-parts.ts'
import { followFor, type Recording, recording, replay } from './log-calls.ts'
import { simulate } from './simulation.ts'

const SEEDS = 40
/** Each takes a database of its own. */
const POSTGRES_SEEDS = 8

/** What the log in memory answered in all stories, by kind. */
const answered = new Map<string, number>()

/** One story, and after it what a reader may ask who comes later. */
async function tell(t: Test, seed: number): Promise<Recording> {
  const memory = createMemoryEventLog()
  const stored = new Set<string>()
  const count = (kind: string) => answered.set(kind, (answered.get(kind) ?? 0) + 1)
  const recorded = recording(
    wrapLog(memory, {
      appendMany: async appends => {
        const results = await memory.appendMany(appends)
        for (const [index, result] of results.entries()) {
          const { id } = appends[index]!.events[0]!
          count(result.kind === 'appended' && stored.has(id) ? 'repeated' : result.kind)
          if (result.kind === 'appended') stored.add(id)
        }
        if (appends.length > 1) count('many at once')
        return results
      },
    }),
  )
  const { log } = recorded
  const report = await simulate({ seed, log, broken: { envelope: tooLargeOnce } })
  for (const violation of report.violations) t.fail(`seed ${seed}: ${violation}`)

  const all = await followFor(memory, null, await memory.countAfter(null, 10_000))
  const places = all.map(({ position, id: eventId }) => ({ logId: memory.id, position, eventId }))
  for (const place of [null, ...places]) for (const limit of [1, 10_000]) await log.countAfter(place, limit)
  for (const place of [null, places[places.length >> 1]!]) await followFor(log, place, 1)
  const streams = [...new Set(all.map(({ stream }) => stream)), 'task-nobody']
  await log.readStreams(streams.map((stream, index) => ({ stream, fromRevision: index % 3 })))
  for (const stream of streams)
    for (const [from, limit] of [
      [0, 1_000],
      [0, 2],
      [1, 1],
      [1_000, 5],
    ] as const)
      await log.readStream(stream, from, limit)
  await memory.close()
  return recorded
}

/** A result that no log takes, by the first attempt at the first task. */
function tooLargeOnce(asked: CommandEnvelope): CommandEnvelope {
  const { command, taskId } = asked
  if (command.trigger !== 'SUCCEED' || command.attempt !== 1 || !taskId.endsWith('1')) return asked
  return { ...asked, command: { ...command, result: 'x'.repeat(EVENT_BYTES_MAX) } }
}

// All are told first: while one is, time is virtual, for connections too.
const stories: Recording[] = []
t.test(`${SEEDS} stories are told on the log in memory`, async t => {
  for (let seed = 1; seed <= SEEDS; seed++) stories.push(await tell(t, seed))
  for (const kind of ['appended', 'repeated', 'conflict', 'rejected', 'many at once'])
    t.ok((answered.get(kind) ?? 0) > 0, `${kind}: ${answered.get(kind)}`)
})

async function answerAlike(
  t: Test,
  open: () => EventLog | Promise<EventLog>,
  which: Recording[],
): Promise<void> {
  let calls = 0
  for (const [index, story] of which.entries()) {
    const log = await open()
    const wrong = await replay(story, log)
    await log.close()
    calls += story.calls.length
    if (!wrong) continue
    t.strictSame(wrong.answer, wrong.expected, `seed ${index + 1}: ${wrong.what}`)
    return
  }
  t.pass(`${calls} calls were answered alike`)
}

t.test('the log in EventStoreDB gives the answers of the log in memory', async t => {
  const double = await startEventStoreDBDouble(t)
  let opened = 0
  const open = () =>
    openEventStoreDBEventLog({
      settings: { ...eventStoreDBSettings(double.address), namespace: `story_${++opened}` },
    })
  await answerAlike(t, open, stories)
})

t.test('the log in Postgres gives the answers of the log in memory', async t => {
  const open = async () => openPostgresEventLog({ connectionString: (await testDatabase(t)).url })
  await answerAlike(t, open, stories.slice(0, POSTGRES_SEEDS))
})
