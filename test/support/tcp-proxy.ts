/** A TCP proxy that can lose what the server answers: the network between a client and its database. */
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import type { Test } from 'tap'

export interface TcpProxy {
  port: number
  /** From now on the first answer on each connection is dropped and the connection cut. */
  loseAnswers(): void
  /** From now on nothing passes in either direction; connections stay open. */
  hang(): void
  /** All is well again for new connections; those that hung are cut. */
  heal(): void
}

export async function startTcpProxy(t: Test, targetPort: number): Promise<TcpProxy> {
  let mode: 'pass' | 'lose_answers' | 'hang' = 'pass'
  const sockets = new Set<Socket>()
  const keep = (socket: Socket) => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
    socket.on('error', () => {})
  }
  const server = createServer(client => {
    const upstream = connect(targetPort, '127.0.0.1')
    keep(client)
    keep(upstream)
    client.on('data', chunk => mode !== 'hang' && upstream.write(chunk))
    upstream.on('data', chunk => {
      if (mode === 'pass') client.write(chunk)
      else if (mode === 'lose_answers') client.destroy()
    })
    client.on('close', () => upstream.destroy())
    upstream.on('close', () => client.destroy())
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const cut = () => {
    for (const socket of sockets) socket.destroy()
  }
  t.teardown(() => {
    cut()
    server.close()
  })
  return {
    port: (server.address() as AddressInfo).port,
    loseAnswers: () => {
      mode = 'lose_answers'
    },
    hang: () => {
      mode = 'hang'
    },
    heal: () => {
      mode = 'pass'
      cut()
    },
  }
}
