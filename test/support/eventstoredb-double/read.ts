/** Streams.Read: pages of a stream or of the whole log, and subscriptions to both. */
import type { handleServerStreamingCall, ServerWritableStream } from '@grpc/grpc-js'
import { type CallError, callErrors } from './errors.ts'
import { type EventFilter, NO_FILTER, readFilter } from './filters.ts'
import {
  eventAnswer,
  linkAnswer,
  type Place,
  type ReadAnswer,
  streamEdgeAnswer,
  streamNotFoundAnswer,
} from './messages.ts'
import { type NodeState, refusal } from './node-state.ts'
import { readRevision, readStreamName } from './proposed.ts'
import { REVISION_MAX, type StoredEvent } from './store.ts'
import type { ReadRequest } from './stubs.ts'
import { subscribeToAll, subscribeToStream } from './subscription.ts'

export type ReadCall = ServerWritableStream<ReadRequest, ReadAnswer>
type Options = NonNullable<ReturnType<ReadRequest['getOptions']>>

const BACKWARDS = 1
/** Events that the server reads at a time. */
export const PAGE_EVENTS = 32

export function readHandler(node: NodeState): handleServerStreamingCall<ReadRequest, ReadAnswer> {
  return call => {
    call.on('error', () => {})
    node.faults.whenRunning(() => {
      if (call.cancelled) return
      const error = refusal(node, call.metadata) ?? serve(node, call)
      if (error) call.emit('error', error)
    })
  }
}

/** @returns why the call is refused, null where it is being answered */
function serve(node: NodeState, call: ReadCall): CallError | null {
  const options = call.request.getOptions()
  const uuidOption = options?.getUuidOption()
  if (!options || !uuidOption) return callErrors.invalidArgument(' `uuidOption` is a required argument')
  const isSubscription = options.hasSubscription()
  const stream = options.getStream()
  if (!stream && !options.hasAll()) return callErrors.invalidArgument("'None' is not a valid stream option")
  const backwards = options.getReadDirection() === BACKWARDS
  if ((backwards && isSubscription) || (stream && options.hasFilter()))
    return callErrors.invalidArgument('The combination of the options is invalid.')
  const failure = isSubscription ? null : node.faults.takeReadFailure()
  if (failure === 'server_busy') return callErrors.serverBusy()
  if (failure === 'server_not_ready') return callErrors.serverNotReady()
  if (failure === 'timeout') return callErrors.timeout('Read timed out')
  if (failure === 'unknown') return callErrors.unknown('Unexpected ReadStreamResult: Error')
  let filter: EventFilter
  try {
    filter = options.hasFilter() ? readFilter(options.getFilter()!) : NO_FILTER
    const answerOf = converter(node, options)
    if (isSubscription) {
      if (stream) {
        const from = subscriptionRevision(stream)
        return subscribeToStream(node, call, readStreamName(stream.getStreamIdentifier()), from, answerOf)
      }
      if (options.hasFilter() && filter.checkpointIntervalMultiplier === 0)
        return callErrors.unknown('Exception was thrown by handler.')
      return subscribeToAll(node, call, subscriptionPlace(options), filter, options.hasFilter(), answerOf)
    }
    const answers = stream
      ? streamAnswers(node, options, readStreamName(stream.getStreamIdentifier()), answerOf)
      : allAnswers(node, options, filter, answerOf)
    if (!(Symbol.iterator in answers)) return answers
    void send(call, answers)
    return null
  } catch (error) {
    // Figures out of range and patterns that are none end in the server's handler, too.
    if (error instanceof RangeError || error instanceof SyntaxError)
      return callErrors.unknown('Exception was thrown by handler.')
    throw error
  }
}

function converter(node: NodeState, options: Options): (event: StoredEvent) => ReadAnswer {
  const structured = !options.getUuidOption()!.hasString()
  if (!options.getResolveLinks()) return event => eventAnswer(event, structured)
  return event =>
    event.type === '$>'
      ? linkAnswer(event, node.store.resolve(event), structured)
      : eventAnswer(event, structured)
}

/** Sends no faster than the client takes. */
async function send(call: ReadCall, answers: Iterable<ReadAnswer>): Promise<void> {
  for (const answer of answers) {
    if (call.cancelled) return
    if (!call.write(answer)) await drained(call)
  }
  call.end()
}

/** When more may be written; also when nobody reads any more. */
function drained(call: ReadCall): Promise<void> {
  return new Promise(resolve => {
    const settle = (): void => {
      call.off('drain', settle)
      call.off('cancelled', settle)
      call.off('close', settle)
      resolve()
    }
    call.on('drain', settle)
    call.on('cancelled', settle)
    call.on('close', settle)
  })
}

const readCount = (options: Options): bigint => (options.hasCount() ? BigInt(options.getCount()) : 0n)

function streamAnswers(
  node: NodeState,
  options: Options,
  name: string,
  answerOf: (event: StoredEvent) => ReadAnswer,
): Iterable<ReadAnswer> | CallError {
  const from = options.getStream()!
  const stream = node.store.stream(name)
  if (stream === 'tombstoned') return callErrors.streamDeleted(name)
  const backwards = options.getReadDirection() === BACKWARDS
  const start = from.hasStart() ? 0n : from.hasEnd() ? -1n : readRevision(from.getRevision())
  if (start < 0n && !backwards) return callErrors.unknown('Unexpected ReadStreamResult: Error')
  if (!stream) return [streamNotFoundAnswer(name)]
  const compatible = (options.getControlOption()?.getCompatibility() ?? 0) >= 1
  const count = readCount(options)
  return backwards
    ? streamBackwards(stream, start, count, compatible, answerOf)
    : streamForwards(stream, start, count, compatible, answerOf)
}

type ReadableStream = Exclude<ReturnType<NodeState['store']['stream']>, 'tombstoned' | null>

function* streamForwards(
  stream: ReadableStream,
  from: bigint,
  count: bigint,
  compatible: boolean,
  answerOf: (event: StoredEvent) => ReadAnswer,
): Generator<ReadAnswer> {
  const { events, min, notBeforeTicks } = stream
  const last = BigInt(events.length) - 1n
  if (compatible && from + BigInt(PAGE_EVENTS) - 1n < min) yield streamEdgeAnswer('first', min)
  else if (compatible && from > last + 1n) yield streamEdgeAnswer('first', last + 1n)
  const start = from > min ? from : min
  let left = count
  for (let index = Number(start); left > 0n && index <= Number(last); index++) {
    const event = events[index]!
    if (event.createdTicks < notBeforeTicks) continue
    yield answerOf(event)
    left--
  }
  if (compatible) yield streamEdgeAnswer('last', last)
}

function* streamBackwards(
  stream: ReadableStream,
  from: bigint,
  count: bigint,
  compatible: boolean,
  answerOf: (event: StoredEvent) => ReadAnswer,
): Generator<ReadAnswer> {
  const { events, min, notBeforeTicks } = stream
  const last = BigInt(events.length) - 1n
  const start = from < 0n || from > last ? last : from
  let left = count
  for (let index = Number(start); left > 0n && index >= Number(min); index--) {
    const event = events[index]!
    if (event.createdTicks < notBeforeTicks) continue
    yield answerOf(event)
    left--
  }
  if (compatible) yield streamEdgeAnswer('last', last)
}

function allAnswers(
  node: NodeState,
  options: Options,
  filter: EventFilter,
  answerOf: (event: StoredEvent) => ReadAnswer,
): Iterable<ReadAnswer> | CallError {
  const { store } = node
  const backwards = options.getReadDirection() === BACKWARDS
  const result = options.hasFilter() ? 'FilteredReadAllResult' : 'ReadAllResult'
  const at = readPlace(options) ?? { commit: store.end, prepare: store.end }
  const count = readCount(options)
  if (backwards) {
    if (at.commit > store.end) return callErrors.unknown(`Unexpected ${result}: Error`)
    if (!store.isBoundary(at.commit)) return callErrors.unknown(`Unexpected ${result}: InvalidPosition`)
    return allBackwards(node, at, count, filter, answerOf)
  }
  // Behind the last record there is nothing, wherever that is; before it there must be a record.
  if (at.commit > store.lastPosition) return []
  if (!store.isBoundary(at.commit)) return callErrors.unknown(`Unexpected ${result}: InvalidPosition`)
  return allForwards(node, at, count, filter, answerOf)
}

function* allForwards(
  { store }: NodeState,
  at: Place,
  count: bigint,
  filter: EventFilter,
  answerOf: (event: StoredEvent) => ReadAnswer,
): Generator<ReadAnswer> {
  let left = count
  for (let index = store.indexAt(at.commit); left > 0n && index < store.records.length; index++) {
    const event = store.records[index]!
    if (!filter.allows(event)) continue
    yield answerOf(event)
    left--
  }
}

/** Backwards a position is the end of a record: the record that begins there is not read. */
function* allBackwards(
  { store }: NodeState,
  at: Place,
  count: bigint,
  filter: EventFilter,
  answerOf: (event: StoredEvent) => ReadAnswer,
): Generator<ReadAnswer> {
  let left = count
  for (let index = store.indexAt(at.commit) - 1; left > 0n && index >= 0; index--) {
    const event = store.records[index]!
    if (event.end === at.commit && event.end > at.prepare) continue
    if (!filter.allows(event)) continue
    yield answerOf(event)
    left--
  }
}

/** Null is the end of the log. */
function readPlace(options: Options): Place | null {
  const all = options.getAll()!
  if (all.hasStart()) return { commit: 0n, prepare: 0n }
  const position = all.getPosition()
  if (all.hasEnd() || !position) return null
  const commit = BigInt(position.getCommitPosition())
  const prepare = BigInt(position.getPreparePosition())
  if (commit < prepare) throw new RangeError('The commit position cannot be less than the prepare position')
  const end = 2n ** 64n - 1n
  if (commit === end && prepare === end) return null
  if (commit > REVISION_MAX) throw new RangeError('the commit position is out of range')
  return { commit, prepare }
}

/** Behind which a subscription begins: null is the start, `end` what is stored from now on. */
function subscriptionPlace(options: Options): Place | 'end' | null {
  return options.getAll()!.hasStart() ? null : (readPlace(options) ?? 'end')
}

function subscriptionRevision(from: NonNullable<ReturnType<Options['getStream']>>): bigint | 'end' | null {
  if (from.hasStart()) return null
  if (from.hasEnd()) return 'end'
  const revision = readRevision(from.getRevision())
  return revision < 0n ? 'end' : revision
}
