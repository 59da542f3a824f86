/** Answers of the double. */
import type { StoredEvent } from './store.ts'
import { type BatchAppendResponse, ReadResp, type ReadResponse, StreamIdentifier } from './stubs.ts'
import { writeUUID } from './uuids.ts'
import { encodeEvent } from './wire.ts'

type Recorded = NonNullable<ReturnType<NonNullable<ReturnType<ReadResponse['getEvent']>>['getEvent']>>

/** An answer, or the bytes of one: an event's are made once and sent to whoever reads it. */
export type ReadAnswer = ReadResponse | Buffer
export type BatchAppendAnswer = BatchAppendResponse | Buffer

export const serializeAnswer = (answer: ReadAnswer | BatchAppendAnswer): Buffer =>
  Buffer.isBuffer(answer) ? answer : Buffer.from(answer.serializeBinary())

export function eventAnswer(event: StoredEvent, structuredIds: boolean): ReadAnswer {
  if (structuredIds) return readEvent(event, null, true)
  event.wire ??= encodeEvent(event)
  return event.wire
}

/** @param target what the link names, null where it cannot be read: then there is only the link */
export function linkAnswer(
  link: StoredEvent,
  target: StoredEvent | null,
  structuredIds: boolean,
): ReadAnswer {
  return readEvent(target, link, structuredIds)
}

function readEvent(
  event: StoredEvent | null,
  link: StoredEvent | null,
  structuredIds: boolean,
): ReadResponse {
  const resolved = new ReadResp.ReadEvent()
  if (event) resolved.setEvent(recorded(event, structuredIds))
  if (link) resolved.setLink(recorded(link, structuredIds))
  resolved.setCommitPosition((link ?? event)!.position.toString())
  const answer = new ReadResp()
  answer.setEvent(resolved)
  return answer
}

function recorded(event: StoredEvent, structuredIds: boolean): Recorded {
  const message = new ReadResp.ReadEvent.RecordedEvent()
  message.setId(writeUUID(event.id, structuredIds))
  message.setStreamIdentifier(streamIdentifier(event.stream))
  message.setStreamRevision(event.revision.toString())
  const position = event.position.toString()
  message.setCommitPosition(position)
  message.setPreparePosition(position)
  const metadata = message.getMetadataMap()
  metadata.set('type', event.type)
  metadata.set('created', event.createdTicks.toString())
  metadata.set('content-type', event.isJson ? 'application/json' : 'application/octet-stream')
  message.setData(event.data)
  message.setCustomMetadata(event.metadata)
  return message
}

export function streamIdentifier(stream: string): InstanceType<typeof StreamIdentifier> {
  const identifier = new StreamIdentifier()
  identifier.setStreamName(Buffer.from(stream))
  return identifier
}

export function confirmationAnswer(subscriptionId: string): ReadResponse {
  const confirmation = new ReadResp.SubscriptionConfirmation()
  confirmation.setSubscriptionId(subscriptionId)
  const answer = new ReadResp()
  answer.setConfirmation(confirmation)
  return answer
}

export interface Place {
  commit: bigint
  prepare: bigint
}

export function checkpointAnswer(place: Place): ReadResponse {
  const checkpoint = new ReadResp.Checkpoint()
  checkpoint.setCommitPosition(place.commit.toString())
  checkpoint.setPreparePosition(place.prepare.toString())
  const answer = new ReadResp()
  answer.setCheckpoint(checkpoint)
  return answer
}

export function caughtUpAnswer(): ReadResponse {
  const answer = new ReadResp()
  answer.setCaughtUp(new ReadResp.CaughtUp())
  return answer
}

export function streamNotFoundAnswer(stream: string): ReadResponse {
  const notFound = new ReadResp.StreamNotFound()
  notFound.setStreamIdentifier(streamIdentifier(stream))
  const answer = new ReadResp()
  answer.setStreamNotFound(notFound)
  return answer
}

export function streamEdgeAnswer(edge: 'first' | 'last', revision: bigint): ReadResponse {
  const answer = new ReadResp()
  if (edge === 'first') answer.setFirstStreamPosition(revision.toString())
  else answer.setLastStreamPosition(revision.toString())
  return answer
}
