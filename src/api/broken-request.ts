/** Answers to what is no HTTP request, or never became a whole one: it reaches no route and no error handler. */
import { STATUS_CODES } from 'node:http'
import type { Socket } from 'node:net'
import { Problem } from './problems.ts'

/** Writes a problem to the connection and closes it. */
export function answerBrokenRequest(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || socket.destroyed) return
  const problem = problemOf(error)
  const body = JSON.stringify(problem.body())
  const head = [
    `HTTP/1.1 ${problem.status} ${STATUS_CODES[problem.status]}`,
    'Content-Type: application/problem+json',
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Connection: close',
  ]
  if (socket.writable) socket.write(`${head.join('\r\n')}\r\n\r\n${body}`)
  socket.destroySoon()
}

function problemOf(error: NodeJS.ErrnoException): Problem {
  switch (error.code) {
    case 'HPE_HEADER_OVERFLOW':
      return new Problem('headers_too_large')
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return new Problem('request_timeout')
    default:
      return new Problem('invalid_request', `This is no HTTP/1.1 request: ${error.message}`)
  }
}
