/**
 * The service as a process of its own, for measuring: embedded Postgres with durable settings, all roles. It
 * speaks with the bench over IPC: `usage` answers heap after a collection and CPU used so far.
 */

import { LogFile } from '../src/cli/log-file.ts'
import { fileConfigSchema, serviceConfig } from '../src/runtime/config.ts'
import { startEmbeddedPostgres } from '../src/runtime/embedded-postgres.ts'
import { createLogger } from '../src/runtime/logging.ts'
import { migrate } from '../src/runtime/migrate.ts'
import { startService } from '../src/runtime/service.ts'

/** What a bench may set besides. */
export interface ServiceSettings {
  kafkaBrokers?: readonly string[]
  /** As in the configuration file. */
  types?: Record<string, unknown>
  /** Of a service that is there already, whose database is shared; else it has one of its own. */
  databaseUrl?: string
  roles?: readonly string[]
}

const [dataDir, given] = process.argv.slice(2)
if (!dataDir || !process.send) throw new Error('this program is started by the bench')

const { databaseUrl, kafkaBrokers = [], types = {}, roles }: ServiceSettings = JSON.parse(given ?? '{}')
const postgres = databaseUrl === undefined ? await startEmbeddedPostgres({ dataDir }) : null
const url = postgres?.url ?? databaseUrl
if (postgres) await migrate(postgres.url)
const logLevel = 'info'
// As `rollcall dev` does.
const logger = createLogger(logLevel, new LogFile(dataDir))
const service = await startService({
  ...serviceConfig({ databaseUrl: url, port: 0, logLevel, kafkaBrokers, ...(roles && { roles }) }),
  file: fileConfigSchema.parse({ types }),
  logger,
})
let stopping: Promise<void> | null = null
// Also where the bench is gone without a word.
process.once('disconnect', () => void stop())
process.on('message', (message: { ask: 'usage' | 'stop' | 'lag' }) => void answer(message.ask))

async function answer(ask: 'usage' | 'stop' | 'lag'): Promise<void> {
  if (ask === 'usage') {
    globalThis.gc?.()
    const { user, system } = process.cpuUsage()
    process.send?.({ answer: ask, heapBytes: process.memoryUsage().heapUsed, cpuMicros: user + system })
  } else if (ask === 'lag') {
    const head = await service.log.head()
    const row = await service.pool.query<{ event_id: string }>('SELECT event_id FROM rollcall.projectors')
    process.send?.({ answer: ask, caughtUp: head === null || row.rows[0]?.event_id === head.eventId })
  } else {
    await stop()
    process.send?.({ answer: ask })
    process.disconnect()
  }
}

function stop(): Promise<void> {
  stopping ??= service.stop().then(() => postgres?.stop())
  return stopping
}

process.send({ answer: 'ready', url: service.url, databaseUrl: url, postgresPid: postgres?.pid ?? null })
