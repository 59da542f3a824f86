/** The roll call over the streams: everything the service said and stored is held against its promises. */
import type { Pool } from 'pg'
import type { RecordedEvent } from '../../../src/domain/events.ts'
import { isOpen } from '../../../src/domain/task.ts'
import { type AuditedTask, auditLog } from '../../../src/engine/audit.ts'
import { decodeEvent, taskIdOf } from '../../../src/eventlog/codec.ts'
import type { EventLog, StoredEvent } from '../../../src/eventlog/event-log.ts'
import { differences } from '../../support/compare.ts'
import { type ClientAnswers, digestOf, noteOf, resultOf, type WorkerAnswer } from './answers.ts'
import { brokenRecords, wrongLetters, wrongStatuses } from './kafka-examine.ts'
import type { KafkaTraffic } from './kafka-traffic.ts'
import { type Payload, PROGRAMS } from './plan.ts'

/** What was found, one line each; all of them are to be empty. */
export interface Findings {
  /** Tasks that were accepted by an answer and are in no stream, or not as they were accepted. */
  lost: string[]
  /** Runs with two outcomes, keys with two tasks, attempts that began twice. */
  doubled: string[]
  /** Tasks that are not final although they had the time, or that no outcome of theirs explains. */
  stuck: string[]
  /** Rows that are not the fold. */
  drift: string[]
  /** Streams that do not fold or whose chain of hashes has a gap. */
  brokenChains: string[]
  /** Answers that the streams do not bear out. */
  answersBroken: string[]
  /** Work state of tasks that are finished; tasks set aside. */
  leftovers: string[]
  /** Bad records that are no dead letters, or other bytes; good ones that are. */
  letters: string[]
  /** What was published last of a task is not how it stands. */
  statuses: string[]
}

export interface Examined {
  findings: Findings
  tasks: number
  events: number
  outcomes: Record<string, number>
  attempts: number
  leasesLost: number
  lateResults: number
  /** How late the latest deadline fired, in seconds: faults may put it off, never for good. */
  latestTimerSeconds: number
  /** Which one that was, to look it up in the logs. */
  latestTimer: string
}

interface Stream extends AuditedTask {
  events: number
  history: readonly RecordedEvent[]
}
export type Streams = ReadonlyMap<string, Stream>

export async function examine(
  pool: Pool,
  log: EventLog,
  clients: ClientAnswers,
  workers: readonly WorkerAnswer[],
  traffic: KafkaTraffic | null,
): Promise<Examined> {
  const [audit, histories] = await Promise.all([auditLog(log, null), readHistories(log)])
  const streams: Streams = new Map(
    [...audit.tasks].map(([id, one]) => [id, { ...one, history: histories.get(id) ?? [] }]),
  )
  const findings: Findings = {
    lost: [...lostTasks(streams, clients)],
    doubled: [...doubledTasks(streams)],
    stuck: [...stuckTasks(streams)],
    drift: await differences(pool, log),
    brokenChains: [...brokenStreams(streams)],
    answersBroken: [
      ...clients.strange.map(message => `a client cannot make sense of this answer: ${message}`),
      ...brokenClientAnswers(streams, clients),
      ...brokenWorkerAnswers(streams, workers),
      ...brokenRecords(streams, workers),
    ],
    leftovers: await leftovers(pool, streams),
    letters: await wrongLetters(pool, traffic?.garbage ?? new Map()),
    statuses: traffic?.readsStatus ? [...wrongStatuses(streams, traffic.statuses)] : [],
  }
  return { findings, ...figures(streams) }
}

/** As it was stored; also of a stream that does not fold. */
function payloadOf(stream: Stream | undefined): unknown {
  const first = stream?.history[0]?.event
  return first?.type === 'TaskSubmitted' ? first.data.content.payload : undefined
}

async function readHistories(log: EventLog): Promise<Map<string, RecordedEvent[]>> {
  const histories = new Map<string, RecordedEvent[]>()
  for (const stored of await readEvents(log)) {
    const taskId = taskIdOf(stored.stream)
    if (taskId === null) continue
    const history = histories.get(taskId) ?? []
    histories.set(taskId, history)
    // One that cannot be read is the audit's to name.
    try {
      history.push(decodeEvent(stored))
    } catch {}
  }
  return histories
}

/** Every event, as it is stored. */
export async function readEvents(log: EventLog): Promise<StoredEvent[]> {
  const events: StoredEvent[] = []
  const head = await log.head()
  if (!head) return events
  const done = new AbortController()
  await log.follow(
    null,
    async batch => {
      events.push(...batch)
      if (batch.some(({ id }) => id === head.eventId)) done.abort()
    },
    done.signal,
  )
  return events
}

function* lostTasks(streams: Streams, { tasks }: ClientAnswers): Generator<string> {
  for (const { planned, taskId } of tasks) {
    if (taskId === null) continue
    const stored = payloadOf(streams.get(taskId))
    if (stored === undefined) yield `task ${taskId} (${planned.key}) was accepted and is not there`
    else if (digestOf(stored) !== digestOf(planned.payload))
      yield `task ${taskId} (${planned.key}) was accepted with another payload than is stored`
  }
}

function* doubledTasks(streams: Streams): Generator<string> {
  const byNumber = new Map<number, string>()
  for (const [taskId, { task, outcomesByRun, history }] of streams) {
    for (const [run, outcomes] of outcomesByRun)
      if (outcomes > 1) yield `run ${run} of task ${taskId} has ${outcomes} outcomes`
    const { number } = (task?.payload ?? {}) as Partial<Payload>
    if (number !== undefined) {
      const other = byNumber.get(number)
      if (other) yield `tasks ${other} and ${taskId} were submitted under one key`
      byNumber.set(number, taskId)
    }
    const attempts = history.flatMap(({ event }) =>
      event.type === 'TaskStarted' ? [event.data.attempt] : [],
    )
    if (new Set(attempts).size < attempts.length) yield `an attempt of task ${taskId} began twice`
  }
}

function* stuckTasks(streams: Streams): Generator<string> {
  for (const [taskId, { task, outcomesByRun }] of streams) {
    if (!task) continue
    const { program } = task.payload as unknown as Payload
    if (isOpen(task)) yield `task ${taskId} (${program}) is still ${task.status} in attempt ${task.attempt}`
    else if (
      task.status !== 'CANCELLED' &&
      !(PROGRAMS[program].ends as readonly string[]).includes(task.status)
    )
      yield `task ${taskId} (${program}) ended ${task.status}`
    else if (outcomesByRun.size !== task.run)
      yield `task ${taskId} has ${outcomesByRun.size} outcomes in ${task.run} runs`
  }
}

function* brokenStreams(streams: Streams): Generator<string> {
  for (const [taskId, { broken, history }] of streams) {
    if (broken !== null) yield `task ${taskId}: ${broken}`
    const gap = history.findIndex(
      ({ revision, metadata }, index) =>
        revision !== index || metadata.prevHash !== (history[index - 1]?.hash ?? null),
    )
    if (gap >= 0) yield `task ${taskId}: the chain has a gap at event ${gap}`
  }
}

function* brokenClientAnswers(streams: Streams, { tasks, seen, acts }: ClientAnswers): Generator<string> {
  for (const { taskId, status, revision, hash } of seen) {
    const stream = streams.get(taskId)
    if (stream?.history[revision]?.hash !== hash)
      yield `task ${taskId} was shown as ${status} at revision ${revision} with a hash that is not in its stream`
    else if (['SUCCESS', 'CANCELLED'].includes(status) && stream.task?.status !== status)
      yield `task ${taskId} was shown as ${status} and is ${stream.task?.status}`
  }
  for (const { planned, taskId } of tasks) {
    const { task, history } = (taskId !== null && streams.get(taskId)) || {}
    if (task?.status !== 'SUCCESS') continue
    const expected = JSON.stringify(resultOf(planned.payload))
    const stored = history?.find(({ event }) => event.type === 'TaskSucceeded')?.event
    if (stored?.type !== 'TaskSucceeded' || JSON.stringify(stored.data.content.result) !== expected)
      yield `the result of task ${taskId} is not the one its worker made`
  }
  for (const { taskId, act, said, sent, at } of acts) {
    const { task, history = [], outcomesByRun } = streams.get(taskId) ?? {}
    const by = history.filter(({ metadata }) => metadata.commandId === act.commandId)
    const fault = (is: string): string => `${act.what} of task ${taskId} was answered ${said}, and ${is}`
    if (said === null) yield `${act.what} of task ${taskId} was never answered`
    else if (by.length > 1) yield fault(`it stands in the stream ${by.length} times`)
    else if (said !== 'accepted') {
      // Of several copies one may be held up on its way, and find the task elsewhere than the one that was refused.
      const late = sent > 1 && by.every(({ metadata }) => metadata.at >= at)
      if (by.length > 0 && !late) yield fault('it is in the stream')
      if (said === 'task_finished' && !outcomesByRun?.size) yield fault('it has no outcome')
    } else if (act.what === 'cancel' && task?.status !== 'CANCELLED')
      yield fault(`the task is ${task?.status}`)
    else if (act.what === 'retry' && !history.some(({ event }) => event.type === 'TaskRequeued'))
      yield fault('the task was never requeued')
    else if (act.what === 'note') {
      const stored = by[0]?.event
      if (stored?.type !== 'TaskNoted' || stored.data.content.note !== noteOf(act))
        yield fault('the note is not in the stream')
    }
  }
}

/** Refusals after which nothing is known: the command may have been stored. */
const UNKNOWN = new Set(['conflict', 'overloaded', 'log_unavailable', 'shutting_down', 'internal_error'])

function* brokenWorkerAnswers(streams: Streams, answers: readonly WorkerAnswer[]): Generator<string> {
  const byCommand = new Map<string, RecordedEvent[]>()
  for (const [taskId, { history }] of streams)
    for (const recorded of history) {
      const key = `${taskId}/${recorded.metadata.commandId}`
      byCommand.set(key, [...(byCommand.get(key) ?? []), recorded])
    }
  for (const answer of answers) {
    const { taskId } = answer
    const stream = streams.get(taskId)
    if (answer.of === 'record') continue
    if (answer.of === 'claim' || answer.of === 'start' || answer.of === 'begun') {
      const { attempt, worker } = answer
      const started = stream?.history.some(
        ({ event }) =>
          event.type === 'TaskStarted' && event.data.attempt === attempt && event.data.worker === worker,
      )
      if (!started && !(answer.of === 'begun' && !answer.answered))
        yield `attempt ${attempt} of task ${taskId} was handed to ${worker} and never started`
      if (answer.of !== 'start' && digestOf(payloadOf(stream)) !== answer.digest)
        yield `task ${taskId} was handed to ${worker} with another payload`
    } else if (answer.of === 'heartbeat') {
      if (stream?.task?.status !== 'CANCELLED')
        yield `a worker was told that task ${taskId} was cancelled, and it is ${stream?.task?.status}`
    } else {
      const { trigger, attempt, commandId, said, revision } = answer
      const fault = (is: string): string =>
        `${trigger} of attempt ${attempt} of task ${taskId} was answered ${said}, and ${is}`
      const moved = (byCommand.get(`${taskId}/${commandId}`) ?? []).filter(
        ({ event }) => event.type !== 'LateResultRecorded',
      )
      if (moved.length > 1) yield fault(`it stands in the stream ${moved.length} times`)
      else if (said === 'accepted') {
        if (moved[0]?.revision !== revision) yield fault(`it is not event ${revision} of the stream`)
      } else if (said === 'repeated') {
        if (moved.length === 0 && !isBorneOut(stream, trigger, attempt))
          yield fault('nothing was stored before')
      } else if (!UNKNOWN.has(said) && moved.length > 0) yield fault('it is in the stream')
    }
  }
}

/** Whether the attempt has ended, or entered a step, in the way the report said, by another command. */
function isBorneOut(stream: Stream | undefined, trigger: string, attempt: number): boolean {
  const types = {
    STEP: ['TaskStepEntered'],
    SUCCEED: ['TaskSucceeded'],
    FAIL: ['TaskFailed', 'TaskAttemptFailed'],
    RELEASE: ['TaskReleased'],
  }[trigger]
  return (
    stream?.history.some(
      ({ event }) => types?.includes(event.type) && 'attempt' in event.data && event.data.attempt === attempt,
    ) ?? false
  )
}

async function leftovers(pool: Pool, streams: Streams): Promise<string[]> {
  const { rows } = await pool.query<{ kept: string; task_id: string }>(
    `SELECT 'ready' AS kept, task_id FROM rollcall.ready UNION ALL
     SELECT 'offers', task_id FROM rollcall.offers UNION ALL
     SELECT 'leases', task_id FROM rollcall.leases UNION ALL
     SELECT 'set_aside', task_id FROM rollcall.set_aside`,
  )
  return rows
    .filter(({ kept, task_id }) => {
      const task = streams.get(task_id)?.task
      return kept === 'set_aside' || !task || !isOpen(task)
    })
    .map(({ kept, task_id }) => `task ${task_id} still has a row in ${kept}`)
}

function figures(streams: Streams): Omit<Examined, 'findings'> {
  const outcomes: Record<string, number> = {}
  const count =
    (types: readonly string[]) =>
    (sum: number, { history }: Stream) =>
      sum + history.filter(({ event }) => types.includes(event.type)).length
  const all = [...streams.values()]
  for (const { task } of all)
    outcomes[task?.status ?? 'BROKEN'] = (outcomes[task?.status ?? 'BROKEN'] ?? 0) + 1
  let latestMs = 0
  let latestTimer = 'none'
  let leasesLost = 0
  for (const [taskId, { history }] of streams)
    for (const { event, metadata } of history) {
      if (event.type !== 'TaskTimedOut' && event.type !== 'TaskAttemptTimedOut') continue
      const { timer, since, limitMs, attempt } = event.data
      if (timer === 'lease') leasesLost++
      const lateMs = metadata.at - (since + limitMs)
      if (lateMs <= latestMs) continue
      latestMs = lateMs
      latestTimer = `${timer} of task ${taskId}, attempt ${attempt}, at ${new Date(metadata.at).toISOString()}`
    }
  return {
    tasks: all.length,
    events: all.reduce((sum, { events }) => sum + events, 0),
    outcomes,
    attempts: all.reduce(count(['TaskStarted']), 0),
    leasesLost,
    lateResults: all.reduce(count(['LateResultRecorded']), 0),
    latestTimerSeconds: Math.round(latestMs / 100) / 10,
    latestTimer,
  }
}
