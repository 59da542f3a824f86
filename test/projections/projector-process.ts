/**
 * A projector in a process of its own: `projector-process.ts <url> <leaseMs> [<what>]`. It writes `projecting`
 * when it has the lease and `moved` after each small batch.
 *
 * With `stop in a transaction` it stops itself (SIGSTOP) once, with the rows and the checkpoint written and not
 * committed: the worst moment for those who wait for its locks.
 */
import pg from 'pg'
import pino from 'pino'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { PostgresReadModel } from '../../src/projections/postgres/postgres-read-model.ts'
import { Projector } from '../../src/projections/projector.ts'

const BATCH = 20

const [url, leaseMs, what] = process.argv.slice(2)
const say = (word: string) => process.stdout.write(`${word}\n`)
const pool = new pg.Pool({ connectionString: url!, max: 3 })
pool.on('error', () => {})
const log = await openPostgresEventLog({ connectionString: url!, readConnections: 2 })
const follow = log.follow.bind(log)
log.follow = (from, onBatch, signal) =>
  follow(
    from,
    async batch => {
      if (batch.length === 0) await onBatch(batch)
      for (let at = 0; at < batch.length; at += BATCH) await onBatch(batch.slice(at, at + BATCH))
    },
    signal,
  )

if (what === 'stop in a transaction') {
  // One statement writes a batch, unless a row is unfit: then it takes a transaction of several.
  const query = pool.query.bind(pool) as (...asked: unknown[]) => Promise<unknown>
  pool.query = ((...asked: [{ name?: string }]) =>
    asked[0].name === 'project-and-advance'
      ? Promise.reject(new RangeError('as if a row were unfit'))
      : query(...asked)) as never
  let stops = 1
  pool.on('connect', client => {
    const query = client.query.bind(client) as (...asked: unknown[]) => Promise<unknown>
    const stopping = async (...asked: unknown[]) => {
      const answer = await query(...asked)
      if (String(asked[0]).includes('rollcall.advance_projector') && stops-- > 0) {
        say('stopping')
        process.kill(process.pid, 'SIGSTOP')
      }
      return answer
    }
    // The types of pg's overloads say nothing about a function that stands in for all of them.
    client.query = stopping as never
  })
}

const projector = new Projector({
  log,
  readModel: new PostgresReadModel(pool),
  logger: pino({ level: 'silent' }),
  leaseMs: Number(leaseMs),
  standbyMs: 50,
  onMoved: () => say('moved'),
})
projector.start()
let seen = ''
const watch = setInterval(() => {
  if (projector.mode !== seen) say(projector.mode)
  seen = projector.mode
}, 5)
process.on('SIGTERM', async () => {
  clearInterval(watch)
  await projector.stop()
  await log.close()
  await pool.end()
})
