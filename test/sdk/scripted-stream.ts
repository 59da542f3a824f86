/** A server that streams what a test tells it to, and keeps the requests that came. */
import { once } from 'node:events'
import * as http from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'

export interface Connection {
  /** From 1. */
  number: number
  path: string
  headers: http.IncomingHttpHeaders
  /** Resolves when the client is gone. */
  gone: Promise<unknown>
  /** Answers with the head of a stream, once. */
  open(): void
  /** Bytes as they are. */
  write(text: string): void
  task(taskId: string, event: string | null, id?: string): void
  event(name: string, data: object, id?: string): void
  /** The stream ends as it should. */
  end(): void
  /** The connection breaks. */
  drop(): void
  refuse(status: number, body?: object, headers?: Record<string, string>): void
  /** Bytes that wait for the client to read. */
  waiting(): number
}

export interface ScriptedService {
  url: string
  connections: Connection[]
}

export async function startScriptedService(
  t: Test,
  script: (connection: Connection) => void | Promise<void>,
): Promise<ScriptedService> {
  const connections: Connection[] = []
  const server = http.createServer((incoming, outgoing) => {
    const connection = connectionOf(connections.length + 1, incoming, outgoing)
    connections.push(connection)
    void script(connection)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, connections }
}

function connectionOf(
  number: number,
  incoming: http.IncomingMessage,
  outgoing: http.ServerResponse,
): Connection {
  const open = () => {
    if (outgoing.headersSent) return
    outgoing.writeHead(200, {
      'content-type': 'text/event-stream',
      'cache-control': 'no-cache, no-transform',
    })
    outgoing.flushHeaders()
  }
  const write = (text: string) => {
    open()
    outgoing.write(text)
  }
  const event = (name: string, data: object, id?: string) =>
    write(`event: ${name}\n${id === undefined ? '' : `id: ${id}\n`}data: ${JSON.stringify(data)}\n\n`)
  return {
    number,
    path: incoming.url!,
    headers: incoming.headers,
    gone: once(outgoing, 'close'),
    open,
    write,
    event,
    task: (taskId, name, id) => event('task', { event: name, task: { taskId, status: 'PENDING' } }, id),
    end: () => void outgoing.end(),
    drop: () => void incoming.socket.destroy(),
    refuse: (status, body = {}, headers = {}) =>
      void outgoing
        .writeHead(status, { 'content-type': 'application/problem+json', ...headers })
        .end(status === 204 ? undefined : JSON.stringify(body)),
    waiting: () => outgoing.writableLength,
  }
}
