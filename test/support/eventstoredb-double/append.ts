/** Streams.Append, Delete and Tombstone: one write a call. The client appends so when it is given credentials. */
import type {
  handleClientStreamingCall,
  handleUnaryCall,
  ServerUnaryCall,
  sendUnaryData,
} from '@grpc/grpc-js'
import { type CallError, callErrors } from './errors.ts'
import type { AppendFailure } from './faults.ts'
import { type NodeState, refusal } from './node-state.ts'
import { countedBytes, MissingMetadataError, readExpected, readProposed, readStreamName } from './proposed.ts'
import type { AppendOutcome, Expected, ProposedEvent } from './store.ts'
import {
  type AppendRequest,
  AppendResp,
  type AppendResponse,
  type DeleteRequest,
  DeleteResp,
  type DeleteResponse,
  Empty,
  type TombstoneRequest,
  TombstoneResp,
  type TombstoneResponse,
} from './stubs.ts'

export function appendHandler(node: NodeState): handleClientStreamingCall<AppendRequest, AppendResponse> {
  return (call, callback) => {
    const requests: AppendRequest[] = []
    let refused = refusal(node, call.metadata)
    let bytes = 0
    call.on('data', (request: AppendRequest) => {
      if (refused) return
      requests.push(request)
      bytes += request.getProposedMessage()?.getData_asU8().length ?? 0
      if (bytes > node.maxAppendBytes) refused = callErrors.maximumAppendSizeExceeded(node.maxAppendBytes)
    })
    call.on('error', () => {})
    call.on('end', () =>
      node.faults.whenRunning(() => {
        if (call.cancelled) return
        if (refused) return callback(refused)
        appendAll(node, requests, callback)
      }),
    )
  }
}

function appendAll(
  node: NodeState,
  [header, ...messages]: AppendRequest[],
  callback: sendUnaryData<AppendResponse>,
) {
  const options = header?.getOptions()
  if (!options) return callback(callErrors.unknown('Exception was thrown by handler.'))
  const stream = readStreamName(options.getStreamIdentifier())
  let expected: Expected
  const events: ProposedEvent[] = []
  try {
    expected = readExpected(options, options.hasRevision() ? options.getRevision() : null)
    for (const message of messages) events.push(readProposed(message.getProposedMessage()!))
  } catch (error) {
    if (error instanceof MissingMetadataError) return callback(callErrors.missingMetadata(error.property))
    return callback(callErrors.invalidArgument((error as Error).message))
  }
  if (events.reduce((sum, event) => sum + countedBytes(event), 0) > node.maxAppendBytes)
    return callback(callErrors.maximumAppendSizeExceeded(node.maxAppendBytes))
  write(
    node,
    () => node.store.append(stream, expected, events),
    callback,
    outcome => {
      if (outcome.kind === 'stream_deleted') return callErrors.streamDeleted(stream)
      return outcome.kind === 'wrong_expected_version'
        ? conflict(outcome.current, expected)
        : success(outcome.revision, outcome.position)
    },
  )
}

/** Stores and answers with what is wrong on demand. */
function write<Answer>(
  node: NodeState,
  store: () => AppendOutcome,
  callback: sendUnaryData<Answer>,
  convert: (outcome: AppendOutcome) => Answer | CallError,
) {
  const { faults } = node
  if (faults.leader !== 'itself') return callback(callErrors.timeout('Forward timeout'))
  const failing = faults.takeAppendFailure()
  if (failing && !failing.store) return callback(failed(failing.failure))
  const answer = convert(store())
  if (faults.takeLostAck()) return
  const send = (): void => {
    if (failing) callback(failed(failing.failure))
    else if (answer instanceof Object && 'code' in answer) callback(answer as CallError)
    else callback(null, answer as Answer)
  }
  if (faults.lateMs === 0) send()
  else setTimeout(send, faults.lateMs)
}

function success(revision: bigint, place: bigint | null): AppendResponse {
  const message = new AppendResp.Success()
  if (revision < 0n) message.setNoStream(new Empty())
  else message.setCurrentRevision(revision.toString())
  if (place === null) message.setNoPosition(new Empty())
  else {
    const position = new AppendResp.Position()
    position.setCommitPosition(place.toString())
    position.setPreparePosition(place.toString())
    message.setPosition(position)
  }
  const answer = new AppendResp()
  answer.setSuccess(message)
  return answer
}

function conflict(current: bigint, expected: Expected): AppendResponse {
  const message = new AppendResp.WrongExpectedVersion()
  if (expected === 'any') message.setExpectedAny(new Empty())
  else if (expected === 'no_stream') message.setExpectedNoStream(new Empty())
  else if (expected === 'stream_exists') message.setExpectedStreamExists(new Empty())
  else message.setExpectedRevision(expected.toString())
  if (current < 0n) message.setCurrentNoStream(new Empty())
  else message.setCurrentRevision(current.toString())
  const answer = new AppendResp()
  answer.setWrongExpectedVersion(message)
  return answer
}

function failed(failure: AppendFailure): CallError {
  switch (failure) {
    case 'server_busy':
      return callErrors.serverBusy()
    case 'server_not_ready':
      return callErrors.serverNotReady()
    case 'timeout':
      return callErrors.timeout('Commit timeout')
    case 'access_denied':
      return callErrors.accessDenied()
    case 'unknown':
      return callErrors.unknown('Unexpected OperationResult: Unknown')
    default:
      return failure satisfies never
  }
}

export function deleteHandler(node: NodeState): handleUnaryCall<DeleteRequest, DeleteResponse> {
  return (call, callback) =>
    remove(node, call, callback, place => {
      const position = new DeleteResp.Position()
      position.setCommitPosition(place)
      position.setPreparePosition(place)
      const answer = new DeleteResp()
      answer.setPosition(position)
      return answer
    })
}

export function tombstoneHandler(node: NodeState): handleUnaryCall<TombstoneRequest, TombstoneResponse> {
  return (call, callback) =>
    remove(node, call, callback, place => {
      const position = new TombstoneResp.Position()
      position.setCommitPosition(place)
      position.setPreparePosition(place)
      const answer = new TombstoneResp()
      answer.setPosition(position)
      return answer
    })
}

/** The numbers that the server has for expectations, as its error message shows them. */
const EXPECTED_NUMBER = { any: -2n, no_stream: -1n, stream_exists: -4n } as const

function remove<
  Request extends DeleteRequest | TombstoneRequest,
  Answer extends DeleteResponse | TombstoneResponse,
>(
  node: NodeState,
  call: ServerUnaryCall<Request, Answer>,
  callback: sendUnaryData<Answer>,
  answer: (position: string) => Answer,
): void {
  node.faults.whenRunning(() => {
    if (call.cancelled) return
    const refused = refusal(node, call.metadata)
    if (refused) return callback(refused)
    const options = call.request.getOptions()
    if (!options) return callback(callErrors.unknown('Exception was thrown by handler.'))
    const stream = readStreamName(options.getStreamIdentifier())
    let expected: Expected
    try {
      expected = readExpected(options, options.hasRevision() ? options.getRevision() : null)
    } catch (error) {
      return callback(callErrors.invalidArgument((error as Error).message))
    }
    const hard = call.getPath().endsWith('/Tombstone')
    const store = (): AppendOutcome =>
      hard ? node.store.tombstone(stream, expected) : node.store.softDelete(stream, expected)
    write(node, store, callback, outcome => {
      if (outcome.kind === 'stream_deleted') return callErrors.streamDeleted(stream)
      if (outcome.kind === 'wrong_expected_version') {
        const number = typeof expected === 'bigint' ? expected : EXPECTED_NUMBER[expected]
        return callErrors.wrongExpectedVersion(stream, number, outcome.current)
      }
      return answer(String(outcome.position))
    })
  })
}
