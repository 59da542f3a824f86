/**
 * One of the processes that race: `process.ts <url> [<fault>]`, an engine with a log, a pool, a clock and a memory of its
 * own. It is told by its parent what to hold ready, says when it does, and lets go at the parent's word.
 *
 * With a fault it breaks the promise on purpose, to show that the examination would notice.
 */
import pg from 'pg'
import pino from 'pino'
import type { CommandEnvelope } from '../../../src/domain/commands.ts'
import type { Answer } from '../../../src/engine/answer.ts'
import { Engine } from '../../../src/engine/engine.ts'
import { Lifecycles } from '../../../src/engine/lifecycles.ts'
import { openPostgresEventLog } from '../../../src/eventlog/postgres/postgres-event-log.ts'
import { DatabaseClock } from '../../../src/runtime/database-clock.ts'

/**
 * - `no expectation`: appends behind whatever is there, as if it had been expected.
 * - `conflict is success`: takes an append that was turned away for one that was stored.
 */
export type Fault = 'none' | 'no expectation' | 'conflict is success'

export interface Hold {
  round: number
  taskId: string
  /** Fold the task before, so that it is decided on memory. */
  warm: boolean
  commands: readonly CommandEnvelope[]
}

export interface RaceAnswer {
  commandId: string
  said: Answer['kind']
  code: string | null
  /** Of the task the answer speaks of: after the event where one was stored, else the state that was decided on. */
  revision: number | null
  hash: string | null
  status: string | null
}

export type ToProcess = { hold: Hold } | { go: number }
/** Instants are milliseconds of the machine's clock, so that processes can be compared. */
export type FromProcess =
  | { opened: true }
  | { ready: number }
  | { answered: number; releasedAt: number; answers: RaceAnswer[]; conflicts: number }

const SILENT = pino({ level: 'silent' })
const [url, fault = 'none'] = process.argv.slice(2)
const say = (message: FromProcess): void => {
  process.send?.(message)
}

const pool = new pg.Pool({ connectionString: url!, max: 2 })
pool.on('error', () => {})
const log = await openPostgresEventLog({ connectionString: url!, readConnections: 2 })
const clock = await DatabaseClock.start(pool, SILENT)
const lifecycles = await Lifecycles.open(log)
let conflicts = 0
const append = log.appendMany.bind(log)
log.appendMany = async appends => {
  const results = await append(
    fault === 'no expectation' ? appends.map(one => ({ ...one, expected: 'any' as const })) : appends,
  )
  conflicts += results.filter(({ kind }) => kind === 'conflict').length
  if (fault !== 'conflict is success') return results
  return results.map((result, index) =>
    result.kind === 'conflict'
      ? { kind: 'appended', revision: Number(appends[index]!.expected) + 1, position: '0' }
      : result,
  )
}
const engine = new Engine({ log, clock, lifecycles, logger: SILENT })

const held = new Map<number, Hold>()

async function hold(what: Hold): Promise<void> {
  if (what.warm) await engine.read(what.taskId)
  held.set(what.round, what)
  say({ ready: what.round })
}

async function letGo(round: number): Promise<void> {
  const { commands } = held.get(round)!
  held.delete(round)
  const releasedAt = performance.timeOrigin + performance.now()
  const answers = await engine.executeMany(commands)
  say({
    answered: round,
    releasedAt,
    conflicts,
    answers: answers.map((answer, index) => ({
      commandId: commands[index]!.commandId,
      said: answer.kind,
      code: answer.kind === 'refused' ? answer.code : null,
      revision: answer.task?.revision ?? null,
      hash: answer.task?.hash ?? null,
      status: answer.task?.status ?? null,
    })),
  })
}

process.on('message', (message: ToProcess) => {
  if ('go' in message) void letGo(message.go)
  else void hold(message.hold)
})
process.once('disconnect', async () => {
  await engine.stop()
  clock.stop()
  await log.close()
  await pool.end()
})
say({ opened: true })
