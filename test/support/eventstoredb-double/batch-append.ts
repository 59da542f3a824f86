/** Streams.BatchAppend: many appends over one call, each answered under its correlation id. */
import type { handleBidiStreamingCall, ServerDuplexStream } from '@grpc/grpc-js'
import { batchErrors, callErrors } from './errors.ts'
import type { AppendFailure } from './faults.ts'
import { type BatchAppendAnswer, streamIdentifier } from './messages.ts'
import { authenticate, type NodeState, notLeader } from './node-state.ts'
import { countedBytes, readExpected, readProposed, readStreamName } from './proposed.ts'
import type { AppendOutcome, Expected, ProposedEvent } from './store.ts'
import {
  AllStreamPosition,
  type BatchAppendRequest,
  BatchAppendResp,
  Empty,
  type StatusMessage,
  type UUIDMessage,
} from './stubs.ts'
import { encodeAppended } from './wire.ts'

type Call = ServerDuplexStream<BatchAppendRequest, BatchAppendAnswer>
type Options = NonNullable<ReturnType<BatchAppendRequest['getOptions']>>

/** An append whose events are not all here yet. */
interface OpenAppend {
  correlation: UUIDMessage
  stream: string
  expected: Expected
  events: ProposedEvent[]
  bytes: number
  timer: NodeJS.Timeout | null
}

/** Answers that a client does not take, after which its appends are not read either. */
const UNREAD_ANSWERS_MAX = 4_096

export function batchAppendHandler(
  node: NodeState,
): handleBidiStreamingCall<BatchAppendRequest, BatchAppendAnswer> {
  return call => new BatchAppendCall(node, call)
}

class BatchAppendCall {
  readonly #node: NodeState
  readonly #call: Call
  readonly #mayWrite: boolean
  readonly #open = new Map<string, OpenAppend>()
  #ended = false
  /** Answers that are late on demand, and with those that come a second time all whose time has not come. */
  #late = 0
  #due = 0
  #clientEnded = false

  constructor(node: NodeState, call: Call) {
    this.#node = node
    this.#call = call
    const caller = authenticate(node, call.metadata)
    this.#mayWrite = caller === 'somebody'
    call.on('cancelled', () => this.#close())
    call.on('error', () => this.#close())
    if (caller === 'wrong') this.#fail(callErrors.unauthenticated())
    call.on('data', (request: BatchAppendRequest) => node.faults.whenRunning(() => this.#take(request)))
    call.on('end', () => node.faults.whenRunning(() => this.#finish()))
  }

  #take(request: BatchAppendRequest) {
    if (this.#ended) return
    const correlation = request.getCorrelationId()
    const options = request.getOptions()
    try {
      const append = this.#join(request, correlation, options)
      if (append && request.getIsFinal()) this.#append(append)
    } catch (error) {
      if (!options) return this.#fail(callErrors.unknown('Exception was thrown by handler.'))
      this.#answer(
        correlation,
        readStreamName(options.getStreamIdentifier()),
        batchErrors.badRequest((error as Error).message),
      )
    }
  }

  /** The append that a request belongs to, with the request's events; null when it was refused. */
  #join(
    request: BatchAppendRequest,
    correlation: UUIDMessage | undefined,
    options: Options | undefined,
  ): OpenAppend | null {
    const key = correlation?.hasStructured()
      ? `${correlation.getStructured()!.getMostSignificantBits()}/${correlation.getStructured()!.getLeastSignificantBits()}`
      : correlation?.getString().toLowerCase()
    if (!correlation || !key) throw new RangeError('Unrecognized Guid format.')
    const append = this.#open.get(key) ?? (options ? this.#begin(correlation, options) : null)
    if (!append) return null
    const { maxAppendBytes } = this.#node
    for (const message of request.getProposedMessagesList()) {
      const event = readProposed(message)
      append.events.push(event)
      append.bytes += countedBytes(event)
    }
    if (append.bytes > maxAppendBytes) {
      this.#forget(key)
      this.#answer(correlation, append.stream, batchErrors.maximumAppendSizeExceeded(maxAppendBytes))
      return null
    }
    if (request.getIsFinal()) this.#forget(key)
    else this.#keep(key, append)
    return append
  }

  #begin(correlation: UUIDMessage, options: Options): OpenAppend | null {
    const identifier = options.getStreamIdentifier()
    const stream = readStreamName(identifier)
    if (!this.#mayWrite) return this.#refuse(correlation, stream, batchErrors.accessDenied())
    if (!identifier || stream === '') {
      const error = batchErrors.badRequest('Required field StreamIdentifier not set.')
      return this.#refuse(correlation, stream, error)
    }
    const deadline = options.getDeadline()
    if (deadline && deadline.getSeconds() * 1_000 + deadline.getNanos() / 1e6 <= Date.now())
      return this.#refuse(correlation, stream, batchErrors.timeout())
    const revision = options.hasStreamPosition() ? options.getStreamPosition() : null
    const expected = readExpected(options, revision)
    return { correlation, stream, expected, events: [], bytes: 0, timer: null }
  }

  #refuse(correlation: UUIDMessage, stream: string, error: StatusMessage): null {
    this.#answer(correlation, stream, error)
    return null
  }

  /** An append whose last part does not come in time is given up. */
  #keep(key: string, append: OpenAppend): void {
    this.#open.set(key, append)
    append.timer ??= setTimeout(() => {
      this.#open.delete(key)
      this.#answer(append.correlation, append.stream, batchErrors.timeout())
    }, this.#node.writeTimeoutMs)
  }

  #forget(key: string): void {
    const timer = this.#open.get(key)?.timer
    if (timer) clearTimeout(timer)
    this.#open.delete(key)
  }

  #append({ correlation, stream, expected, events }: OpenAppend) {
    const { store, faults } = this.#node
    const refused = notLeader(this.#node, this.#call.metadata)
    if (refused) return this.#fail(refused)
    // A follower would pass it on to the leader, which the double has not got.
    if (faults.leader !== 'itself') return this.#answer(correlation, stream, batchErrors.timeout())
    const failing = faults.takeAppendFailure()
    if (failing && !failing.store) return this.#answer(correlation, stream, failed(failing.failure))
    const outcome = store.append(stream, expected, events)
    if (faults.takeLostAck()) return
    const answer = failing
      ? answered(correlation, stream, failed(failing.failure))
      : outcomeAnswer(correlation, stream, expected, outcome)
    this.#send(answer)
    if (faults.takeRepeatedAnswer()) this.#later(faults.repeatAfterMs, () => this.#write(answer))
  }

  #answer(correlation: UUIDMessage | undefined, stream: string, error: StatusMessage): void {
    this.#send(answered(correlation, stream, error))
  }

  /** Answers keep their order, also when they are not late any more. */
  #send(answer: BatchAppendAnswer) {
    const { lateMs } = this.#node.faults
    if (lateMs === 0 && this.#late === 0) return this.#write(answer)
    this.#late++
    this.#later(lateMs, () => {
      this.#late--
      this.#write(answer)
    })
  }

  #later(ms: number, go: () => void): void {
    this.#due++
    setTimeout(() => {
      this.#due--
      this.#node.faults.whenRunning(go)
      if (this.#clientEnded) this.#finish()
    }, ms)
  }

  #write(answer: BatchAppendAnswer): void {
    if (this.#ended) return
    this.#call.write(answer)
    if (this.#call.writableLength < UNREAD_ANSWERS_MAX || this.#call.isPaused()) return
    this.#call.pause()
    this.#call.once('drain', () => this.#call.resume())
  }

  #finish(): void {
    this.#clientEnded = true
    if (this.#ended || this.#due > 0) return
    this.#close()
    this.#call.end()
  }

  #fail(error: object): void {
    if (this.#ended) return
    this.#close()
    this.#call.emit('error', error)
  }

  #close(): void {
    this.#ended = true
    for (const key of [...this.#open.keys()]) this.#forget(key)
  }
}

type Success = InstanceType<typeof BatchAppendResp.Success>

function answered(
  correlation: UUIDMessage | undefined,
  stream: string,
  result: StatusMessage | Success,
): BatchAppendAnswer {
  const answer = new BatchAppendResp()
  if (correlation) answer.setCorrelationId(correlation)
  answer.setStreamIdentifier(streamIdentifier(stream))
  if (result instanceof BatchAppendResp.Success) answer.setSuccess(result)
  else answer.setError(result)
  return answer
}

function outcomeAnswer(
  correlation: UUIDMessage,
  stream: string,
  expected: Expected,
  outcome: AppendOutcome,
): BatchAppendAnswer {
  if (outcome.kind === 'wrong_expected_version')
    return answered(correlation, stream, batchErrors.wrongExpectedVersion(outcome.current, expected))
  if (outcome.kind === 'stream_deleted')
    return answered(correlation, stream, batchErrors.streamDeleted(stream))
  const { revision, position } = outcome
  if (revision >= 0n && position !== null && correlation.hasString())
    return encodeAppended(correlation.getString(), stream, revision, position)
  return answered(correlation, stream, success(revision, position))
}

function success(revision: bigint, place: bigint | null): Success {
  const message = new BatchAppendResp.Success()
  if (revision < 0n) message.setNoStream(new Empty())
  else message.setCurrentRevision(revision.toString())
  if (place === null) {
    message.setNoPosition(new Empty())
    return message
  }
  const position = new AllStreamPosition()
  position.setCommitPosition(place.toString())
  position.setPreparePosition(place.toString())
  message.setPosition(position)
  return message
}

function failed(failure: AppendFailure): StatusMessage {
  switch (failure) {
    case 'server_busy':
      return batchErrors.notHandled('Server Is Busy')
    case 'server_not_ready':
      return batchErrors.notHandled('Server Is Not Ready')
    case 'timeout':
      return batchErrors.timeout()
    case 'access_denied':
      return batchErrors.accessDenied()
    case 'unknown':
      return batchErrors.unknown()
    default:
      return failure satisfies never
  }
}
