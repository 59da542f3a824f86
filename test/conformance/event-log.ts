/** What every adapter of the event log must do, as the port states it. One suite, run against each. */
import type { Test } from 'tap'
import type { EventLog } from '../../src/eventlog/event-log.ts'
import { appending } from './event-log-appending.ts'
import { following } from './event-log-following.ts'
import { reading } from './event-log-reading.ts'
import { sealing } from './event-log-sealing.ts'

/** Gives a new, empty log that is closed and gone when the test ends. */
export type MakeLog = (t: Test) => Promise<EventLog>

/** Gives one more handle on a log that `MakeLog` gave, as another process has one. */
export type OpenAgain = (t: Test, log: EventLog) => Promise<EventLog>

/** @param makeSealable where sealing takes as long as an append may, one whose appends may not take long */
export async function conformance(
  t: Test,
  name: string,
  makeLog: MakeLog,
  openAgain: OpenAgain = async (_, log) => log,
  makeSealable: MakeLog = makeLog,
): Promise<void> {
  await t.test(`the ${name} log appends`, t => appending(t, makeLog))
  await t.test(`the ${name} log is read`, t => reading(t, makeLog))
  await t.test(`the ${name} log is followed`, t => following(t, makeLog))
  await t.test(`the ${name} log is sealed`, t => sealing(t, makeSealable, openAgain))
}
