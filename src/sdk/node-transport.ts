/** Requests over `node:http` with kept connections. */
import * as http from 'node:http'
import * as https from 'node:https'
import type { Transport, TransportAnswer, TransportRequest } from './transport.ts'

/** More at once wait for a connection. */
const MAX_SOCKETS = 128
/** A claim of 100 tasks with payloads of 256 KiB is 25 MiB; whatever is far beyond that is not this service. */
const MAX_ANSWER_BYTES = 128 * 1024 * 1024

/** A transport with its own pool of connections; idle ones do not keep the process alive. */
export function nodeTransport(): Transport {
  const options = { keepAlive: true, maxSockets: MAX_SOCKETS }
  const plain = new http.Agent(options)
  const secure = new https.Agent(options)
  return request =>
    request.url.startsWith('https:')
      ? send(https.request, secure, request)
      : send(http.request, plain, request)
}

function send(
  open: typeof http.request,
  agent: http.Agent,
  request: TransportRequest,
): Promise<TransportAnswer> {
  const { method, url, headers, body, signal } = request
  return new Promise((resolve, reject) => {
    const outgoing = open(url, {
      agent,
      method,
      headers: body === null ? headers : { ...headers, 'content-length': String(Buffer.byteLength(body)) },
    })
    const abort = () => outgoing.destroy(asError(signal.reason))
    const settle = (end: () => void) => {
      signal.removeEventListener('abort', abort)
      end()
    }
    outgoing.on('error', error => settle(() => reject(error)))
    outgoing.on('response', incoming => {
      const parts: Buffer[] = []
      let bytes = 0
      incoming.on('data', (part: Buffer) => {
        bytes += part.length
        if (bytes > MAX_ANSWER_BYTES) incoming.destroy(new Error('the answer is too large'))
        else parts.push(part)
      })
      incoming.on('error', error => settle(() => reject(error)))
      incoming.on('end', () => settle(() => resolve(answerOf(incoming, Buffer.concat(parts)))))
    })
    if (signal.aborted) abort()
    else signal.addEventListener('abort', abort, { once: true })
    outgoing.end(body ?? undefined)
  })
}

function answerOf(incoming: http.IncomingMessage, body: Buffer): TransportAnswer {
  return {
    status: incoming.statusCode ?? 0,
    contentType: incoming.headers['content-type'] ?? '',
    retryAfter: incoming.headers['retry-after'] ?? null,
    body: body.toString('utf8'),
  }
}

const asError = (reason: unknown): Error => (reason instanceof Error ? reason : new Error(String(reason)))
