/** The adapter on a double, as the tests of this folder need it: impatient, and with what it says kept. */
import { randomUUID } from 'node:crypto'
import type { Test } from 'tap'
import type { EventLog, StoredEvent } from '../../../src/eventlog/event-log.ts'
import {
  type EventStoreDBEventLogOptions,
  openEventStoreDBEventLog,
} from '../../../src/eventlog/eventstoredb/eventstoredb-event-log.ts'
import { eventStoreDBSettings } from '../../../src/eventlog/eventstoredb/settings.ts'

export const UNAVAILABLE = { code: 'log_unavailable' }

/** A log at an address, in a namespace of its own unless it is given one. */
export function openAt(
  t: Test,
  address: string,
  {
    namespace = `test_${randomUUID().slice(0, 8)}`,
    ...options
  }: Partial<EventStoreDBEventLogOptions> & { namespace?: string } = {},
): EventLog {
  const log = openEventStoreDBEventLog({
    settings: { ...eventStoreDBSettings(address), namespace },
    appendTimeoutMs: 1_000,
    readTimeoutMs: 2_000,
    silenceMs: 300,
    ...options,
  })
  t.teardown(() => log.close())
  return log
}

/** Follows in the background and keeps what comes. */
export function following(log: EventLog, t: Test): { events: StoredEvent[]; stop: () => Promise<void> } {
  const events: StoredEvent[] = []
  const done = new AbortController()
  const followed = log.follow(
    null,
    async batch => {
      events.push(...batch)
    },
    done.signal,
  )
  const stop = () => {
    done.abort()
    return followed
  }
  t.teardown(stop)
  return { events, stop }
}

/** Fails the test for an error that nobody caught while it ran. */
export function noUncaughtErrors(t: Test): void {
  const fail = (error: unknown) => t.fail('an error that nobody caught', { found: String(error) })
  process.on('uncaughtException', fail)
  process.on('unhandledRejection', fail)
  t.teardown(() => {
    process.off('uncaughtException', fail)
    process.off('unhandledRejection', fail)
  })
}
