/**
 * Holds a round's stream against the rules and every answer against the stream. The rules are written out here once more
 * rather than taken from the lifecycle: what decides must not judge itself.
 */
import type { EventType, RecordedEvent } from '../../../src/domain/events.ts'
import type { RaceAnswer } from './process.ts'
import type { RacingTrigger, Round } from './round.ts'

type Status = 'PENDING' | 'PROCESSING' | 'RETRYING' | 'SUCCESS' | 'FAILED' | 'CANCELLED'

/** What the stream says at one revision, as far as a race of one attempt can get. */
interface State {
  status: Status
  /** The attempt has run; it is over where the status is not PROCESSING any more. */
  started: boolean
  lateResult: boolean
}

const FINAL: ReadonlySet<EventType> = new Set([
  'TaskSucceeded',
  'TaskFailed',
  'TaskTimedOut',
  'TaskCancelled',
])

export interface RoundResult {
  /** What is wrong, nothing if all is well. */
  found: string[]
  /** Triggers that moved the task. */
  won: RacingTrigger[]
  /** The final event. */
  outcome: EventType | null
}

/** @param answers of all processes; a command that was sent twice has two */
export function examineRound(
  round: Round,
  history: readonly RecordedEvent[],
  answers: readonly RaceAnswer[],
): RoundResult {
  const found: string[] = []
  const say = (what: string): void => {
    found.push(`round ${round.number} (${round.prepared}, ${round.timer}): ${what}`)
  }
  const triggers = new Map(
    round.entries.map(({ envelope }) => [envelope.commandId, envelope.command.trigger as RacingTrigger]),
  )
  const states = walk(round, history, triggers, say)
  history.forEach(({ revision, metadata }, index) => {
    if (revision !== index || metadata.prevHash !== (history[index - 1]?.hash ?? null))
      say(`the chain has a gap at event ${index}`)
  })
  const finals = history.filter(({ event }) => FINAL.has(event.type))
  if (finals.length !== 1) say(`the run has ${finals.length} outcomes`)

  if (answers.length !== round.entries.length) say(`${answers.length} answers came`)
  const won: RacingTrigger[] = []
  for (const [commandId, trigger] of triggers) {
    const stored = history.filter(({ metadata }) => metadata.commandId === commandId)
    const moved = stored.filter(({ event }) => event.type !== 'LateResultRecorded')
    const own = answers.filter(answer => answer.commandId === commandId)
    const accepted = own.filter(({ said }) => said === 'accepted').length
    if (stored.length > 1) say(`${trigger} stands in the stream ${stored.length} times`)
    if (accepted !== moved.length) say(`${trigger} was accepted ${accepted} times and stored ${moved.length}`)
    if (moved.length > 0) won.push(trigger)
    for (const answer of own) {
      const wrong = wrongIn(answer, trigger, { round, history, states, stored: stored[0] ?? null })
      if (wrong) say(`${trigger} was answered ${answer.code ?? answer.said}, and ${wrong}`)
    }
  }
  return { found, won, outcome: finals[0]?.event.type ?? null }
}

/** The state after each event; an event that may not follow is said, and leaves the state as it was. */
function walk(
  round: Round,
  history: readonly RecordedEvent[],
  triggers: ReadonlyMap<string, RacingTrigger>,
  say: (what: string) => void,
): State[] {
  let state: State = { status: 'PENDING', started: false, lateResult: false }
  return history.map(({ event, metadata }, revision) => {
    if (revision === 0) {
      if (event.type !== 'TaskSubmitted') say(`it begins with ${event.type}`)
      return state
    }
    const isPreparation = revision < round.preparation.length
    const trigger = isPreparation ? 'START' : triggers.get(metadata.commandId)
    const expected = trigger && eventOf(trigger, state, round)
    if (event.type !== expected?.type)
      say(`${event.type} by ${trigger} follows in ${state.status}, where ${expected?.type ?? 'nothing'} may`)
    else state = { ...state, ...expected.state }
    return state
  })
}

/** What a trigger stores in a state and where that leads; null where it stores nothing. */
function eventOf(
  trigger: RacingTrigger,
  { status, started, lateResult }: State,
  { maxAttempts, timer, silent }: Round,
): { type: EventType; state: Partial<State> } | null {
  const isOpen = status === 'PENDING' || status === 'PROCESSING' || status === 'RETRYING'
  const isOver = started && status !== 'PROCESSING'
  switch (trigger) {
    case 'START':
      return status === 'PENDING'
        ? { type: 'TaskStarted', state: { status: 'PROCESSING', started: true } }
        : null
    case 'SUCCEED':
    case 'FAIL':
      if (isOver) return lateResult ? null : { type: 'LateResultRecorded', state: { lateResult: true } }
      if (status !== 'PROCESSING') return null
      if (trigger === 'SUCCEED') return { type: 'TaskSucceeded', state: { status: 'SUCCESS' } }
      return maxAttempts === 1
        ? { type: 'TaskFailed', state: { status: 'FAILED' } }
        : { type: 'TaskAttemptFailed', state: { status: 'RETRYING' } }
    case 'TIMEOUT':
      if (timer === 'total' ? !isOpen : status !== (timer === 'queue' ? 'PENDING' : 'PROCESSING')) return null
      return timer === 'queue' || timer === 'total' || (maxAttempts === 1 && !silent)
        ? { type: 'TaskTimedOut', state: { status: 'FAILED' } }
        : { type: 'TaskAttemptTimedOut', state: { status: 'RETRYING' } }
    case 'CANCEL':
      return isOpen ? { type: 'TaskCancelled', state: { status: 'CANCELLED' } } : null
  }
}

/** The refusal that is the truth about a state in which a trigger moves nothing. */
function refusalOf(trigger: RacingTrigger, { status, started }: State): string {
  const isFinal = status === 'SUCCESS' || status === 'FAILED' || status === 'CANCELLED'
  if ((trigger === 'SUCCEED' || trigger === 'FAIL') && started) return 'superseded'
  if (trigger === 'START' && status === 'PROCESSING') return 'already_started'
  return isFinal ? 'task_finished' : 'illegal_transition'
}

interface Evidence {
  round: Round
  history: readonly RecordedEvent[]
  states: readonly State[]
  /** The event of this command. */
  stored: RecordedEvent | null
}

/** What an answer claims that the stream does not bear out; null where it does. */
function wrongIn(
  { said, code, revision, hash, status }: RaceAnswer,
  trigger: RacingTrigger,
  { round, history, states, stored }: Evidence,
): string | null {
  if (revision === null || !history[revision]) return `revision ${revision} is not in the stream`
  if (history[revision].hash !== hash) return `revision ${revision} has another hash`
  const state = states[revision]!
  if (state.status !== status) return `at revision ${revision} it was ${state.status}, not ${status}`
  if (said === 'accepted') {
    if (stored?.revision !== revision)
      return `its event is at ${stored?.revision ?? 'no'} revision, not ${revision}`
    return stored.event.type === 'LateResultRecorded' ? 'it came too late' : null
  }
  if (revision < round.preparation.length - 1) return `revision ${revision} was over before the race`
  // A command that was sent twice: the second is told so once the first is stored. A START says who holds the lease,
  // so it is repeated only while it does.
  const isRepeated =
    stored !== null &&
    stored.event.type !== 'LateResultRecorded' &&
    stored.revision <= revision &&
    (trigger !== 'START' || state.status === 'PROCESSING')
  if (said === 'repeated')
    return isRepeated || (trigger === 'CANCEL' && state.status === 'CANCELLED')
      ? null
      : 'nothing was stored before'
  if (isRepeated) return `it had been accepted before, at revision ${stored.revision}`
  // A late result is refused and stored in one: what it lost to is the state before it.
  const lostTo =
    stored?.event.type === 'LateResultRecorded' && stored.revision === revision
      ? states[revision - 1]!
      : state
  const expected = eventOf(trigger, lostTo, round)
  if (expected && expected.type !== 'LateResultRecorded')
    return `in ${lostTo.status} it should have moved the task`
  if (expected && stored?.revision !== revision) return 'the late result was not kept'
  const truth = refusalOf(trigger, lostTo)
  return truth === code ? null : `in ${lostTo.status} the truth is ${truth}`
}
