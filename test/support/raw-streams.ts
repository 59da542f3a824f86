/** Thousands of streams at little cost: a socket each, and as much of the protocol as it takes to see ids go by. */
import { connect, type Socket } from 'node:net'

export interface RawStream {
  socket: Socket
  /** When the last message with an id came, by `performance.now()`, and the number its id begins with. */
  at: number
  number: number
  close(): void
}

/** Sockets that connect at once: a listening socket has a queue. */
const WAVE = 100

/**
 * Opens streams in waves, each until it has begun.
 *
 * @param onId told of each message with an id
 */
export async function openRawStreams(
  base: string,
  paths: readonly string[],
  onId: (path: string, number: number, at: number) => void = () => {},
): Promise<RawStream[]> {
  const opened: RawStream[] = []
  for (let from = 0; from < paths.length; from += WAVE)
    opened.push(...(await Promise.all(paths.slice(from, from + WAVE).map(path => openOne(base, path, onId)))))
  return opened
}

function openOne(
  base: string,
  path: string,
  onId: (path: string, number: number, at: number) => void,
): Promise<RawStream> {
  const { hostname, port } = new URL(base)
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), hostname)
    const stream: RawStream = { socket, at: 0, number: -1, close: () => socket.destroy() }
    let head = ''
    let isOpen = false
    socket.setEncoding('latin1')
    socket.on('error', reject)
    socket.on('close', () => reject(new Error(`closed: ${head.slice(0, 500)}`)))
    socket.on('data', (text: string) => {
      const at = performance.now()
      // An id may be cut by a packet; its line alone is kept for the next.
      head = isOpen ? head.slice(head.lastIndexOf('\n') + 1) + text : head + text
      for (const [, number] of head.matchAll(/^id: (\d+)[^\n]*\n/gm)) {
        Object.assign(stream, { at, number: Number(number) })
        onId(path, stream.number, at)
        if (isOpen) continue
        isOpen = true
        resolve(stream)
      }
    })
    socket.write(`GET ${path} HTTP/1.1\r\nHost: ${hostname}\r\nAccept: text/event-stream\r\n\r\n`)
  })
}
