/** The server's refusals: as a status inside an answer of BatchAppend, and as the end of a call with trailers. */
import { Metadata, type StatusObject, status } from '@grpc/grpc-js'
import type { Expected } from './store.ts'
import {
  AccessDenied,
  BadRequest,
  Empty,
  MaximumAppendSizeExceeded,
  Status,
  type StatusMessage,
  StreamDeleted,
  StreamIdentifier,
  Timeout,
  Unknown,
  WrongExpectedVersion,
} from './stubs.ts'

interface Packable {
  serializeBinary(): Uint8Array
}

/** A status whose details are present and empty: what the details are packed into. */
const EMPTY_DETAILS = Uint8Array.of(0x1a, 0x00)

function packed(code: number, message: string, name: string, details: Packable): StatusMessage {
  const made = Status.deserializeBinary(EMPTY_DETAILS)
  made.setCode(code as ReturnType<StatusMessage['getCode']>)
  made.setMessage(message)
  made.getDetails()!.pack(details.serializeBinary(), name)
  return made
}

const client = (name: string): string => `event_store.client.${name}`

export const batchErrors = {
  wrongExpectedVersion(current: bigint, expected: Expected): StatusMessage {
    const details = new WrongExpectedVersion()
    if (current < 0n) details.setCurrentNoStream(new Empty())
    else details.setCurrentStreamRevision(current.toString())
    if (expected === 'any') details.setExpectedAny(new Empty())
    else if (expected === 'no_stream') details.setExpectedNoStream(new Empty())
    else if (expected === 'stream_exists') details.setExpectedStreamExists(new Empty())
    else details.setExpectedStreamPosition(expected.toString())
    return packed(status.ALREADY_EXISTS, 'WrongExpectedVersion', client('WrongExpectedVersion'), details)
  },
  streamDeleted(stream: string): StatusMessage {
    const identifier = new StreamIdentifier()
    identifier.setStreamName(Buffer.from(stream))
    const details = new StreamDeleted()
    details.setStreamIdentifier(identifier)
    return packed(status.NOT_FOUND, 'StreamDeleted', client('StreamDeleted'), details)
  },
  maximumAppendSizeExceeded(bytes: number): StatusMessage {
    const details = new MaximumAppendSizeExceeded()
    details.setMaxappendsize(bytes)
    const name = 'MaximumAppendSizeExceeded'
    return packed(status.INVALID_ARGUMENT, name, client(name), details)
  },
  accessDenied: (): StatusMessage =>
    packed(status.PERMISSION_DENIED, 'AccessDenied', client('AccessDenied'), new AccessDenied()),
  timeout: (): StatusMessage => packed(status.DEADLINE_EXCEEDED, 'Timeout', client('Timeout'), new Timeout()),
  unknown: (): StatusMessage => packed(status.UNKNOWN, 'Unknown', client('Unknown'), new Unknown()),
  badRequest(message: string): StatusMessage {
    const details = new BadRequest()
    details.setMessage(message)
    return packed(status.INVALID_ARGUMENT, 'BadRequest', client('BadRequest'), details)
  },
  /** Says nothing but its message, not even a code. */
  notHandled: (message: string): StatusMessage => packed(0, message, 'google.protobuf.Empty', new Empty()),
}

export type CallError = Partial<StatusObject>

function callError(code: number, details: string, trailers: Record<string, string> = {}): CallError {
  const metadata = new Metadata()
  for (const [key, value] of Object.entries(trailers)) metadata.set(key, value)
  return { code, details, metadata }
}

export const callErrors = {
  notLeader: (leader: { host: string; port: number } | null): CallError =>
    leader === null
      ? callError(status.UNKNOWN, 'No leader info available in response')
      : callError(status.NOT_FOUND, 'Leader info available', {
          exception: 'not-leader',
          'leader-endpoint-host': leader.host,
          'leader-endpoint-port': String(leader.port),
        }),
  accessDenied: (): CallError =>
    callError(status.PERMISSION_DENIED, 'Access Denied', { exception: 'access-denied' }),
  unauthenticated: (): CallError =>
    callError(status.UNAUTHENTICATED, 'Bad gRPC response. HTTP status code: 401'),
  streamDeleted: (stream: string): CallError =>
    callError(status.FAILED_PRECONDITION, `Event stream '${stream}' is deleted.`, {
      exception: 'stream-deleted',
      'stream-name': stream,
    }),
  wrongExpectedVersion: (stream: string, expected: bigint, actual: bigint): CallError =>
    callError(
      status.FAILED_PRECONDITION,
      `Delete failed due to WrongExpectedVersion. Stream: ${stream}, Expected version: ${expected}, Actual version: ${actual}`,
      {
        exception: 'wrong-expected-version',
        'stream-name': stream,
        'expected-version': String(expected),
        'actual-version': String(actual),
      },
    ),
  maximumAppendSizeExceeded: (bytes: number): CallError =>
    callError(status.INVALID_ARGUMENT, `Maximum Append Size of ${bytes} Exceeded.`, {
      exception: 'maximum-append-size-exceeded',
      'maximum-append-size': String(bytes),
    }),
  missingMetadata: (property: string): CallError =>
    callError(status.INVALID_ARGUMENT, `Required Metadata Property '${property}' is missing`, {
      exception: 'missing-required-metadata-property',
      'required-metadata-properties': 'type,content-type',
    }),
  invalidPosition: (): CallError =>
    callError(status.INVALID_ARGUMENT, 'Trying to read from an invalid position.'),
  timeout: (message: string): CallError => callError(status.ABORTED, `Operation timed out: ${message}`),
  serverBusy: (): CallError => callError(status.UNAVAILABLE, 'Server Is Too Busy'),
  serverNotReady: (): CallError => callError(status.UNAVAILABLE, 'Server Is Not Ready'),
  unknown: (details: string): CallError => callError(status.UNKNOWN, details),
  invalidArgument: (details: string): CallError => callError(status.INVALID_ARGUMENT, details),
}
