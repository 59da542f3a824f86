/** On the double; and on a real server where EVENTSTOREDB_URL says one, each log in a namespace of its own. */
import { randomUUID } from 'node:crypto'
import t, { type Test } from 'tap'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { openEventStoreDBEventLog } from '../../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../../src/eventlog/eventstoredb/settings.ts'
import { startEventStoreDBDouble } from '../support/eventstoredb-double/double.ts'
import { conformance } from './event-log.ts'

const namespaces = new WeakMap<EventLog, string>()

async function conformanceAt(name: string, address: string): Promise<void> {
  const open = async (t: Test, namespace: string, appendTimeoutMs: number) => {
    const settings = { ...eventStoreDBSettings(address), namespace }
    const log = openEventStoreDBEventLog({ settings, sealFreshMs: 200, appendTimeoutMs })
    namespaces.set(log, namespace)
    t.teardown(() => log.close())
    // Its id is known from the first answer on.
    await log.head()
    return log
  }
  const makeLog = (appendTimeoutMs: number) => (t: Test) =>
    open(t, `test_${randomUUID().slice(0, 8)}`, appendTimeoutMs)
  const openAgain = (t: Test, log: EventLog) => open(t, namespaces.get(log)!, 1_000)
  await conformance(t, name, makeLog(20_000), openAgain, makeLog(1_000))
}

await conformanceAt('eventstoredb (double)', (await startEventStoreDBDouble(t)).address)

const address = process.env.EVENTSTOREDB_URL
if (address) await conformanceAt('eventstoredb (server)', address)
else {
  const skip =
    'NOT RUN: set EVENTSTOREDB_URL=esdb://host:2113?tls=false to run this suite against a real EventStoreDB'
  t.test('the eventstoredb (server) log', { skip }, async () => {})
}
