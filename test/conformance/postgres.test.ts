import t from 'tap'
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { testDatabase } from '../support/postgres.ts'
import { conformance } from './event-log.ts'

await conformance(t, 'postgres', async t => {
  const { url } = await testDatabase(t)
  const log = await openPostgresEventLog({ connectionString: url })
  t.teardown(() => log.close())
  return log
})
