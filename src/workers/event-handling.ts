/**
 * What becomes of records of worker events: validated, executed in their order, each with its outcome. Handling a
 * record again is harmless: its command carries the same id.
 */

import type { IncomingRecord } from '../broker/broker.ts'
import type { CommandEnvelope } from '../domain/commands.ts'
import type { Task } from '../domain/task.ts'
import type { Answer, AnyRefusalCode } from '../engine/answer.ts'
import type { Engine } from '../engine/engine.ts'
import { PASSING } from './claims.ts'
import { DEAD_LETTER_REASONS, type Fault } from './dead-letters.ts'
import type { Leases } from './leases.ts'
import { parseWorkerEvent } from './parse-worker-event.ts'
import { type Heartbeat, leaseKey } from './work-state.ts'
import { commandOf, hashToken, type WorkerEvent } from './worker-events.ts'

export type Handled =
  /** The log has answered; a refusal for good is kept with its task. `signal`: a heartbeat or progress was taken. */
  | {
      kind: 'done'
      answer: 'accepted' | 'repeated' | 'refused' | 'signal'
      code: AnyRefusalCode | null
      message: string | null
    }
  /** It can never be handled as it is. */
  | { kind: 'dead'; fault: Fault }
  /** It could not be handled now; it may be handed in again as it is. */
  | { kind: 'passing'; code: AnyRefusalCode; message: string; taskId: string }

const UNHANDLEABLE = ['not_found', 'set_aside', 'too_large'] as const
const isUnhandleable = (code: string): code is (typeof UNHANDLEABLE)[number] =>
  (UNHANDLEABLE as readonly string[]).includes(code)

const TRACEPARENT = /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/

interface Asked {
  record: IncomingRecord
  event: WorkerEvent
}

export class EventHandling {
  readonly #engine: Engine
  readonly #leases: Leases

  constructor(engine: Engine, leases: Leases) {
    this.#engine = engine
    this.#leases = leases
  }

  /**
   * Handles records; the outcomes stand in their order. Keep the number at once well below what the engine lets wait.
   *
   * @throws where log or work state cannot be reached for the signals; all of it may be handed in again
   */
  async handle(records: readonly IncomingRecord[]): Promise<Handled[]> {
    const outcomes = new Array<Handled>(records.length)
    const commands: (Asked & { place: number })[] = []
    const signals: (Asked & { place: number })[] = []
    records.forEach((record, place) => {
      const { event, fault } = parseWorkerEvent(record)
      if (fault) outcomes[place] = { kind: 'dead', fault }
      else if (event.trigger === 'HEARTBEAT' || event.trigger === 'PROGRESS')
        signals.push({ record, event, place })
      else commands.push({ record, event, place })
    })
    const answers = await this.#execute(commands)
    commands.forEach(({ place, event }, index) => {
      outcomes[place] = outcomeOf(event, answers[index]!)
    })
    // After the commands: a START of this batch makes the lease that a heartbeat of this batch is for.
    if (signals.length > 0) await this.#leases.heartbeat(beatsOf(signals.map(({ event }) => event)), false)
    for (const { place } of signals)
      outcomes[place] = { kind: 'done', answer: 'signal', code: null, message: null }
    return outcomes
  }

  async #execute(asked: readonly Asked[]): Promise<Answer[]> {
    const unstarted = await this.#unstarted(asked)
    const answers = await this.#engine.executeMany(
      asked.flatMap(one => (unstarted.has(one) ? [startOf(one), envelopeOf(one)] : [envelopeOf(one)])),
    )
    let at = 0
    return asked.map(one => {
      if (!unstarted.has(one)) return answers[at++]!
      const [start, command] = [answers[at++]!, answers[at++]!]
      return isPassing(start) ? start : command
    })
  }

  /**
   * Outcomes whose START was not seen, or never sent: they say that the attempt has been started. That is found out
   * before they are executed, for a refusal would be kept with the task although nothing was refused.
   */
  async #unstarted<T extends Asked>(asked: readonly T[]): Promise<Set<T>> {
    const started = new Set<string>()
    const first = asked.filter(({ event: { taskId, attempt, trigger } }) => {
      const isFirst = !started.has(`${taskId}/${attempt}`)
      if (trigger === 'START' || isOutcome(trigger)) started.add(`${taskId}/${attempt}`)
      return isFirst && isOutcome(trigger) && !isPast(this.#engine.known(taskId), attempt)
    })
    if (first.length === 0) return new Set()
    // What this process knows may be behind; the log says whether the attempt waits.
    const loaded = await this.#engine.readMany(first.map(({ event }) => event.taskId))
    return new Set(
      first.filter(({ event: { taskId, attempt } }) => {
        const one = loaded.get(taskId)
        return one?.kind === 'task' && one.task.status === 'PENDING' && one.task.attempt === attempt
      }),
    )
  }
}

const isPassing = (answer: Answer): boolean => answer.kind === 'refused' && PASSING.has(answer.code)
const isOutcome = (trigger: WorkerEvent['trigger']): boolean => trigger === 'SUCCEED' || trigger === 'FAIL'

/** Whether an attempt has been started, or is over, on a fold that may be behind: it never waits again. */
const isPast = (task: Task | null, attempt: number): boolean =>
  task !== null &&
  (attempt < task.attempt ||
    (attempt === task.attempt && (task.status === 'PROCESSING' || task.status === 'SUCCESS')))

function envelopeOf({ record, event }: Asked): CommandEnvelope {
  if (event.trigger === 'START') return startOf({ record, event })
  if (event.trigger === 'HEARTBEAT' || event.trigger === 'PROGRESS')
    throw new Error('bug: a signal is no command')
  return { ...originOf(record, event), command: commandOf(event) }
}

function startOf({ record, event }: Asked): CommandEnvelope {
  const { worker, attempt, leaseToken } = event
  return {
    ...originOf(record, event),
    command: { trigger: 'START', worker, attempt, leaseTokenHash: hashToken(leaseToken) },
  }
}

function originOf(record: IncomingRecord, { taskId, commandId, worker }: WorkerEvent) {
  const trace = record.headers.find(([name]) => name === 'traceparent')?.[1].toString('latin1')
  return {
    taskId,
    commandId,
    actor: { kind: 'worker', id: worker },
    source: 'kafka',
    correlationId: null,
    causationId: null,
    trace: trace !== undefined && TRACEPARENT.test(trace) ? trace : null,
    ifRevision: null,
  } as const
}

/** One beat for each lease, with the progress that was said last. */
function beatsOf(events: readonly WorkerEvent[]): Heartbeat[] {
  const beats = new Map<string, Heartbeat>()
  for (const event of events) {
    const of = { taskId: event.taskId, attempt: event.attempt, leaseTokenHash: hashToken(event.leaseToken) }
    const key = leaseKey(of)
    const progress = event.trigger === 'PROGRESS' ? event.progress : (beats.get(key)?.progress ?? null)
    beats.set(key, { ...of, progress })
  }
  return [...beats.values()]
}

function outcomeOf({ taskId }: WorkerEvent, answer: Answer): Handled {
  if (answer.kind !== 'refused') return { kind: 'done', answer: answer.kind, code: null, message: null }
  const { code, message } = answer
  if (PASSING.has(code)) return { kind: 'passing', code, message, taskId }
  if (isUnhandleable(code))
    return { kind: 'dead', fault: { code, message: message || DEAD_LETTER_REASONS[code], taskId } }
  return { kind: 'done', answer: 'refused', code, message }
}
