/** Whether the log of a service that has just started answers: in EventStoreDB it may come later than the service. */
import type { EventLog } from '../eventlog/event-log.ts'
import { within } from '../eventlog/within.ts'
import { describeLog } from '../runtime/open-log.ts'
import type { Terminal } from './terminal.ts'

/** Nobody waits long for a log that is not there. */
const ASK_MS = 1_500

export interface LogReached {
  /** Its address, without a password. */
  log: string
  logReached: boolean
}

/** Asks the log for a moment; where it does not answer, says what that means. */
export async function askLog(log: EventLog, address: string, terminal: Terminal): Promise<LogReached> {
  const described = describeLog(address)
  try {
    await within(ASK_MS, log.head(), 'at the start')
    return { log: described, logReached: true }
  } catch (error) {
    terminal.aside(
      `${terminal.errorColors.yellow('The event log')} at ${described} does not answer yet: ${(error as Error).message}\n` +
        'Until it does, /readyz is red, and tasks are answered 503 log_unavailable.',
    )
    return { log: described, logReached: false }
  }
}
