/**
 * A process of its own that appends one event after the other to a Postgres log and writes each id once it is
 * acknowledged: `append-writer.ts <url> <count>`.
 */
import { openPostgresEventLog } from '../../src/eventlog/postgres/postgres-event-log.ts'
import { anAppend } from './events.ts'

const [url, count] = process.argv.slice(2)
const log = await openPostgresEventLog({ connectionString: url! })
for (let number = 0; number < Number(count); number++) {
  const append = anAppend()
  const [result] = await log.appendMany([append])
  if (result?.kind !== 'appended') throw new Error(`it was answered ${JSON.stringify(result)}`)
  process.stdout.write(`${append.events[0]!.id}\n`)
}
await log.close()
