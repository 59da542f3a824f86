/** The events of one connection (text/event-stream), read as they are taken. */
import { createParser, type EventSourceMessage } from 'eventsource-parser'
import { RollcallError } from './errors.ts'
import { TIMER_MAX_MS } from './waiting.ts'

/** A task's texts are bounded (an error message to 256 KiB); far beyond that it is not this service. */
const MAX_BUFFERED = 4 * 1024 * 1024

export interface Reading {
  /** How long nothing may come, not even a comment. */
  idleMs: number
  /** Ends the reading with its reason. */
  signal: AbortSignal
  /** Anything came, a comment included. */
  onAlive: () => void
  /** The service says how long to wait before connecting again. */
  onRetry: (ms: number) => void
}

/** Ends with the body; rejects when nothing comes for too long, when the connection breaks, and with the signal. */
export async function* readEvents(
  body: ReadableStream<Uint8Array>,
  { idleMs, signal, onAlive, onRetry }: Reading,
): AsyncGenerator<EventSourceMessage, void, undefined> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  const ready: EventSourceMessage[] = []
  let tooLarge = false
  const parser = createParser({
    maxBufferSize: MAX_BUFFERED,
    onEvent: message => ready.push(message),
    onRetry,
    onError: ({ type }) => {
      if (type === 'max-buffer-size-exceeded') tooLarge = true
    },
  })
  try {
    for (;;) {
      const { done, value } = await unless(signal, idleMs, reader.read())
      if (done) return
      onAlive()
      parser.feed(decoder.decode(value, { stream: true }))
      yield* ready.splice(0)
      if (tooLarge) throw tooLargeError()
    }
  } finally {
    // For a fetch that does not heed its signal.
    void reader.cancel().catch(() => {})
  }
}

/** What is read, unless the time is up or the signal is aborted first. */
function unless<T>(signal: AbortSignal, idleMs: number, reading: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const settle = (end: () => void) => {
      clearTimeout(timer)
      signal.removeEventListener('abort', abort)
      end()
    }
    const abort = () => settle(() => reject(signal.reason))
    const timer = setTimeout(() => settle(() => reject(silent(idleMs))), Math.min(idleMs, TIMER_MAX_MS))
    if (signal.aborted) abort()
    else signal.addEventListener('abort', abort, { once: true })
    reading.then(
      value => settle(() => resolve(value)),
      error => settle(() => reject(error)),
    )
  })
}

const silent = (idleMs: number): RollcallError =>
  new RollcallError(
    `Nothing came through the stream for ${idleMs} ms, not even a ping; it is taken for lost.`,
    {
      code: 'timeout',
      retryable: true,
    },
  )

const tooLargeError = (): RollcallError =>
  new RollcallError('A message of the stream is larger than any of this service.', { code: 'bad_answer' })
