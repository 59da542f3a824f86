/** What every adapter of the event log must do, as the port states it. One suite, run against each. */
import type { Test } from 'tap'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { appending } from './event-log-appending.ts'
import { following } from './event-log-following.ts'
import { reading } from './event-log-reading.ts'

/** Gives a new, empty log that is closed and gone when the test ends. */
export type MakeLog = (t: Test) => Promise<EventLog>

export async function conformance(t: Test, name: string, makeLog: MakeLog): Promise<void> {
  await t.test(`the ${name} log appends`, t => appending(t, makeLog))
  await t.test(`the ${name} log is read`, t => reading(t, makeLog))
  await t.test(`the ${name} log is followed`, t => following(t, makeLog))
}
