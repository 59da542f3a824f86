import type { AppParts } from '../parts.ts'
import type { SignalWatch } from '../signal-watch.ts'
import type { TaskMessages } from './messages.ts'
import type { Turns } from './turns.ts'

/** What the streams of a process share. */
export interface StreamParts {
  app: AppParts
  messages: TaskMessages
  signalWatch: SignalWatch
  /** Reading the past of the log for those that come back. */
  replays: Turns
}
