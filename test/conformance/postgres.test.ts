import t, { type Test } from 'tap'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { testDatabase } from '../support/postgres.ts'
import { conformance } from './event-log.ts'

const urls = new WeakMap<EventLog, string>()

async function open(t: Test, url: string): Promise<EventLog> {
  const log = await openPostgresEventLog({ connectionString: url })
  t.teardown(() => log.close())
  urls.set(log, url)
  return log
}

await conformance(
  t,
  'postgres',
  async t => open(t, (await testDatabase(t)).url),
  (t, log) => open(t, urls.get(log)!),
)
