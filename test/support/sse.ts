/** A client of Server-Sent Events that keeps all it is told, in the order in which it was. */
import { type IncomingHttpHeaders, request } from 'node:http'
import { createParser } from 'eventsource-parser'
import type { Test } from 'tap'
import type { TaskMessage } from '../../src/api/schemas/streams.ts'
import { taskMessageSchema } from '../../src/api/schemas/streams.ts'
import { PATIENCE_MS } from './service-parts.ts'

export interface SseMessage {
  event: string
  id: string | null
  data: Record<string, unknown>
}

export interface Sse {
  status: number
  headers: IncomingHttpHeaders
  messages: SseMessage[]
  /** In milliseconds, as the service last said. */
  retryMs: number | null
  comments: string[]
  /** The newest id it has seen: what it would come back with. */
  lastEventId: string | null
  ended: boolean
  /** How it ended: at the end of the answer, or cut. */
  endedWell: boolean
  /** Waits for the first message that fits, among those that have come already too. */
  until(what: string, fits: (message: SseMessage) => boolean): Promise<SseMessage>
  untilEnd(): Promise<void>
  /** The transitions told so far, as `TaskStarted PROCESSING 1`; null where a state or a signal was told. */
  told(): string[]
  close(): void
}

export function openSse(t: Test, url: string, headers: Record<string, string> = {}): Promise<Sse> {
  return new Promise((resolve, reject) => {
    const waiting = new Set<() => void>()
    const moved = () => {
      for (const wake of [...waiting]) wake()
    }
    const wait = async (what: string, holds: () => boolean) => {
      const giveUp = Date.now() + PATIENCE_MS
      while (!holds()) {
        await new Promise<void>((resolve, reject) => {
          const wake = () => {
            clearTimeout(timer)
            waiting.delete(wake)
            resolve()
          }
          const timer = setTimeout(
            () => reject(new Error(`in vain: ${what}; told ${JSON.stringify(sse.messages.slice(-3))}`)),
            giveUp - Date.now(),
          )
          waiting.add(wake)
        })
      }
    }
    const sse: Sse = {
      status: 0,
      headers: {},
      messages: [],
      retryMs: null,
      comments: [],
      lastEventId: null,
      ended: false,
      endedWell: false,
      until: async (what, fits) => {
        await wait(what, () => sse.messages.some(fits) || sse.ended)
        const found = sse.messages.find(fits)
        if (!found)
          throw new Error(`the stream ended before: ${what}; ${JSON.stringify(sse.messages.slice(-3))}`)
        return found
      },
      untilEnd: () => wait('the stream ends', () => sse.ended),
      told: () =>
        sse.messages.filter(({ event }) => event === 'task').map(({ data }) => tell(data as TaskMessage)),
      close: () => sent.destroy(),
    }
    const parser = createParser({
      onEvent: ({ event = 'message', id, data }) => {
        if (id !== undefined) sse.lastEventId = id
        const parsed = JSON.parse(data)
        if (event === 'task') taskMessageSchema.parse(parsed)
        sse.messages.push({ event, id: id ?? null, data: parsed })
        moved()
      },
      onRetry: ms => {
        sse.retryMs = ms
      },
      onComment: comment => {
        sse.comments.push(comment)
        moved()
      },
    })
    const sent = request(
      url,
      { agent: false, headers: { accept: 'text/event-stream', ...headers } },
      answer => {
        Object.assign(sse, { status: answer.statusCode, headers: answer.headers })
        const end = (endedWell: boolean) => {
          sse.ended = true
          sse.endedWell ||= endedWell
          moved()
        }
        answer.setEncoding('utf8')
        answer.on('data', text => parser.feed(text))
        answer.on('end', () => end(answer.complete))
        answer.on('error', () => end(false))
        answer.on('close', () => end(false))
        resolve(sse)
      },
    )
    sent.on('error', reject)
    sent.end()
    t.teardown(() => sent.destroy())
  })
}

const tell = ({ event, task }: TaskMessage): string => `${event} ${task.status} ${task.revision}`
