/** What an event changed, in a few words. */
import type { HistoryEvent } from '../api/schemas/tasks.ts'
import type { EventData, TaskError, TaskEvent } from '../domain/events.ts'
import { printable, shortJson, spell } from './format.ts'

const JSON_LENGTH = 200

/** One line. An event of a type this version does not know is shown as it is. */
export function changeOf(event: HistoryEvent): string {
  // The service has checked it against the schema of its type; a newer service may send types unknown here.
  const known = { type: event.type, data: event.data } as TaskEvent
  return printable(words(known, Date.parse(event.at)))
}

function words(event: TaskEvent, at: number): string {
  switch (event.type) {
    case 'TaskSubmitted': {
      const { type, runAt, priority } = event.data
      const delay = runAt > at ? `, to start after ${spell(runAt - at)}` : ''
      return `${type}${priority === 0 ? '' : `, priority ${priority}`}${delay}`
    }
    case 'TaskStarted':
      return `attempt ${event.data.attempt}, first lease ${spell(event.data.leaseDeadlineAt - at)}`
    case 'TaskStepEntered':
      return event.data.step
    case 'TaskSucceeded': {
      const { result, resultUrl } = event.data.content
      return resultUrl ?? shortJson(result, JSON_LENGTH)
    }
    case 'TaskAttemptFailed':
      return `${errorText(event.data.content.error)}; next attempt in ${spell(event.data.retryAt - at)}`
    case 'TaskFailed':
      return `${errorText(event.data.content.error)} (${FAILED_BECAUSE[event.data.cause]})`
    case 'TaskAttemptTimedOut':
      return `${timeoutText(event.data)}${event.data.charged ? '' : ', not charged'}; next attempt in ${spell(event.data.retryAt - at)}`
    case 'TaskTimedOut':
      return timeoutText(event.data)
    case 'TaskReleased':
      return event.data.content.reason ?? 'handed back by its worker'
    case 'TaskRequeued': {
      const { run, cause, content } = event.data
      return `run ${run}, ${cause === 'asked' ? 'asked for' : 'backoff over'}${reasonText(content.reason)}`
    }
    case 'TaskCancelled':
      return event.data.content.reason ?? 'no reason given'
    case 'TaskNoted':
      return event.data.content.note
    case 'LateResultRecorded':
      return `late: attempt ${event.data.attempt} ${lateText(event.data)}; kept as evidence, changes nothing`
    default:
      return shortJson((event as { data: unknown }).data, JSON_LENGTH)
  }
}

const FAILED_BECAUSE = {
  not_retryable: 'not retryable',
  no_attempts_left: 'no attempts left',
  lifecycle: 'by its lifecycle',
} as const

/** What the worker would have reported in time. */
function lateText({ outcome, content }: EventData<'LateResultRecorded'>): string {
  if (outcome === 'failed') return `failed${content.error ? ` with ${errorText(content.error)}` : ''}`
  return `succeeded with ${content.resultUrl ?? shortJson(content.result ?? null, JSON_LENGTH)}`
}

const errorText = ({ code, message }: TaskError): string => `${code}: ${message}`

function timeoutText({ timer, limitMs, from, lastHeartbeatAt }: EventData<'TaskTimedOut'>): string {
  const unheard = timer === 'lease' && lastHeartbeatAt === null ? ' without a heartbeat' : ''
  return `${timer} limit of ${spell(limitMs)} reached in ${from}${unheard}`
}

const reasonText = (reason: string | null): string => (reason === null ? '' : `: ${reason}`)
