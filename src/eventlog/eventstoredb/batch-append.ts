/**
 * Appending over one bidirectional stream with many appends in flight. Every append is answered for: by the server, or
 * by the end of the stream or of the time, after which nothing is known of it.
 */
import { randomUUID } from 'node:crypto'
import type { ClientDuplexStream } from '@grpc/grpc-js'
import type { Append, EncodedEvent } from '../event-log.ts'
import { LogUnavailableError } from '../event-log.ts'
import { within } from '../within.ts'
import type { Connection, Live } from './connection.ts'
import { asLogError, isCancelled } from './errors.ts'
import type { Place } from './names.ts'
import {
  BatchAppendReq,
  type BatchAppendRequest,
  type BatchAppendResponse,
  Empty,
  MaximumAppendSizeExceeded,
  StreamIdentifier,
  UUID,
} from './stubs.ts'

/** What the server said. A conflict may also be a repetition of which it remembers only a part. */
export type Outcome =
  | { kind: 'appended'; revision: number; place: Place | null }
  | { kind: 'conflict' }
  | { kind: 'rejected'; reason: 'invalid_event' | 'too_large'; message: string }

type Settle = (outcome: Outcome | Error) => void

interface Sending {
  live: Live
  call: ClientDuplexStream<BatchAppendRequest, BatchAppendResponse>
  /** By correlation id. An answer to one that is not here any more comes too late and is nothing. */
  pending: Map<string, Settle>
}

export class BatchAppender {
  readonly #connection: Connection
  readonly #nameOf: (stream: string) => string
  readonly #timeoutMs: number
  #current: Sending | null = null

  /**
   * @param nameOf the name that a stream has there
   * @param timeoutMs after this nothing is known of an append
   */
  constructor(connection: Connection, nameOf: (stream: string) => string, timeoutMs: number) {
    this.#connection = connection
    this.#nameOf = nameOf
    this.#timeoutMs = timeoutMs
  }

  /**
   * Appends members that have been checked; the outcomes stand in their order.
   *
   * @throws LogUnavailableError when the outcome of any is not known
   */
  async append(appends: readonly Append[]): Promise<Outcome[]> {
    const startedAt = performance.now()
    const sending = await within(this.#timeoutMs, this.#open(), 'an append').catch(error => {
      throw asLogError(error, 'an append')
    })
    return this.#send(sending, appends, Math.max(1, this.#timeoutMs - (performance.now() - startedAt)))
  }

  close(): void {
    if (this.#current) end(this.#current, new LogUnavailableError('the log is closed'))
    this.#current = null
  }

  /** The stream on the connection in use. One on a connection that was replaced ends when it has its answers. */
  async #open(): Promise<Sending> {
    const live = await this.#connection.live()
    if (this.#current?.live === live) return this.#current
    if (this.#current?.pending.size === 0) this.#current.call.cancel()
    return this.#start(live)
  }

  #start(live: Live): Sending {
    const call = live.streams.batchAppend(...live.arguments({ leader: true }))
    const sending: Sending = { live, call, pending: new Map() }
    const failed = (error: unknown) => this.#failed(sending, error)
    call.on('data', (response: BatchAppendResponse) => {
      const id = response.getCorrelationId()?.getString() ?? ''
      const settle = sending.pending.get(id)
      if (!settle) return
      sending.pending.delete(id)
      settle(outcomeOf(response))
      if (sending.pending.size === 0 && this.#current !== sending) call.cancel()
    })
    call.on('error', failed)
    call.on('end', () => failed(new Error('the server ended the stream of appends')))
    this.#current = sending
    return sending
  }

  #failed(sending: Sending, error: unknown): void {
    end(sending, error)
    if (this.#current === sending) this.#current = null
    else if (isCancelled(error)) return
    void this.#connection.failed(sending.live, error)
  }

  #send(sending: Sending, appends: readonly Append[], timeoutMs: number): Promise<Outcome[]> {
    const { pending, call } = sending
    const outcomes: Outcome[] = new Array(appends.length)
    let open = appends.length
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        const late = new LogUnavailableError(`the log did not answer an append within ${timeoutMs} ms`)
        this.#failed(sending, late)
        reject(late)
      }, timeoutMs)
      const settled = (index: number, outcome: Outcome | Error) => {
        if (outcome instanceof Error) {
          clearTimeout(timer)
          return reject(asLogError(outcome, 'an append'))
        }
        outcomes[index] = outcome
        if (--open > 0) return
        clearTimeout(timer)
        this.#connection.worked()
        resolve(outcomes)
      }
      for (const [index, append] of appends.entries()) {
        const id = randomUUID()
        pending.set(id, outcome => settled(index, outcome))
        // What the server does not take at once waits here; the port's limits of a call bound it.
        call.write(requestOf(id, this.#nameOf(append.stream), append))
      }
    })
  }
}

/** Everything in flight is of unknown outcome. */
function end({ call, pending }: Sending, error: unknown): void {
  call.cancel()
  const unknown = asLogError(error, 'an append') as Error
  for (const [id, settle] of pending) {
    pending.delete(id)
    settle(unknown)
  }
}

function requestOf(id: string, stream: string, { expected, events }: Append): BatchAppendRequest {
  const options = new BatchAppendReq.Options()
  // The server gives an append without a deadline its own; one of ours would be by the clock of another machine.
  options.setStreamIdentifier(new StreamIdentifier().setStreamName(Buffer.from(stream)))
  if (expected === 'any') options.setAny(new Empty())
  else if (expected === 'no_stream') options.setNoStream(new Empty())
  else options.setStreamPosition(String(expected))
  const request = new BatchAppendReq()
  request.setCorrelationId(new UUID().setString(id))
  request.setOptions(options)
  request.setProposedMessagesList(events.map(proposed))
  request.setIsFinal(true)
  return request
}

/** The bytes go as they are. The version has no place of its own in EventStoreDB and stands around the metadata. */
function proposed({ id, type, version, data, metadata }: EncodedEvent) {
  const message = new BatchAppendReq.ProposedMessage()
  message.setId(new UUID().setString(id))
  message.getMetadataMap().set('type', type).set('content-type', 'application/json')
  message.setData(Buffer.from(data))
  message.setCustomMetadata(Buffer.from(`{"version":${version},"metadata":${metadata}}`))
  return message
}

function outcomeOf(response: BatchAppendResponse): Outcome | Error {
  const success = response.getSuccess()
  if (success) {
    const position = success.getPosition()
    return {
      kind: 'appended',
      revision: Number(success.getCurrentRevision()),
      place: position
        ? { commit: position.getCommitPosition(), prepare: position.getPreparePosition() }
        : null,
    }
  }
  const status = response.getError()
  const details = status?.getDetails()
  const what = details?.getTypeName() ?? ''
  switch (what) {
    case 'event_store.client.WrongExpectedVersion':
      return { kind: 'conflict' }
    case 'event_store.client.MaximumAppendSizeExceeded': {
      const limit = details?.unpack(MaximumAppendSizeExceeded.deserializeBinary, what)?.getMaxappendsize()
      return tooLarge(`EventStoreDB takes ${limit} bytes an append; this one has more`)
    }
    case 'event_store.client.MaximumAppendEventSizeExceeded':
      return tooLarge('one of its events is larger than EventStoreDB takes')
    case 'event_store.client.StreamDeleted':
      return invalid('its stream was deleted in EventStoreDB')
    case 'event_store.client.BadRequest':
      return invalid(`EventStoreDB refuses it: ${status?.getMessage()}`)
    default:
      return new LogUnavailableError(
        `the log did not take an append: ${status?.getMessage() || what.split('.').at(-1) || 'no reason was given'}`,
      )
  }
}

const tooLarge = (message: string): Outcome => ({ kind: 'rejected', reason: 'too_large', message })
const invalid = (message: string): Outcome => ({ kind: 'rejected', reason: 'invalid_event', message })
