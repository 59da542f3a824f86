/** A task in words: one line, or everything a person may want to know. */
import type { TaskView } from '../api/schemas/tasks.ts'
import { countText } from '../domain/wording.ts'
import {
  bar,
  clockTime,
  cut,
  ordinal,
  paintStatus,
  printable,
  relative,
  roughly,
  shortJson,
  spell,
} from './format.ts'
import type { Terminal } from './terminal.ts'

const LABEL_WIDTH = 11
/** Payload and result in full are for --json. */
const JSON_LENGTH = 400
const MESSAGE_LENGTH = 1_000

/** `0198… SUCCESS succeeded in attempt 1`. */
export const brief = (task: TaskView, { colors }: Terminal): string =>
  `${task.taskId}  ${paintStatus(task.status, colors)}  ${cut(printable(task.why), MESSAGE_LENGTH)}`

/** A line per fact; facts that do not exist yet have none. */
export function describeTask(task: TaskView, { colors }: Terminal): string {
  const facts: [label: string, text: string | null][] = [
    ['status', statusLine(task, colors)],
    ['why', cut(printable(task.why), MESSAGE_LENGTH)],
    ['ahead', aheadLine(task)],
    ['next', nextLine(task)],
    ['attempt', attemptLine(task)],
    ['worker', task.worker === null ? null : printable(task.worker)],
    ['error', errorLine(task)],
    ['result', task.result === null ? null : shortJson(task.result, JSON_LENGTH)],
    ['at', task.resultUrl === null ? null : colors.underline(printable(task.resultUrl))],
    ['payload', task.payload === null ? null : shortJson(task.payload, JSON_LENGTH)],
    ['labels', labelsLine(task.labels)],
    ['priority', task.priority === 0 ? null : String(task.priority)],
    ['correlation', task.correlationId === null ? null : printable(task.correlationId)],
    ['submitted', moment(task.createdAt)],
    ['started', task.startedAt === null ? null : moment(task.startedAt)],
    ['finished', finishedLine(task)],
    ['revision', `${task.revision}, hash ${task.hash.slice(0, 12)}`],
  ]
  const lines = facts.flatMap(([label, text]) =>
    text === null ? [] : [`${colors.dim(label.padEnd(LABEL_WIDTH))} ${text}`],
  )
  return [`${colors.bold(task.type)}  ${task.taskId}`, ...lines].join('\n')
}

function statusLine(task: TaskView, colors: Terminal['colors']): string {
  const parts = [paintStatus(task.status, colors)]
  if (task.status === 'PROCESSING' && task.step !== null) parts.push(task.step)
  if (task.status === 'PROCESSING' && task.progress !== null)
    parts.push(`${bar(task.progress, 20)} ${Math.round(task.progress * 100)} %`)
  return parts.join('  ')
}

/** `12th in the queue, about 2 min (up to 5 min)`. */
export function aheadLine({ position, estimatedRemainingSeconds: left }: TaskView): string | null {
  const parts: string[] = []
  if (position?.exact) parts.push(`${ordinal(position.rank)} in the queue`)
  else if (position) parts.push(`more than ${countText(position.rank - 1)} are ahead`)
  if (left) {
    const [usual, most] = [roughly(left.p50), roughly(left.p90)]
    parts.push(`about ${usual}${most === usual ? '' : ` (up to ${most})`}`)
  }
  return parts.length === 0 ? null : parts.join(', ')
}

function nextLine({ nextDeadline }: TaskView): string | null {
  if (nextDeadline === null) return null
  const { timer, at, effect } = nextDeadline
  const when = `${timer === 'not_before' ? 'its date' : timer} ${relative(at)}`
  return effect === null ? when : cut(`${when}: ${printable(effect)}`, MESSAGE_LENGTH)
}

function attemptLine({ attempt, maxAttempts, run, startedAt }: TaskView): string | null {
  if (startedAt === null && attempt === 1) return null
  return `${attempt} (at most ${maxAttempts} charged in a run)${run > 1 ? `, run ${run}` : ''}`
}

function errorLine({ errorCode, errorMessage, status }: TaskView): string | null {
  if (errorCode === null || status === 'CANCELLED') return null
  return cut(`${printable(errorCode)}: ${printable(errorMessage ?? '')}`, MESSAGE_LENGTH)
}

function labelsLine(labels: Record<string, string>): string | null {
  const entries = Object.entries(labels)
  return entries.length === 0 ? null : entries.map(([key, value]) => printable(`${key}=${value}`)).join(' ')
}

const moment = (iso: string): string => `${clockTime(iso)} (${relative(iso)})`

function finishedLine({ finishedAt, startedAt, createdAt }: TaskView): string | null {
  if (finishedAt === null) return null
  const total = Date.parse(finishedAt) - Date.parse(createdAt)
  const ran = startedAt === null ? null : Date.parse(finishedAt) - Date.parse(startedAt)
  const last = ran === null ? '' : `, last attempt ${spell(ran)}`
  return `${clockTime(finishedAt)} (in all ${spell(total)}${last})`
}
