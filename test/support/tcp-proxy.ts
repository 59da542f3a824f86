/**
 * The network between two parts, as a TCP proxy that can be told to fail: cut, half open, slow, answers lost,
 * connections refused. It has one state at a time; `restore` ends whatever it is.
 */
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'
import type { Test } from 'tap'

interface Connection {
  client: Socket
  upstream: Socket | null
  /** Chunks under way in slow times; the order of each direction is kept. */
  queues: { toUpstream: Promise<void>; toClient: Promise<void> }
  waiting: number
}

export class TcpProxy {
  readonly port: number
  readonly #server: Server
  readonly #connections = new Set<Connection>()
  #targets: readonly number[]
  #turn = 0
  #holding = false
  #refusing = false
  #delayMs = 0
  #answersToLose = 0

  private constructor(server: Server, targets: readonly number[]) {
    this.#server = server
    this.#targets = targets
    this.port = (server.address() as AddressInfo).port
  }

  /** Listens on a free port of 127.0.0.1 and leads each connection to the next of the targets that takes it. */
  static async start(...targets: number[]): Promise<TcpProxy> {
    const server = createServer({ pauseOnConnect: true })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    const proxy = new TcpProxy(server, targets)
    server.on('connection', client => proxy.#accept(client))
    return proxy
  }

  /** Where new connections are led from now on; without any they are refused. */
  lead(...targets: number[]): void {
    this.#targets = targets
  }

  /** Ends every connection; new ones are served. */
  cut(): void {
    for (const connection of this.#connections) this.#end(connection)
  }

  /** From now on no byte passes in either direction, also not the end of a connection. */
  hold(): void {
    this.#holding = true
    for (const { client, upstream } of this.#connections) {
      client.pause()
      upstream?.pause()
    }
  }

  /** From now on every chunk arrives so much later. */
  slow(delayMs: number): void {
    this.#delayMs = delayMs
  }

  /** The next answers are dropped, and the connections that they came on are cut. */
  loseAnswers(count = Number.POSITIVE_INFINITY): void {
    this.#answersToLose = count
  }

  /** From now on new connections are refused. */
  refuse(): void {
    this.#refusing = true
  }

  /** All is well again; what was held arrives now. */
  restore(): void {
    this.#holding = false
    this.#refusing = false
    this.#delayMs = 0
    this.#answersToLose = 0
    for (const connection of this.#connections) {
      const { client, upstream } = connection
      if (client.destroyed || upstream?.destroyed) this.#end(connection)
      else if (upstream && !upstream.connecting) {
        client.resume()
        upstream.resume()
      }
    }
  }

  close(): void {
    this.cut()
    this.#server.close()
  }

  #accept(client: Socket): void {
    client.on('error', () => {})
    if (this.#refusing) {
      client.resetAndDestroy()
      return
    }
    const queues = { toUpstream: Promise.resolve(), toClient: Promise.resolve() }
    const connection: Connection = { client, upstream: null, queues, waiting: 0 }
    this.#connections.add(connection)
    client.on('close', () => this.#closed(connection))
    client.on('data', chunk => this.#pass(connection, 'toUpstream', chunk))
    client.on('end', () => this.#pass(connection, 'toUpstream', null))
    const first = this.#turn++
    this.#open(connection, this.#targets.length === 0 ? [] : rotated(this.#targets, first))
  }

  #open(connection: Connection, [target, ...others]: readonly number[]): void {
    if (target === undefined || connection.client.destroyed) {
      this.#end(connection)
      return
    }
    const upstream = connect(target, '127.0.0.1')
    upstream.once('error', () => this.#open(connection, others))
    upstream.once('connect', () => {
      upstream.removeAllListeners('error')
      upstream.on('error', () => {})
      connection.upstream = upstream
      upstream.on('close', () => this.#closed(connection))
      upstream.on('data', chunk => this.#answer(connection, chunk))
      upstream.on('end', () => this.#pass(connection, 'toClient', null))
      if (this.#holding) upstream.pause()
      else connection.client.resume()
      if (connection.client.destroyed) this.#closed(connection)
    })
  }

  #answer(connection: Connection, chunk: Buffer): void {
    if (this.#answersToLose > 0) {
      this.#answersToLose--
      this.#end(connection)
    } else this.#pass(connection, 'toClient', chunk)
  }

  /** Hands a chunk on, or the end of the stream. */
  #pass(connection: Connection, direction: keyof Connection['queues'], chunk: Buffer | null): void {
    const write = (): void => {
      const to = direction === 'toUpstream' ? connection.upstream : connection.client
      if (chunk === null) to?.end()
      else if (to?.writable) to.write(chunk)
    }
    if (this.#delayMs === 0 && connection.waiting === 0) {
      write()
      return
    }
    const at = performance.now() + this.#delayMs
    connection.waiting++
    connection.queues[direction] = connection.queues[direction]
      .then(() => new Promise<void>(done => setTimeout(done, Math.max(0, at - performance.now()))))
      .then(write)
      .finally(() => connection.waiting--)
  }

  /** One side is gone. The other learns of it, unless nothing passes; then when it does again. */
  #closed(connection: Connection): void {
    if (this.#holding) return
    const { client, upstream, queues } = connection
    this.#connections.delete(connection)
    void queues.toClient.then(() => client.destroySoon())
    if (upstream) void queues.toUpstream.then(() => upstream.destroySoon())
  }

  #end(connection: Connection): void {
    this.#connections.delete(connection)
    connection.client.destroy()
    connection.upstream?.destroy()
  }
}

const rotated = <T>(members: readonly T[], by: number): T[] => [
  ...members.slice(by % members.length),
  ...members.slice(0, by % members.length),
]

/** A proxy that is closed when the test ends. */
export async function startTcpProxy(t: Test, ...targets: number[]): Promise<TcpProxy> {
  const proxy = await TcpProxy.start(...targets)
  t.teardown(() => proxy.close())
  return proxy
}
